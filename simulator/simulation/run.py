"""simulate: all variants of a scenario, compared."""

from __future__ import annotations

from dataclasses import replace

from simulator.cost.deployment import Deployment
from simulator.scenario import Scenario
from simulator.simulation.comparison import Comparison, compare
from simulator.simulation.progress import Progress
from simulator.simulation.result import SimulationResult
from simulator.simulation.server import Server, speculative_servers
from simulator.simulation.variant import served_variant
from simulator.validity import doubts_at
from simulator.workload import Request


def simulate(scenario: Scenario, progress: Progress | None = None, readable: bool = False) -> SimulationResult:
    """Serves the scenario's requests without speculation and with each method, chain, tree and policy asked for.

    `readable`: by the serving engine of one event a step, slower and with the same records (`serving.serve`).

    Where acceptance is left open, each of them runs at the low and the high end of a sourced band for the method.
    """
    requests = scenario.requests()
    warnings = list(scenario.remarks)
    plain = served_variant(replace(Server.of(scenario), readable=readable), "no speculation", requests, progress)
    warnings += _too_short(scenario, requests)
    comparisons = [
        compare(server, plain, served_variant(server, label, requests, progress), requests, progress)
        for label, server in speculative_servers(scenario, warnings, readable)
    ]
    warnings += [doubt for comparison in comparisons for doubt in _doubts(comparison, requests)]
    return SimulationResult(scenario, requests, plain, tuple(comparisons), tuple(dict.fromkeys(warnings)))


def _doubts(comparison: Comparison, requests: tuple[Request, ...]) -> list[str]:
    """What is doubtful about a variant where it ran; of a schedule by batch nothing is, at one batch."""
    scenario = comparison.variant.scenario
    if scenario.file.speculation is None or scenario.file.speculation.by_batch is not None:
        return []
    load, tau = comparison.variant.summary.load, comparison.mean_acceptance_length
    running = load.mean_decode_sequences or 1.0
    deployment = comparison.variant.deployment.replica()
    stated = None if scenario.file.acceptance is None else tau
    if not comparison.variant.summary.acceptance.rounds:
        return ["no answer is longer than one token: nothing is decoded, and what is said of a round is what it would be"]
    return [
        *doubts_at(deployment, comparison.shape, running, comparison.context, stated),
        *_beyond_the_window(deployment, requests),
    ]


def _beyond_the_window(deployment: Deployment, requests: tuple[Request, ...]) -> list[str]:
    """Requests that grow longer than the text that the drafter was trained on."""
    drafter = deployment.separate_drafter
    positions = None if drafter is None else drafter.max_position_embeddings
    if drafter is None or positions is None:
        return []
    longer = sum(request.prompt_tokens + request.output_tokens > positions for request in requests)
    if not longer:
        return []
    return [
        f"{longer:,} of {len(requests):,} requests grow beyond the {positions:,} positions that drafter {drafter.name} was "
        "trained for, where acceptance is usually much lower"
    ]


# Turns of each user below which a closed loop is mostly its start and its drain.
FEWEST_TURNS = 5


def _too_short(scenario: Scenario, requests: tuple[Request, ...]) -> list[str]:
    users = scenario.file.workload.arrivals.users
    if users is None or len(requests) >= FEWEST_TURNS * users:
        return []
    return [
        f"{len(requests)} requests are fewer than {FEWEST_TURNS} for each of {users} users: all start together and few are left "
        "at the end, so that output (tokens/s) and the mean batch are those of a short run; the output rate per user, from mean "
        "turns, is less distorted"
    ]
