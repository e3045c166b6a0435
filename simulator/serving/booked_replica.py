"""The fast engine: the readable engine's plan, price and commit, many rounds at a time.

Nothing that happens between two scheduling events is a surprise. Every decoding sequence takes part in every round, and
acceptance belongs to positions of its text, so once a sequence starts to decode, all its rounds are known: a round after p
emitted tokens moves it on by min(γ, run[p]) + 1, where run[p] is how many drafts in a row would be accepted there. It books
them (`booking`): context, blocks and emitted tokens of its rounds are added to timelines shared by all sequences, two to four
slice additions whatever the batch. The sums of a coming round then stand on the timeline; pricing R rounds is arithmetic on a
slice (`price_alike`), and their ends are running sums.

R is the horizon: the first end of a booking, or the first round whose blocks exceed the pool, whichever comes first. One event
ends the span. An arrival cuts it at the end of the round in progress; what lies beyond is forgotten, for it stands on the
timeline still. A preempted sequence subtracts what is left of its booking. A new γ books everyone anew. Prompts are planned by
the readable scheduler beside the sums, one step at a time.

Whatever does not fit this is planned and committed sequence by sequence, as the readable engine does it, for as long as it
lasts: a token budget too small for every sequence, a lone sequence that outgrows the pool. Rounds in which sequences differ in
their drafts, and pricers to which sums say too little (the fullest of several ranks or microbatches sets the pace), keep their
bookings and are priced one round at a time from the list of sequences.
`EngineStatistics` counts both. Every plan holds at least one round, and the clock lands exactly on the ends of rounds, which
are summed in the order in which the readable engine sums them: records agree to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
import simpy

from simulator.serving.arrivals import delay_until
from simulator.serving.booking import ACCEPTED, BLOCKS, CONTEXT, EMITTED, MISSING_DRAFTS, WINDOWED, Booking, BookingScheduler
from simulator.serving.record import EngineStatistics, RequestRecords
from simulator.serving.replica import Replica, StepCost, StepPricer, accept, request_row, step_record
from simulator.serving.scheduler import AcceptancePath, BatchingRules, StepPlan
from simulator.workload import Request

# A longer span would be priced again and again by arrivals that cut it.
LONGEST_SPAN = 4096


class Span(NamedTuple):
    """Rounds under way: what they were planned as, when the first began, the seconds and the end of each, the cost terms.

    A lone round has numbers where several have arrays.
    """

    plan: StepPlan
    start_s: float
    seconds: Any
    end_s: Any
    terms: tuple[tuple[str, Any], ...]

    def end_of(self, rounds: int) -> float:
        """When the first `rounds` rounds are over."""
        return float(self.end_s[rounds - 1]) if isinstance(self.end_s, np.ndarray) else cast(float, self.end_s)


class BookedReplica(Replica):
    """One engine in simulated time that takes many rounds at once."""

    scheduler: BookingScheduler

    def __init__(
        self,
        env: simpy.Environment,
        rules: BatchingRules,
        pricer: StepPricer,
        paths: Callable[[Request], AcceptancePath],
        num_speculative_tokens: Callable[[int], int],
    ):
        super().__init__(env, rules, pricer, paths, num_speculative_tokens)
        has_sums = getattr(pricer, "sums_suffice", True)
        self._price_alike: Callable[..., StepCost] | None = getattr(pricer, "price_alike", None) if has_sums else None
        self.scheduler = BookingScheduler(rules, num_speculative_tokens, getattr(pricer, "window", None))
        self.records = RequestRecords(self.scheduler.round_end_s)
        self._span: Span | None = None
        self._rounds = 0  # of the span, less what an arrival cut off
        self._alarm: simpy.Event | None = None
        self._wakes = self._plain_steps = self._priced_singly = 0

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(self._wakes, len(self.steps), self._plain_steps, self._priced_singly)

    # ------------------------------------------------------------------------------------------------------------ clock

    def _start(self) -> None:
        """Called by the base class: there is no process, the engine lives from event to event."""

    def _arrived(self) -> None:
        """A request has joined the queue: wakes an idle engine, or cuts the span at the end of the round in progress."""
        if self._alarm is None:
            self._wake_after(0.0)
        elif self._span is not None and self._rounds > 1:
            rounds = int(np.searchsorted(self._span.end_s[: self._rounds], self.env.now)) + 1
            if rounds < self._rounds:
                self._rounds = rounds
                self._wake_at(self._span.end_of(rounds))

    def _wake_at(self, time_s: float) -> None:
        self._wake_after(delay_until(time_s, self.env.now))

    def _wake_after(self, delay_s: float) -> None:
        self._alarm = self.env.timeout(delay_s)
        self._alarm.callbacks.append(self._woken)

    def _woken(self, event: simpy.Event) -> None:
        if event is not self._alarm:
            return  # cut short since
        if self._span is not None:
            end_s = self._span.end_of(self._rounds)
            if self.env.now < end_s:
                self._wake_at(end_s)
                return
            self._carry_out(self._span, self._rounds)
        self._wakes += 1
        plan = self.scheduler.plan()
        if plan is None:
            self._alarm = None
            return
        switches = self._switches(plan)
        self._rounds = rounds = self._horizon(plan) if plan.booked and not switches else 1
        assert rounds > 0
        self._span = self._priced(plan, rounds, switches)
        self._wake_at(self._span.end_of(rounds))

    # ----------------------------------------------------------------------------------------------------------- price

    def _priced(self, plan: StepPlan, rounds: int, switches: bool) -> Span:
        cost = self._price(plan, rounds)
        if switches:
            cost = self._with_switch(cost)
        start_s: float = self.env.now
        seconds: Any = cost.seconds
        if rounds == 1:
            shortest_s = longest_s = seconds
            end_s: Any = start_s + seconds
        else:
            # A price that does not depend on the contexts is one number for all rounds.
            spread = np.full(rounds, seconds)
            shortest_s, longest_s, seconds = float(spread.min()), float(spread.max()), spread
            ends = spread.copy()
            ends[0] += start_s
            end_s = np.add.accumulate(ends)
        if not (shortest_s > 0 and longest_s < math.inf):
            raise ValueError(f"a step must take a positive, finite time (got {shortest_s} to {longest_s} s)")
        return Span(plan, start_s, seconds, end_s, cost.terms)

    def _horizon(self, plan: StepPlan) -> int:
        """Rounds until something other than a round happens."""
        timeline = self.scheduler.timeline
        uneven = timeline.now < timeline.uneven_until
        if plan.prefill or plan.preempted or uneven or self._price_alike is None or len(self.scheduler.running) > plan.booked:
            return 1
        rounds = min(timeline.first_end() - timeline.now, LONGEST_SPAN)
        if self._policy is not None and self._policy.looks_in < rounds:
            rounds = int(self._policy.looks_in)
        blocks, most = timeline.row(BLOCKS, rounds), self.rules.total_blocks
        if blocks[-1] > most:
            rounds = int(np.searchsorted(blocks, most, "right"))
        return rounds

    def _price(self, plan: StepPlan, rounds: int) -> StepCost:
        timeline = self.scheduler.timeline
        if plan.booked == 0:
            return self.pricer.price(plan.decode, plan.prefill, plan.prompts_finished)
        if self._price_alike is None or timeline.now < timeline.uneven_until:
            self._priced_singly += 1
            decode = [s.booking.decode(timeline.now) for s in self.scheduler.running if s.booking is not None]
            return self.pricer.price(decode, plan.prefill, plan.prompts_finished)
        drafted = self.scheduler.gamma
        if rounds == 1:
            sums = timeline.at(CONTEXT), timeline.at(WINDOWED), int(timeline.longest_in(1)[0])
            return self._price_alike(plan.booked, drafted, *sums, plan.prefill, plan.prompts_finished)
        rows = timeline.row(CONTEXT, rounds), timeline.row(WINDOWED, rounds), timeline.longest_in(rounds)
        return self._price_alike(plan.booked, drafted, *rows)

    # ----------------------------------------------------------------------------------------------------------- commit

    def _carry_out(self, span: Span, rounds: int) -> None:
        """The first `rounds` rounds of a span have happened."""
        plan = span.plan
        self._span = None
        if plan.booked == 0:
            self._plain_steps += bool(plan.decode)
            accepted = accept(plan)
            emitted = self._commit(plan, accepted, span.start_s)
            self.steps.append(step_record(plan, span.start_s, span.seconds, sum(accepted), emitted), span.terms)
            self._tell(plan, sum(accepted))
        else:
            self._commit_booked(span, rounds)
        if plan.prompts:
            self.scheduler.unbooked += [s for s in plan.prompts if s.decoding and s.emitted < s.output_tokens]

    def _commit_booked(self, span: Span, rounds: int) -> None:
        timeline, plan, drafts = self.scheduler.timeline, span.plan, self.scheduler.gamma
        booked = plan.booked
        drafted = booked * drafts
        if timeline.now < timeline.uneven_until:
            drafted -= timeline.at(MISSING_DRAFTS)
        first_blocks = timeline.at(BLOCKS)
        accepted, emitted = 0, booked  # type: Any, Any
        if rounds == 1:
            start_s, end_s = span.start_s, span.end_of(1)  # type: Any, Any
            context, blocks = timeline.at(CONTEXT), first_blocks  # type: Any, Any
            if drafts:
                accepted, emitted = timeline.at(ACCEPTED), timeline.at(EMITTED)
            self.scheduler.round_end_s.append(end_s)
        else:
            end_s = span.end_s[:rounds]
            start_s = np.empty(rounds)
            start_s[0], start_s[1:] = span.start_s, end_s[:-1]
            context, blocks = timeline.row(CONTEXT, rounds).copy(), timeline.row(BLOCKS, rounds)
            if drafts:
                accepted, emitted = timeline.row(ACCEPTED, rounds).copy(), timeline.row(EMITTED, rounds).copy()
            self.scheduler.round_end_s.frombytes(end_s.tobytes())
        prompt_tokens = 0
        if plan.prefill:
            emitted = emitted + self._commit(plan, [], span.start_s)
            prompt_tokens = sum([new_tokens for new_tokens, _ in plan.prefill])
        step = (
            start_s, span.seconds, booked, context, booked + drafted, drafted, accepted, emitted, len(plan.prefill),
            prompt_tokens, plan.prompts_finished, plan.preempted, plan.running, plan.waiting,
            blocks + (plan.used_blocks - first_blocks),
        )  # fmt: skip
        self.steps.append(step, span.terms, rounds)
        if self._policy is not None and self._policy.looks_in < math.inf:
            drafting = booked * rounds if drafts else 0
            if timeline.now < timeline.uneven_until:
                drafting = sum(booking.decode(timeline.now)[1] > 0 for booking in timeline.bookings.values())
            self._policy.done(rounds, drafts, booked * rounds, int(np.sum(context)), drafting, int(np.sum(accepted)))
        for booking in self.scheduler.advance(rounds):
            self._finish(booking)

    def _finish(self, booking: Booking) -> None:
        """Records a sequence whose booking has ended."""
        sequence, rounds = booking.sequence, booking.end - booking.start
        if len(sequence.emission_s) == 1:
            booking.count(rounds)
            tokens = None if booking.emitted is None else booking.emitted.astype(np.uint8).tobytes()
            self.records.add(request_row(sequence, self.env.now, booking.start, tokens))
        else:
            booking.settle(booking.end, self.scheduler.round_end_s)
            self.records.add(request_row(sequence, self.env.now))
        self.request_done()
