"""serve: requests, rules, prices and acceptance in; what happened out."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import simpy

from simulator.serving.arrivals import ClosedLoop, OpenLoop
from simulator.serving.booked_replica import BookedReplica
from simulator.serving.patience import Patience
from simulator.serving.record import ServingResult
from simulator.serving.replica import Replica, StepPricer
from simulator.serving.scheduler import AcceptancePath, BatchingRules
from simulator.workload import Request


def serve(
    requests: Iterable[Request],
    rules: BatchingRules,
    pricer: StepPricer,
    paths: Callable[[Request], AcceptancePath],
    num_speculative_tokens: Callable[[int], int],
    *,
    users: int | None = None,
    think_time_s: float = 0.0,
    time_out_s: float | None = None,
    readable: bool = False,
) -> ServingResult:
    """Serves every request to its end on one replica, or to the end of its client's patience, `time_out_s` after its arrival.

    With `users` the loop is closed: arrival times are those of the simulation, `think_time_s` after a user's last answer.
    A request that follows another arrives when its user has read that answer.
    `readable`: by the readable engine, one event a step, instead of the one that takes many rounds at once: the same records.
    `num_speculative_tokens(running)` is the drafts wanted per sequence at this number of running sequences.
    Raises ValueError for equal ids, a request without tokens, a negative think time, no users, no time before giving up, a step
    priced at no time, or a path that accepts more than was drafted.
    """
    requests = tuple(requests)
    if len({request.request_id for request in requests}) < len(requests):
        raise ValueError("request ids must differ")
    env = simpy.Environment(initial_time=0.0)
    replica = (Replica if readable else BookedReplica)(env, rules, pricer, paths, num_speculative_tokens)
    if time_out_s is not None:
        replica.arrived = Patience(env, time_out_s, replica.give_up).arrived
    loop = (
        OpenLoop(env, requests, replica.submit)
        if users is None
        else ClosedLoop(env, requests, replica.submit, users, think_time_s)
    )
    replica.request_done = loop.request_done
    env.run()
    held_blocks = replica.scheduler.kv.used_blocks
    if len(replica.records) != len(requests) or held_blocks:
        raise RuntimeError(f"work was lost: {len(replica.records)} of {len(requests)} requests ended, {held_blocks} blocks held")
    steps = replica.steps
    return ServingResult(replica.records.sorted_by_id(), steps, steps.term_seconds(), replica.statistics())
