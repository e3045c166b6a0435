"""How many sequences decode at once in the long run, from means alone: the operating point without a simulation."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.questions.mean_load import MeanLoad, mean_model
from simulator.scenario import Scenario
from simulator.simulation import Server
from simulator.workload import Request


def steady_batch(scenario: Scenario) -> int:
    """Mean sequences that decode on the deployment without speculation, at least 1: the batch at which as many requests finish as
    arrive, or in a closed loop at which all users are somewhere. The largest where more arrive than can be served. Replicas on
    further devices take their part of the load, and are not counted: what is priced at this batch are those of the deployment."""
    server, requests = Server.of(scenario), scenario.requests()
    own = server.kinds[0][1]
    return own * _of_replica(server, requests, sum(count for _, count in server.kinds))


def _of_replica(server: Server, requests: Sequence[Request], replicas: int) -> int:
    """On one replica, to which an equal part of the load comes."""
    model = mean_model(server, [each for each in requests if not server.refusal(each)] or list(requests))
    arrivals = server.scenario.file.workload.arrivals
    span_s = requests[-1].arrival_s - requests[0].arrival_s

    def excess(load: MeanLoad) -> float:
        """What this load holds beyond what the workload brings: users, or requests a second."""
        if arrivals.users is not None:
            elsewhere = load.rate_per_s * ((arrivals.think_time_s or 0.0) + load.ttft_s)
            return load.batch + elsewhere - arrivals.users / replicas
        return load.rate_per_s - (len(requests) - 1) / span_s / replicas if span_s > 0 else -1.0

    low, high = 1, model.largest_batch
    if excess(model.at(high)) <= 0:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if excess(model.at(middle)) <= 0 else (low, middle)
    return min((low, high), key=lambda batch: abs(excess(model.at(batch))))
