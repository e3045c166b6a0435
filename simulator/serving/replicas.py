"""Several replicas behind a router; a lone one is the common case, and needs none.

Under `round_robin` replicas have nothing in common: requests are dealt in turn beforehand, the users of a closed loop belong to
one replica each, evenly, and one replica after the other serves its own, each on a clock of its own and as fast as if it were
alone. The other routers choose as each request arrives, whoever sends it, of replicas on one clock. Where prompts are computed
on replicas of their own (`disaggregation`), requests are dealt on both sides as they come there.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from simulator.serving.arrivals import ClosedLoop, OpenLoop, Submit
from simulator.serving.booked_replica import BookedReplica
from simulator.serving.clock import Clock
from simulator.serving.disaggregation import Disaggregation
from simulator.serving.instant import Instant
from simulator.serving.kv_transfer import KVTransfer, TransferRecords
from simulator.serving.patience import Patience
from simulator.serving.record import EngineStatistics, RequestRecords, ServingResult, StepRecords
from simulator.serving.replica import PricesSteps, Replica
from simulator.serving.router import CHOICES, Choose, InTurn, RouterName, in_turn
from simulator.serving.rules import BatchingRules
from simulator.serving.sequence import AcceptanceByPosition, SequenceState
from simulator.workload import Request


class Engine(NamedTuple):
    """What one replica is. `num_speculative_tokens(running)`: drafts wanted per sequence at this number of running sequences; a
    policy that remembers belongs to one replica."""

    rules: BatchingRules
    pricer: PricesSteps
    num_speculative_tokens: Callable[[int], int]


class Prefill(NamedTuple):
    """Engines that compute prompts for those that decode. They draft nothing, but take prompts in for the drafter too."""

    engines: Sequence[Engine]
    transfer: KVTransfer
    router: RouterName = "round_robin"


def serve_on_replicas(
    requests: Iterable[Request],
    engines: Sequence[Engine],
    paths: Callable[[Request], AcceptanceByPosition],
    *,
    router: RouterName = "round_robin",
    prefill: Prefill | None = None,
    users: int | None = None,
    think_time_s: float = 0.0,
    time_out_s: float | None = None,
    readable: bool = False,
    expect: Callable[[Iterable[Request]], None] = lambda _: None,
) -> ServingResult:
    """As `serve`, on a replica for each of `engines`, to which `router` sends the requests; with `prefill` these only decode.

    Replicas that compute prompts are counted and numbered after those that decode. `expect` is told of requests before `paths`
    is asked for theirs, about in that order.
    """
    requests = tuple(requests)
    if len({request.request_id for request in requests}) < len(requests):
        raise ValueError("request ids must differ")
    each_alone = len(engines) > 1 and router == "round_robin" and prefill is None
    shares = _shares(requests, users, len(engines)) if each_alone else [(requests, users)]
    groups = [[engine] for engine in engines] if each_alone else [engines]
    replicas: list[Replica] = []
    transfers: TransferRecords | None = None
    with _no_search_for_cycles():
        for group, (theirs, theirs_users) in zip(groups, shares, strict=True):
            expect(theirs)
            fleet = _Fleet(group, paths, router, prefill, time_out_s, readable)
            fleet.serve(theirs, theirs_users, think_time_s)
            replicas += fleet.replicas
            transfers = None if fleet.ways is None else fleet.ways.records
            fleet.disband()
        result = _together(replicas, len(requests))
    if prefill is None:
        return result
    return replace(result, prefill_replicas=len(prefill.engines), transfers=transfers)


def _shares(requests: Sequence[Request], users: int | None, replicas: int) -> list[tuple[Sequence[Request], int | None]]:
    """(requests, users) of each replica under `round_robin`. One without users gets no requests."""
    if users is None:
        return [(theirs, None) for theirs in in_turn(requests, replicas)]
    active = max(min(replicas, users), 1)
    dealt = enumerate(in_turn(requests, active))
    return [(theirs, users // active + (index < users % active)) for index, theirs in dealt] + [((), None)] * (replicas - active)


@contextmanager
def _no_search_for_cycles() -> Iterator[None]:
    """A run leaves no reference cycles behind. Python's search for them would take a fifth of the time, over and over again
    through the requests to come and the records so far; what is left of a run it takes for long-lived, unsearched."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        if enabled:
            gc.enable()


