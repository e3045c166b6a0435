"""The fast engine: the readable engine's plan, price and commit, many rounds at a time.

Nothing that happens between two scheduling events is a surprise. Every decoding sequence takes part in every round, and
acceptance belongs to positions of its text, so once a sequence starts to decode, all its rounds are known: a round after p
emitted tokens moves it on by min(γ, run[p]) + 1, where run[p] is how many drafts in a row would be accepted there. It books
them (`booking`): context, blocks and emitted tokens of its rounds are added to a timeline shared by all sequences, two to four
slice additions whatever the batch. The sums of a coming round then stand on the timeline; pricing R rounds is arithmetic on a
slice (`alike`), and their ends are running sums. What is past stays there until it becomes records (`step_log`).

R is the horizon: the first end of a booking, the first round whose blocks exceed the pool, or the round in which the next
request arrives, whichever comes first. One event ends the span; none where nothing happens before its end but the arrivals that
it reckoned with (`clock`). An arrival that was not foreseen (a user's next request) cuts it at the end of the round in progress;
what lies beyond is forgotten, for it stands on the timeline still. A preempted sequence subtracts what is left of its booking. A
new γ books everyone anew. Prompts are planned by the readable scheduler beside the sums, one step at a time.

Whatever does not fit this is planned and committed sequence by sequence, as the readable engine does it, for as long as it
lasts: a token budget too small for every sequence, a lone sequence that outgrows the pool. Rounds in which sequences differ in
their drafts, and pricers to which sums say too little (the fullest of several ranks or microbatches sets the pace), keep their
bookings and are priced one round at a time from the list of sequences.
`EngineStatistics` counts both. Every plan holds at least one round, and the clock lands exactly on the ends of rounds, which
are summed in the order in which the readable engine sums them: records agree to the last bit.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import numpy as np
import simpy

from simulator.serving.booking import BLOCKS, CONTEXT, CUT, EMITTED, Booking, BookingScheduler
from simulator.serving.clock import Clock
from simulator.serving.instant import Instant
from simulator.serving.plan import StepPlan
from simulator.serving.policies import DraftPolicy
from simulator.serving.record import EngineStatistics, RequestRecords, StepRecords
from simulator.serving.replica import PricedStep, PricesSteps, Replica, StepPrice, accept, step_record, told
from simulator.serving.rules import BatchingRules
from simulator.serving.sequence import AcceptanceByPosition
from simulator.serving.step_log import RoundTerms, StepLog, append_to
from simulator.workload import Request

# A longer span would be priced again and again by arrivals that cut it.
LONGEST_SPAN = 4096
# Up to so many rounds are priced one by one, which is then faster than arrays are.
SHORT_SPAN = 32


class PricesRounds(RoundTerms, Protocol):
    """The cost of rounds of so many sequences that verify equally many drafts, by their contexts: those of all together, the same
    with each counted up to the pricer's window, and the longest.

    one: (seconds, what `prompts` wants to know of it, …), from numbers. many: the seconds of many, from arrays. each: those of
    one after the other. prompts: what chunks beside a round add.
    """

    @property
    def one(self) -> Callable[[int, int, int], tuple[float, ...]]: ...
    @property
    def many(self) -> Callable[..., Any]: ...
    @property
    def each(self) -> Callable[[list[list[int]]], list[float]]: ...
    @property
    def prompts(self) -> Callable[..., Sequence[tuple[str, float]]]: ...


class Span(NamedTuple):
    """Rounds under way: what they were planned as, when the first began, the seconds and the end of each, the cost's terms."""

    plan: StepPlan
    start_s: float
    seconds: Any  # a list, or an array
    end_s: Any
    alike: PricesRounds | None
    terms: Sequence[tuple[str, float]]  # beside those of `alike`


