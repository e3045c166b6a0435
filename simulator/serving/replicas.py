"""Several replicas on one clock behind a router; a lone one is the common case, and needs none.

Under `round_robin` replicas have nothing in common but the clock: requests are dealt in turn beforehand, and the users of a
closed loop belong to one replica each, evenly. The other routers choose as each request arrives, whoever sends it. Where prompts
are computed on replicas of their own (`disaggregation`), requests are dealt on both sides as they come there.
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
from simulator.serving.kv_transfer import KVTransfer
from simulator.serving.patience import Patience
from simulator.serving.record import EngineStatistics, RequestRecords, ServingResult, StepRecords
from simulator.serving.replica import Replica, StepPricer
from simulator.serving.router import CHOICES, Choose, InTurn, RouterName, in_turn
from simulator.serving.rules import BatchingRules
from simulator.serving.sequence import AcceptancePath, SequenceState
from simulator.workload import Request


class Engine(NamedTuple):
    """What one replica is. `num_speculative_tokens(running)`: drafts wanted per sequence at this number of running sequences; a
    policy that remembers belongs to one replica."""

    rules: BatchingRules
    pricer: StepPricer
    num_speculative_tokens: Callable[[int], int]


class Prefill(NamedTuple):
    """Engines that compute prompts for those that decode. They draft nothing, but take prompts in for the drafter too."""

    engines: Sequence[Engine]
    transfer: KVTransfer
    router: RouterName = "round_robin"


def serve_on_replicas(
    requests: Iterable[Request],
    engines: Sequence[Engine],
    paths: Callable[[Request], AcceptancePath],
    *,
    router: RouterName = "round_robin",
    prefill: Prefill | None = None,
    users: int | None = None,
    think_time_s: float = 0.0,
    time_out_s: float | None = None,
    readable: bool = False,
) -> ServingResult:
    """As `serve`, on a replica for each of `engines`, to which `router` sends the requests; with `prefill` these only decode.

    Replicas that compute prompts are counted and numbered after those that decode.
    """
    requests = tuple(requests)
    if len({request.request_id for request in requests}) < len(requests):
        raise ValueError("request ids must differ")
    fleet = _Fleet(engines, paths, router, prefill, time_out_s, readable)
    fleet.expect(requests, users, think_time_s)
    with _no_search_for_cycles():
        fleet.env.run()
        result = _together(fleet.replicas, len(requests))
        fleet.disband()
    if prefill is None or fleet.ways is None:
        return result
    return replace(result, prefill_replicas=len(prefill.engines), transfers=fleet.ways.records)


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
    """Replicas and the loops that send them requests."""

    def __init__(
        self,
        engines: Sequence[Engine],
        paths: Callable[[Request], AcceptancePath],
        router: RouterName,
        prefill: Prefill | None,
        time_out_s: float | None,
        readable: bool,
    ):
        # A lone replica leaves nothing to choose.
        self.choose = None if len(engines) == 1 or router == "round_robin" else CHOICES[router]
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
        self._loop_of: list[OpenLoop | ClosedLoop] = []  # by replica
        for index, replica in enumerate(self.replicas):
            replica.request_done = partial(self._answered if instant is None else instant.over, index)
        if time_out_s is not None:
            patience = Patience(env, time_out_s)
            for index, replica in enumerate(self.replicas):
                replica.arrived = partial(patience.arrived, partial(self._given_up, index))

    def expect(self, requests: Sequence[Request], users: int | None, think_time_s: float) -> None:
        """Lets the requests come. Where nothing follows an answer nobody is told of one."""
        self._make_loops(requests, users, think_time_s)
        if self.ways is None:
            for replica, loop in zip(self.replicas, self._loop_of, strict=False):
                if not loop.heeds_answers:
                    replica.request_done = lambda _: None

    def disband(self) -> None:
        """After the run: what knows each other forgets each other, and goes with the last who knows it."""
        for replica in self.replicas:
            del replica.request_done, replica.arrived, replica.next_arrival_s
        self._loop_of.clear()
        self.replicas.clear()

    def _make_loops(self, requests: Sequence[Request], users: int | None, think_time_s: float) -> None:
        replicas = self.replicas

        def loop(theirs: Sequence[Request], submit: Submit, theirs_users: int | None) -> OpenLoop | ClosedLoop:
            if theirs_users is None:
                return OpenLoop(self.env, theirs, submit)
            return ClosedLoop(self.env, theirs, submit, theirs_users, think_time_s)

        submit = self._entrance()
        if submit is not None:
            self._loop_of = [loop(requests, submit, users)] * len(replicas)
            return
        active = len(replicas) if users is None else max(min(len(replicas), users), 1)
        dealt = [requests] if active == 1 else in_turn(requests, active)
        for index, theirs in enumerate(dealt):
            share = None if users is None else users // active + (index < users % active)
            self._loop_of.append(loop(theirs, replicas[index].submit, share))
            replicas[index].next_arrival_s = self._loop_of[index].next_arrival_s

    def _entrance(self) -> Submit | None:
        """Where all requests arrive; None where they are dealt beforehand, and each replica has its own."""
        replicas, choose = self.replicas, self.choose
        if self.ways is not None:
            return self.ways.submit
        return None if choose is None else lambda request: replicas[choose(replicas, request)].submit(request)

    def _answered(self, replica: int, request_id: int) -> None:
        if self.ways is not None:
            self.ways.over(request_id)
        self._loop_of[replica].request_done(request_id)

    def _given_up(self, replica: int, sequence: SequenceState) -> None:
        if self.ways is not None:
            self.ways.give_up(sequence)
        else:
            self.replicas[replica].give_up(sequence)
        self._loop_of[replica].request_done(sequence.request_id)


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
