"""How many sequences decode at once in the long run, from means alone: the operating point without a simulation."""

from __future__ import annotations

from simulator.questions.mean_load import MeanLoad, MeanModel
from simulator.scenario import Scenario
from simulator.simulation import Server


def steady_batch(scenario: Scenario) -> int:
    """Mean sequences that decode on the whole deployment without speculation, at least 1: the batch at which as many requests
    finish as arrive, or in a closed loop at which all users are somewhere. The largest where more arrive than can be served."""
    scenario.require_one_kind("the steady batch of sweep")
    server = Server.of(scenario)
    replicas = server.deployment.independent_replicas
    requests = scenario.requests()
    served = [each for each in requests if not server.rules.refusal(each.prompt_tokens, each.output_tokens)] or list(requests)
    model = MeanModel(server.pricer, server.rules, served, server.drafts, server.mean_acceptance_length, replicas)
    arrivals = scenario.file.workload.arrivals
    span_s = requests[-1].arrival_s - requests[0].arrival_s

    def excess(load: MeanLoad) -> float:
        """What this load holds beyond what the workload brings: users, or requests a second."""
        if arrivals.users is not None:
            elsewhere = load.rate_per_s * ((arrivals.think_time_s or 0.0) + load.ttft_s)
            return replicas * load.batch + elsewhere - arrivals.users
        return load.rate_per_s - (len(requests) - 1) / span_s if span_s > 0 else -1.0

    low, high = 1, model.largest_batch
    if excess(model.at(high)) <= 0:
        return replicas * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if excess(model.at(middle)) <= 0 else (low, middle)
    return replicas * min((low, high), key=lambda batch: abs(excess(model.at(batch))))
