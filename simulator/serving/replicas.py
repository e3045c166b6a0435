"""Independent replicas: requests are dealt to them in turn, as a round-robin router does, and each serves its own.

All turns of a session go to one replica, which has its prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simulator.serving.record import EngineStatistics, RequestRecords, ServingResult, StepRecords
from simulator.workload import Request


def serve_in_turn(
    requests: Sequence[Request], replicas: int, users: int | None, serve: Callable[[Sequence[Request], int | None], ServingResult]
) -> ServingResult:
    """What `replicas` replicas did together. `serve(requests, users)` runs one of them.

    The users of a closed loop are spread evenly; a replica without any stays empty.
    """
    if replicas == 1:
        return serve(requests, users)
    active = replicas if users is None else min(replicas, users)
    results = []
    dealt = deal(requests, active)
    for index in range(active):
        theirs = None if users is None else users // active + (index < users % active)
        results.append(serve(dealt[index], theirs))
    return together(results, replicas)


def deal(requests: Sequence[Request], replicas: int) -> list[list[Request]]:
    """The requests of each replica: sessions in turn, and a request that belongs to none is one."""
    dealt: list[list[Request]] = [[] for _ in range(replicas)]
    replica_of: dict[int, int] = {}
    begun = 0
    for request in requests:
        if request.follows not in replica_of:
            replica_of[request.request_id] = begun % replicas
            begun += 1
        else:
            replica_of[request.request_id] = replica_of[request.follows]
        dealt[replica_of[request.request_id]].append(request)
    return dealt


def together(results: Sequence[ServingResult], replicas: int) -> ServingResult:
    """All records by request, all steps by start."""
    records = RequestRecords.joined([result.records for result in results]).sorted_by_id()
    steps = StepRecords.joined([result.steps for result in results])
    statistics = sum((result.statistics for result in results), EngineStatistics())
    return ServingResult(records, steps, steps.term_seconds(), statistics, replicas)