class _Fleet:
    """Replicas on one clock and the loop that sends them requests."""

    def __init__(
        self,
        engines: Sequence[Engine],
        paths: Callable[[Request], AcceptanceByPosition],
        router: RouterName,
        prefill: Prefill | None,
        time_out_s: float | None,
        readable: bool,
    ):
        # A lone replica leaves nothing to choose.
        self.choose = None if len(engines) == 1 else _choice(router)
        self.env = env = Clock(initial_time=0.0)
        kind = Replica if readable else BookedReplica
        instant = None if self.choose is None and prefill is None else Instant(env, self._answered)
        everyone = [*engines, *(() if prefill is None else prefill.engines)]
        self.replicas = [
            kind(env, engine.rules, engine.pricer, paths, engine.num_speculative_tokens, instant) for engine in everyone
        ]
        self.ways: Disaggregation | None = None
        if prefill is not None and instant is not None:
            sides = self.replicas[len(engines) :], self.replicas[: len(engines)]
            choose = _choice(prefill.router), _choice(router)
            self.ways = Disaggregation(env, instant, prefill.transfer, *sides, choose)
        self._loop: OpenLoop | ClosedLoop | None = None
        for index, replica in enumerate(self.replicas):
            replica.request_done = partial(self._answered if instant is None else instant.over, index)
        if time_out_s is not None:
            patience = Patience(env, time_out_s)
            for index, replica in enumerate(self.replicas):
                replica.arrived = partial(patience.arrived, partial(self._given_up, index))

    def serve(self, requests: Sequence[Request], users: int | None, think_time_s: float) -> None:
        """Lets the requests come, each to its end. Where nothing follows an answer nobody is told of one."""
        submit = self._submit()
        self._loop = loop = (
            OpenLoop(self.env, requests, submit) if users is None else ClosedLoop(self.env, requests, submit, users, think_time_s)
        )
        if self.ways is None and not loop.heeds_answers:
            for replica in self.replicas:
                replica.request_done = lambda _: None
        if self.ways is None and self.choose is None:
            self.replicas[0].next_arrival_s = loop.next_arrival_s
        self.env.run()

    def disband(self) -> None:
        """After the run: what knows each other forgets each other, and goes with the last who knows it."""
        for replica in self.replicas:
            del replica.request_done, replica.arrived, replica.next_arrival_s
        self._loop = None
        self.replicas.clear()

    def _submit(self) -> Submit:
        """Where requests arrive."""
        replicas, choose = self.replicas, self.choose
        if self.ways is not None:
            return self.ways.submit
        return replicas[0].submit if choose is None else lambda request: replicas[choose(replicas, request)].submit(request)

    def _answered(self, replica: int, request_id: int) -> None:  # noqa: ARG002
        if self.ways is not None:
            self.ways.over(request_id)
        self._request_done(request_id)

    def _request_done(self, request_id: int) -> None:
        assert self._loop is not None
        self._loop.request_done(request_id)

    def _given_up(self, replica: int, sequence: SequenceState) -> None:
        if self.ways is not None:
            self.ways.give_up(sequence)
        else:
            self.replicas[replica].give_up(sequence)
        self._request_done(sequence.request_id)


def _choice(router: RouterName) -> Choose:
    return InTurn() if router == "round_robin" else CHOICES[router]


def _together(replicas: Sequence[Replica], requests: int) -> ServingResult:
    """All records by request, all steps by start."""
    for replica in replicas:
        replica.scheduler.settle_transfers()
    ended = sum(len(replica.records) for replica in replicas)
    held_blocks = sum(replica.scheduler.kv.used_blocks for replica in replicas)
    if ended != requests or held_blocks:
        raise RuntimeError(f"work was lost: {ended} of {requests} requests ended, {held_blocks} blocks held")
    if len(replicas) == 1:
        lone, steps = replicas[0], replicas[0].steps
        return ServingResult(lone.records.sorted_by_id(), steps, steps.term_seconds(), lone.statistics())
    records = RequestRecords.joined([replica.records for replica in replicas])
    parts = [replica.steps for replica in replicas]
    by_start = np.argsort(np.concatenate([part.column("start_s") for part in parts]), kind="stable")
    steps = StepRecords.joined(parts, by_start)
    numbers = np.arange(len(replicas), dtype=np.int32)
    by_id = np.argsort(records.column("request_id"), kind="stable")
    return ServingResult(
        records.take(by_id), steps, steps.term_seconds(), sum((each.statistics() for each in replicas), EngineStatistics()),
        len(replicas), np.repeat(numbers, [len(each.records) for each in replicas])[by_id],
        np.repeat(numbers, [len(part) for part in parts])[by_start],
    )  # fmt: skip
