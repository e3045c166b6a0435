"""Leading: the way to draft that a run's verdict names, found without its intervals and capacities."""

from __future__ import annotations

from simulator.scenario import Scenario
from simulator.serving import Load, summarise
from simulator.simulation.choice import at_worse_end, chosen
from simulator.simulation.gains import Runs
from simulator.simulation.progress import Progress, counter
from simulator.simulation.server import Server, speculative_servers
from simulator.simulation.variant import require_served
from simulator.simulation.verdict import judged_gain, nothing_to_gain, worth_of


def leading(scenario: Scenario, progress: Progress | None = None) -> tuple[Server, Load]:
    """(the way to draft that the verdict of `simulate` names, how busy the server is without speculation).

    Raises `SpecError` where nothing is served, and ValueError without speculation.
    """
    servers = speculative_servers(scenario, [])
    if not servers:
        raise ValueError("the scenario has no speculation")
    requests = scenario.requests()
    plain = Server.of(scenario).run(requests, counter(progress, "no speculation", len(requests)))
    summary = summarise(plain)
    require_served(scenario, summary)
    if len({server.drafting for _, server in servers}) == 1:
        return servers[0][1], summary.load
    gains: dict[int, float] = {}
    met = nothing_to_gain(scenario, plain)
    for place, (label, server) in enumerate(servers):
        run = server.run(requests, counter(progress, label, len(requests)))
        runs = Runs(plain, run, run, run, run)
        gain = judged_gain(scenario, runs)[1] or runs.doubted(lambda records: records.e2e_latency_s)
        quicker = runs.doubted(lambda records: records.tpot_s) or runs.doubted(lambda records: records.e2e_latency_s)
        in_time = 0.0 if quicker is None else quicker.ratio
        gains[place] = 0.0 if gain is None else worth_of(gain.ratio, in_time, met)
    ends = at_worse_end(gains, lambda place: servers[place][1].drafting, lambda place: gains[place])
    taken = chosen(ends, lambda place: gains[place], lambda place: servers[place][1].shape.nodes)
    return servers[taken or 0][1], summary.load
