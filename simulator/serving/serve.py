"""serve: requests, rules, prices and acceptance in; what happened out."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from simulator.serving.record import ServingResult
from simulator.serving.replica import PricesSteps
from simulator.serving.replicas import Engine, serve_on_replicas
from simulator.serving.rules import BatchingRules
from simulator.serving.sequence import AcceptanceByPosition
from simulator.workload import Request


def serve(
    requests: Iterable[Request],
    rules: BatchingRules,
    pricer: PricesSteps,
    paths: Callable[[Request], AcceptanceByPosition],
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
    engine = Engine(rules, pricer, num_speculative_tokens)
    return serve_on_replicas(
        requests, [engine], paths, users=users, think_time_s=think_time_s, time_out_s=time_out_s, readable=readable
    )