class BookedReplica(Replica):
    """One engine in simulated time that takes many rounds at once."""

    scheduler: BookingScheduler
    env: Clock

    def __init__(
        self,
        env: Clock,
        rules: BatchingRules,
        pricer: PricesSteps,
        paths: Callable[[Request], AcceptanceByPosition],
        num_speculative_tokens: Callable[[int], int],
        instant: Instant | None = None,
    ):
        super().__init__(env, rules, pricer, paths, num_speculative_tokens, instant)
        has_sums = getattr(pricer, "sums_suffice", True)
        self._alike: Callable[[int, int], PricesRounds | None] | None = getattr(pricer, "alike", None) if has_sums else None
        self.scheduler = BookingScheduler(rules, num_speculative_tokens, getattr(pricer, "window", None))
        self.records = RequestRecords(self.scheduler.round_end_s)
        self._log = StepLog(self._steps, self.scheduler.timeline, self.scheduler.round_end_s)
        self._span: Span | None = None
        self._rounds = 0  # of the span, less what an arrival cut off
        self._alarm: simpy.Event | None = None
        self._wakes = self._plain_steps = self._priced_singly = 0

    @property
    def steps(self) -> StepRecords:
        self._log.settle()
        return self._steps

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(self._wakes, len(self._log), self._plain_steps, self._priced_singly)

    # ------------------------------------------------------------------------------------------------------------- load

    @property
    def used_blocks(self) -> int:
        return self.scheduler.kv.used_blocks + self._more_blocks()

    def cached_tokens(self, request: Request) -> int:
        """What has given way to the blocks of rounds that are over is not there any more."""
        kv = self.scheduler.kv
        if kv.prefixes is not None:
            kv.prefixes.trim(kv.free_blocks - self._more_blocks())
        return super().cached_tokens(request)

    def _more_blocks(self) -> int:
        """Blocks that the round in progress holds beyond those of the first of its span, which the pool counts."""
        if self._span is None or self._rounds == 1:
            return 0
        timeline, over = self.scheduler.timeline, bisect_left(self._span.end_s, self.env.now, 0, self._rounds - 1)
        return timeline.next(BLOCKS, over + 1) - timeline.next(BLOCKS)

    # ------------------------------------------------------------------------------------------------------------ clock

    def _start(self) -> None:
        """Called by the base class: there is no process, the engine lives from event to event."""

    def _look_up(self) -> None:
        """A request has joined the queue, or is given up: wakes an idle engine, or ends the span with the round in progress."""
        if self._alarm is None:
            self._wake_at(self.env.now)
        elif self._span is not None and self._rounds > 1:
            end_s = self._span.end_s
            rounds = bisect_left(end_s, self.env.now, 0, self._rounds) + 1
            if rounds < self._rounds:
                self._rounds = rounds
                self._wake_at(float(end_s[rounds - 1]))

    def _wake_at(self, time_s: float) -> None:
        self._alarm = self.env.at(time_s, self._woken)

    def _woken(self, event: simpy.Event) -> None:
        if event is not self._alarm:
            return  # cut short since
        if self._span is not None:
            self._carry_out(self._span, self._rounds)
        if self.instant is None or self.instant.nothing_follows:
            self._begin()
        else:
            self._alarm = self.instant.steps_begin()
            self._alarm.callbacks.append(self._begin)

    def _begin(self, _: simpy.Event | None = None) -> None:
        """Plans and prices what comes next, span after span as long as nothing else happens before its end."""
        while True:
            self._wakes += 1
            plan = self._plan()
            if plan is None:
                self._alarm = None
                return
            self._span = span = self._priced(plan)
            ends_s, rounds = span.end_s, len(span.end_s)
            if rounds > 1:
                rounds = bisect_left(ends_s, self.next_arrival_s(), 0, rounds - 1) + 1
            self._rounds = rounds
            end_s = float(ends_s[rounds - 1])
            if self.instant is not None or not self.env.moved_on(end_s):
                self._wake_at(end_s)
                return
            self._carry_out(span, rounds)

    # ----------------------------------------------------------------------------------------------------------- price

    def _priced(self, plan: StepPlan) -> Span:
        """The plan for as many rounds as it holds."""
        timeline, start_s = self.scheduler.timeline, self.env.now
        switches = self._switches(plan)
        alike = None
        if self._alike is not None and timeline.now >= timeline.uneven_until and not plan.decode:
            alike = self._alike(plan.booked, self.scheduler.gamma if plan.booked else 0)
        if alike is not None and not (plan.prefill or plan.moved_blocks or switches):
            return self._rounds_alike(plan, alike)
        cost = self._price_singly(plan) if alike is None else self._mixed(plan, alike)
        cost = self._switched(self._swapped(plan, cost), switches)
        if not 0 < cost.seconds < math.inf:
            raise _no_time(cost.seconds, cost.seconds)
        return Span(plan, start_s, [cost.seconds], [start_s + cost.seconds], alike, cost.terms)

    def _rounds_alike(self, plan: StepPlan, alike: PricesRounds) -> Span:
        """Rounds of nothing but decoding, up to the horizon."""
        timeline, start_s = self.scheduler.timeline, self.env.now
        seconds: Any = alike.each([timeline.contexts_now()])
        end_s: Any
        rounds = self._horizon(plan, seconds[0])
        if rounds > SHORT_SPAN:
            seconds = alike.many(*timeline.contexts(rounds))
            if not isinstance(seconds, np.ndarray):  # a price that does not depend on the contexts: one number for all rounds
                seconds = np.full(rounds, seconds)
            ends = seconds.copy()
            ends[0] += start_s
            end_s, shortest_s = np.add.accumulate(ends), np.minimum.reduce(seconds)
        else:
            if rounds > 1:
                seconds += alike.each(timeline.contexts(rounds)[:, 1:].T.tolist())
            end_s, shortest_s = list(accumulate(seconds, initial=start_s))[1:], min(seconds)
        if not (shortest_s > 0 and end_s[-1] < math.inf):
            raise _no_time(shortest_s, max(seconds))
        return Span(plan, start_s, seconds, end_s, alike, ())

    def _mixed(self, plan: StepPlan, alike: PricesRounds) -> PricedStep:
        """One round with what the prompts add to it, which alone are the terms; or prompts alone."""
        contexts = self.scheduler.timeline.contexts_now() if plan.booked else (0, 0, 0)
        seconds, target_s = alike.one(*contexts)[:2]
        own: Sequence[tuple[str, float]] = () if plan.booked else alike.terms(*contexts)
        if not plan.prefill:
            return PricedStep(seconds, tuple(own))
        terms = alike.prompts(*contexts, target_s, plan.prefill, plan.prompts_finished, **told(plan))
        for _, more_s in terms:
            seconds += more_s
        return PricedStep(seconds, (*own, *terms))

    def _price_singly(self, plan: StepPlan) -> StepPrice:
        """From the list of sequences."""
        decode = plan.decode
        if plan.booked:
            self._priced_singly += 1
            now = self.scheduler.timeline.now
            decode = [s.booking.decode(now) for s in self.scheduler.running if s.booking is not None]
        return self.pricer.price(decode, plan.prefill, plan.prompts_finished, **told(plan))

    def _horizon(self, plan: StepPlan, first_s: float) -> int:
        """Rounds until something other than a round happens: the next arrival may come in the last of them, or before."""
        timeline = self.scheduler.timeline
        if plan.preempted or plan.slots_may_change or len(self.scheduler.running) > plan.booked:
            return 1
        rounds = min(timeline.first_end() - timeline.now, LONGEST_SPAN)
        if self._policy is not None and self._policy.looks_in < rounds:
            rounds = int(self._policy.looks_in)
        arrival_s = self.next_arrival_s()
        if first_s > 0 and arrival_s < math.inf:
            # As contexts grow, no later round is shorter: these reach the next arrival, if not the horizon.
            rounds = min(rounds, 1 + int((arrival_s - self.env.now) / first_s))
        kv = self.scheduler.kv
        most_blocks = kv.free_blocks + kv.booked_blocks
        if timeline.next(BLOCKS, rounds) > most_blocks:
            rounds = int(timeline.coming(BLOCKS, rounds).searchsorted(most_blocks, "right"))
        assert rounds > 0
        return rounds

    # ----------------------------------------------------------------------------------------------------------- commit

    def _carry_out(self, span: Span, rounds: int) -> None:
        """The first `rounds` rounds of a span have happened."""
        plan = span.plan
        self._span = None
        if plan.booked == 0:
            self._plain_steps += bool(plan.decode)
            accepted = accept(plan)
            emitted = self._commit(plan, accepted, span.start_s)
            step = step_record(plan, span.start_s, span.seconds[0], sum(accepted), emitted)
            self._log.add(span.seconds, False, step, None, span.terms)
            self._tell(plan, sum(accepted))
        else:
            self._commit_booked(span, rounds)
        if plan.prompts:
            self.scheduler.unbooked += [s for s in plan.prompts if s.decoding and not s.ended]

    def _commit_booked(self, span: Span, rounds: int) -> None:
        scheduler, plan, drafts = self.scheduler, span.plan, self.scheduler.gamma
        booked = plan.booked
        append_to(scheduler.round_end_s, span.end_s[:rounds])
        prompt_tokens, emitted = 0, 0 if drafts else booked
        if plan.prefill:
            emitted += self._commit(plan, [], span.start_s)
            prompt_tokens = sum([new_tokens for new_tokens, _ in plan.prefill])
        # Less what stands on the timeline.
        step = (
            span.start_s, 0.0, booked, 0, booked * (1 + drafts), booked * drafts, -booked if drafts else 0, emitted,
            len(plan.prefill), prompt_tokens, plan.prompts_finished, plan.preempted, plan.running, plan.waiting,
            plan.used_blocks - scheduler.kv.booked_blocks,
        )  # fmt: skip
        if self._policy is not None and self._policy.looks_in < math.inf:
            self._tell_booked(self._policy, rounds, booked)
        for booking in scheduler.advance(rounds):
            self._finish(booking)
        self._log.add(span.seconds[:rounds], True, step, span.alike, span.terms)

    def _tell_booked(self, policy: DraftPolicy, rounds: int, booked: int) -> None:
        """Lets a policy that looks know of the next rounds, which are about to be past."""
        timeline, drafts = self.scheduler.timeline, self.scheduler.gamma
        sequences = booked * rounds
        context, drafting, accepted = int(timeline.coming(CONTEXT, rounds).sum()), 0, 0
        if drafts:
            emitted, cut = (int(timeline.coming(row, rounds).sum()) for row in (EMITTED, CUT))
            drafting, accepted = sequences, emitted + cut - sequences
        if timeline.now < timeline.uneven_until:
            drafting = sum(booking.decode(timeline.now)[1] > 0 for booking in timeline.bookings.values())
        policy.done(rounds, drafts, sequences, context, drafting, accepted)

    def _finish(self, booking: Booking) -> None:
        """Records a sequence whose booking has ended."""
        sequence, rounds = booking.sequence, booking.end - booking.start
        if len(sequence.emission_s) == 1:
            booking.count(rounds)
            self._record(sequence, self.env.now, booking.start, booking.emitted)
        else:
            booking.settle(booking.end, self.scheduler.round_end_s)
            self._record(sequence, self.env.now)


def _no_time(shortest_s: float, longest_s: float) -> ValueError:
    return ValueError(f"a step must take a positive, finite time (got {shortest_s} to {longest_s} s)")
