"""Independent replicas: requests are dealt to them in turn, as a round-robin router does, and each serves its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from simulator.serving.record import ServingResult, StepRecords
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
    for index in range(active):
        theirs = None if users is None else users // active + (index < users % active)
        results.append(serve(requests[index::active], theirs))
    return together(results, replicas)


def together(results: Sequence[ServingResult], replicas: int) -> ServingResult:
    """All records by request, all steps by start."""
    steps = StepRecords()
    rows: list[tuple[float, int, int]] = []
    terms: list[dict[str, Any]] = []
    for which, result in enumerate(results):
        rows += [(step.start_s, which, index) for index, step in enumerate(result.steps)]
        terms.append({name: result.steps.term(name) for name in result.steps.term_names})
    for _, which, index in sorted(rows):
        present = [(name, float(column[index])) for name, column in terms[which].items() if column[index]]
        steps.append(results[which].steps[index], present)
    records = sorted((record for result in results for record in result.records), key=lambda record: record.request_id)
    return ServingResult(tuple(records), steps, steps.term_seconds(), replicas)
