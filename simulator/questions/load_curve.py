"""How latency grows with the request rate, without speculation and with the best of a run: at a few rates, its own requests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.questions.sustained import LoadPoint, RateSearch, unit_stream
from simulator.scenario import Scenario
from simulator.simulation import Server, SimulationResult, Variant, speculative_servers

# Requests at each rate, at most: a figure needs the shape, an answer is `capacity`'s.
MOST_REQUESTS = 400
# From a tenth of what the saturated server finishes to a little beyond.
LOWEST, HIGHEST, RATES = 0.1, 1.05, 7


@dataclass(frozen=True)
class LoadCurve:
    """lines: (label, its rates, rising), no speculation first. own_rate_per_s: the scenario's. requests: at each rate."""

    scenario: Scenario
    own_rate_per_s: float
    requests: int
    lines: tuple[tuple[str, tuple[LoadPoint, ...]], ...]


def load_curve(result: SimulationResult) -> LoadCurve | None:
    """None for a closed loop, and for requests that all arrive at one time: they have no rate."""
    requests, scenario = result.requests, result.scenario
    span_s = requests[-1].arrival_s - requests[0].arrival_s
    if scenario.file.workload.arrivals.process == "closed_loop" or span_s <= 0:
        return None
    stream = unit_stream(requests[:MOST_REQUESTS], 0)
    shown: list[tuple[Variant, Server]] = [(result.plain, Server.of(scenario))]
    best = result.best
    if best is not None:
        shown += [(best.variant, server) for label, server in speculative_servers(scenario, []) if label == best.variant.label]
    most = max(variant.saturation.per_s for variant, _ in shown)
    rates = np.geomspace(LOWEST * most, HIGHEST * most, RATES)
    lines = []
    for variant, server in shown:
        search = RateSearch(server.run, [stream], scenario.file.service_level, None, variant.saturation.per_s)
        lines.append((variant.label, tuple(search.simulated(float(rate)) for rate in rates)))
    return LoadCurve(scenario, (len(requests) - 1) / span_s, len(stream), tuple(lines))
