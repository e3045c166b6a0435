"""Sequences that have booked their future: each stands on a timeline of rounds, and the timeline holds their sums.

A booking is what one sequence has in its cache, holds in blocks, is given and emits in each of its rounds, known in advance
because acceptance belongs to positions of its text: a round at position p moves it on by min(γ, run[p]) + 1.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from simulator.serving.plan import StepPlan
from simulator.serving.rules import BatchingRules
from simulator.serving.scheduler import Scheduler
from simulator.serving.sequence import SequenceState

Integers = NDArray[np.int64]
# Rows of the timeline: sums over the sequences of a round, and one maximum. EMITTED counts the tokens of rounds with drafts, CUT
# those that were accepted past the end of an output.
CONTEXT, WINDOWED, LONGEST, BLOCKS, EMITTED, CUT, MISSING_DRAFTS = range(7)
ROWS = 7


class Booking:
    """The rounds `start` to `end` - 1 of one sequence under one γ.

    context, blocks, emitted, drafted: by round. `emitted` is None where nothing is drafted: each round is one token. `drafted` is
    None where every round has γ. `positions`: tokens emitted before each, and after the last were it not `cut` by so many.
    """

    __slots__ = (
        "blocks", "context", "cut", "drafted", "emitted", "end", "entry_blocks", "gamma", "positions", "rows", "sequence",
        "start",
    )  # fmt: skip

    def __init__(
        self, sequence: SequenceState, start: int, gamma: int, tables: Tables, entry_blocks: int, window: int | None,
        shared_blocks: int = 0,
    ):  # fmt: skip
        self.sequence, self.start, self.gamma, self.entry_blocks = sequence, start, gamma, entry_blocks
        self.positions: Integers | None = None
        self.emitted: Integers | None = None
        self.drafted: Integers | None = None
        self.cut = 0
        offset, output_tokens = sequence.prompt_tokens - 1, sequence.output_tokens
        if gamma == 0:
            begin, stop = offset + sequence.emitted, offset + output_tokens
            self.context, self.blocks = tables.counting(stop)[begin:stop], tables.blocks_at(gamma, stop)[begin:stop]
        else:
            self.positions, self.emitted, drafted = _rounds(sequence, gamma)
            self.cut = self.positions.item(-1) - output_tokens
            self.context = self.positions[:-1] + offset
            if drafted is None:
                self.blocks = tables.blocks_at(gamma, offset + output_tokens)[self.context]
            else:
                self.drafted = np.array(drafted, dtype=np.int64)
                self.blocks = np.maximum.accumulate(tables.blocks_for(gamma, self.context + 1 + self.drafted))
        if shared_blocks:
            self.blocks = self.blocks - shared_blocks
        if self.blocks.item(0) < entry_blocks:
            self.blocks = np.maximum(self.blocks, entry_blocks)
        self.end = start + len(self.context)
        self.rows: list[tuple[int, Integers]] = [(CONTEXT, self.context), (BLOCKS, self.blocks)]
        if window is not None:
            self.rows.append((WINDOWED, np.minimum(self.context, window)))
        if self.emitted is not None:
            self.rows.append((EMITTED, self.emitted))
        if self.drafted is not None:
            self.rows.append((MISSING_DRAFTS, gamma - self.drafted))

    def held_before(self, round_: int) -> int:
        """Blocks held as round `round_` is about to be planned."""
        return int(self.blocks[round_ - 1 - self.start]) if round_ > self.start else self.entry_blocks

    def decode(self, round_: int) -> tuple[int, int]:
        """(context tokens, drafts) in a round."""
        index = round_ - self.start
        return int(self.context[index]), self.gamma if self.drafted is None else int(self.drafted[index])

    def settle(self, until: int, round_end_s: array[float]) -> None:
        """Writes what happened in the rounds before `until` into the sequence, which then has no booking."""
        sequence, rounds = self.sequence, until - self.start
        sequence.booking = None
        if rounds == 0:
            return
        self.count(rounds)
        sequence.emission_s += round_end_s[self.start : until]
        emitted = np.ones(rounds, np.int64) if self.emitted is None else self.emitted[:rounds]
        tokens = int(emitted.sum())
        sequence.emission_tokens += array("i", emitted.tolist())
        sequence.emitted += tokens
        sequence.computed += tokens

    def count(self, rounds: int) -> None:
        """Adds the first `rounds` rounds to the sequence's counters."""
        sequence, positions = self.sequence, self.positions
        sequence.rounds += rounds
        if positions is None:
            return
        if self.drafted is None:
            sequence.draft_rounds += rounds
            sequence.drafted += rounds * self.gamma
        else:
            sequence.draft_rounds += int(np.count_nonzero(self.drafted[:rounds]))
            sequence.drafted += int(self.drafted[:rounds].sum())
        sequence.accepted += positions.item(rounds) - positions.item(0) - rounds


def _rounds(sequence: SequenceState, gamma: int) -> tuple[Integers, Integers, list[int] | None]:
    """Tokens emitted before each round to come and after the last, and in each; and the drafts of each, None where all have γ."""
    path, position, output = sequence.path, sequence.emitted, sequence.output_tokens
    at_once = getattr(path, "all_rounds", None)
    rounds = at_once(position, output, gamma) if at_once is not None and sequence.longest_output - output >= gamma else None
    if rounds is not None:
        return (*rounds, None)
    starts, drafted = [position], []
    while position < output:
        drafts = min(path.proposed(position, gamma), sequence.longest_output - position - 1)
        drafted.append(drafts)
        position += 1 + sequence.accept(drafts, position)
        starts.append(position)
    emitted = np.diff(np.minimum(starts, output))
    return np.array(starts), emitted, None if all(drafts == gamma for drafts in drafted) else drafted


class Tables:
    """Numbers by context that every booking shares: 0, 1, 2, … and the blocks that a round at this context needs."""

    def __init__(self, rules: BatchingRules):
        self._rules = rules
        self._counting: Integers = np.arange(1024)
        self._blocks: dict[int, Integers] = {}

    def counting(self, length: int) -> Integers:
        if length > len(self._counting):
            self._counting = np.arange(2 * length)
        return self._counting

    def blocks_at(self, gamma: int, length: int) -> Integers:
        """blocks[context] for rounds of γ drafts, at least `length` of them."""
        found = self._blocks.get(gamma)
        if found is None or length > len(found):
            found = self._blocks[gamma] = self.blocks_for(gamma, np.arange(max(2 * length, 1024)) + 1 + gamma)
        return found

    def blocks_for(self, gamma: int, tokens: Integers) -> Integers:
        """Blocks of a sequence with so many tokens in the cache and γ's lookahead."""
        slots = np.minimum(tokens + self._rules.lookahead_slots(gamma), self._rules.max_model_len)
        return -(-slots // self._rules.block_tokens) + self._rules.state_blocks


class Timeline:
    """Sums over all bookings, by round. It keeps the rounds that are past until it is told to forget them.

    LONGEST is a maximum, so that taking the longest booking away computes it anew.
    """

    def __init__(self, tables: Tables, window: int | None):
        self.tables, self.window = tables, window
        self.now = 0  # the next round
        self._hold(np.zeros((ROWS, 4096), dtype=np.int64))
        self.origin = 0  # the round of column 0
        self.uneven_until = 0  # from this round on every sequence has γ drafts
        self.bookings: dict[int, Booking] = {}
        self._ends: list[tuple[int, int, Booking]] = []
        self._serial = 0

    def _hold(self, rows: Integers) -> None:
        self.rows, self._by_row = rows, list(rows)

    def add(self, sequence: SequenceState, gamma: int, held_blocks: int, shared_blocks: int = 0) -> None:
        """Books a sequence that holds `held_blocks` of its own behind `shared_blocks` of the prefix cache."""
        booking = Booking(sequence, self.now, gamma, self.tables, held_blocks, self.window, shared_blocks)
        sequence.booking = booking
        self.bookings[sequence.request_id] = booking
        self._serial += 1
        heapq.heappush(self._ends, (booking.end, self._serial, booking))
        self._make_room(booking.end)
        first, last = booking.start - self.origin, booking.end - self.origin
        for row, values in booking.rows:
            sums = self._by_row[row][first:last]
            sums += values
        if booking.cut:
            self.rows[CUT, last - 1] += booking.cut
        longest = self._by_row[LONGEST][first:last]
        np.maximum(longest, booking.context, out=longest)
        if booking.drafted is not None:
            self.uneven_until = max(self.uneven_until, booking.end)

    def remove(self, booking: Booking) -> None:
        """Takes the rounds still to come of a booking away. The sequence keeps what it has done: settle it first."""
        del self.bookings[booking.sequence.request_id]
        done = self.now - booking.start
        first, last = self.now - self.origin, booking.end - self.origin
        for row, values in booking.rows:
            self.rows[row, first:last] -= values[done:]
        self.rows[CUT, last - 1] -= booking.cut
        if not (self.rows[LONGEST, first:last] == booking.context[done:]).any():
            return  # others are longer
        self.rows[LONGEST, first:last] = 0
        for other in self.bookings.values():
            end = min(other.end, booking.end)
            if end > self.now:
                longest = self.rows[LONGEST, first : end - self.origin]
                np.maximum(longest, other.context[self.now - other.start : end - other.start], out=longest)

    def clear(self) -> None:
        """Takes every booking away."""
        self.bookings.clear()
        self._ends.clear()
        self.rows[:, self.now - self.origin :] = 0
        self.uneven_until = 0

    def first_end(self) -> int:
        """The round by which the first sequence has finished."""
        ends = self._ends
        while ends[0][2].sequence.booking is not ends[0][2]:
            heapq.heappop(ends)
        return ends[0][0]

    def pop_finished(self) -> list[Booking]:
        """Bookings that ended by now."""
        finished = []
        while self._ends and self._ends[0][0] <= self.now:
            booking = heapq.heappop(self._ends)[2]
            if booking.sequence.booking is booking:
                del self.bookings[booking.sequence.request_id]
                finished.append(booking)
        return finished

    def coming(self, row: int, rounds: int) -> Integers:
        """A row over the next `rounds` rounds."""
        first = self.now - self.origin
        return self.rows[row, first : first + rounds]

    def contexts(self, rounds: int) -> Integers:
        """The next rounds' contexts, (3, rounds): CONTEXT, WINDOWED and LONGEST."""
        first = self.now - self.origin
        return self.rows[: LONGEST + 1, first : first + rounds]

    def contexts_now(self) -> list[int]:
        """Those of the next round."""
        column, item = self.now - self.origin, self.rows.item
        return [item(CONTEXT, column), item(WINDOWED, column), item(LONGEST, column)]

    def next(self, row: int, rounds: int = 1) -> int:
        """A row in the last of the next `rounds` rounds."""
        return self.rows.item(row, self.now - self.origin + rounds - 1)

    def past(self, row: int, first: int) -> Integers:
        """A row over the rounds from `first` to the last one that is past."""
        return self.rows[row, first - self.origin : self.now - self.origin]

    def forget(self) -> None:
        """Lets the rounds go that are past."""
        past = self.now - self.origin
        last = max([booking.end for booking in self.bookings.values()], default=self.now) - self.origin
        self.rows[:, : last - past] = self.rows[:, past:last]
        self.rows[:, last - past : last] = 0  # nothing stands beyond
        self.origin = self.now

    def _make_room(self, end: int) -> None:
        """Makes columns up to round `end`."""
        width = self.rows.shape[1]
        if end - self.origin > width:
            rows = np.zeros((ROWS, 2 * (end - self.origin)), dtype=np.int64)
            rows[:, :width] = self.rows
            self._hold(rows)


class BookingScheduler(Scheduler):
    """The scheduler, with decoding sequences taken together from their timeline wherever that comes to the same plan.

    It does not where the token budget or a lone sequence's blocks run out, while the host keeps blocks of a sequence, and where
    blocks run out under prefix caching, as it matters then in which order they are taken: those steps are planned sequence by
    sequence.
    """

    def __init__(self, rules: BatchingRules, num_speculative_tokens: Callable[[int], int], window: int | None):
        super().__init__(rules, num_speculative_tokens)
        self.timeline = Timeline(Tables(rules), window)
        self.round_end_s = array("d")
        self.unbooked: list[SequenceState] = []  # decoding, or were
        self.gamma = 0

    def _begin_plan(self) -> StepPlan:
        plan = super()._begin_plan()
        if self.free_host_blocks < self.rules.host_blocks:
            self.unbook_all()
        else:
            self._book(plan.num_speculative_tokens)
        return plan

    def _book(self, gamma: int) -> None:
        """Puts decoding sequences on the timeline, unless their rounds might exceed the token budget anyway."""
        timeline, kv = self.timeline, self.kv
        if gamma != self.gamma and len(timeline.bookings):
            self.unbook_all()
        self.gamma = gamma
        if not self.unbooked:
            return
        waiting = [s for s in self.unbooked if s.booking is None and s.decoding and not s.ended]
        if (len(timeline.bookings) + len(waiting)) * (1 + gamma) > self.rules.max_num_batched_tokens:
            self.unbooked = waiting
            self.unbook_all()
            return
        for sequence in self._in_order(waiting):
            shared_blocks = kv.shared_blocks.get(sequence.request_id, 0)
            timeline.add(sequence, gamma, kv.count_together(sequence.request_id), shared_blocks)
        self.unbooked = []

    def _in_order(self, sequences: list[SequenceState]) -> list[SequenceState]:
        """In the order of running, in which they come after all that stand on the timeline, each once: answers that end with one
        step are told in that order."""
        if len(sequences) < 2:
            return sequences
        wanted = set(sequences)
        found = [sequence for sequence in self.running[len(self.timeline.bookings) :] if sequence in wanted]
        assert len(found) == len(wanted)
        return found

    def unbook_all(self) -> None:
        """Back to sequence by sequence."""
        for booking in self.timeline.bookings.values():
            self._settle(booking)
            self.unbooked.append(booking.sequence)
        self.timeline.clear()

    def _settle(self, booking: Booking) -> None:
        sequence, held = booking.sequence, booking.held_before(self.timeline.now)
        booking.settle(self.timeline.now, self.round_end_s)
        self.kv.count_alone(sequence.request_id, held)
        sequence.kv_tokens = self.kv.tokens_of(sequence.request_id)

    def _schedule_running(self, plan: StepPlan, decode: bool, index: int = 0) -> None:
        timeline, running = self.timeline, self.running
        booked = len(timeline.bookings)
        if booked < len(running) and booked and any(sequence.booking is not None for sequence in running[booked:]):
            self.unbook_all()  # an unfinished prompt stands before a decoding sequence
        elif booked and not decode:
            index = booked
        elif booked and not self._schedule_booked(plan):
            self.unbook_all()
        elif booked:
            index = plan.booked
        super()._schedule_running(plan, decode, index)

    def _schedule_booked(self, plan: StepPlan) -> bool:
        """Gives every booked sequence its tokens and blocks for the next round, preempting from the youngest down.

        False, with nothing given yet, where that must be done one by one. Preempting until the rest fits leaves the same
        sequences as preempting in their order does: the blocks of a sequence never shrink.
        """
        timeline, kv = self.timeline, self.kv
        while True:
            booked = len(timeline.bookings)
            if booked == 0:
                return False
            rows = booked * (1 + self.gamma)
            if timeline.now < timeline.uneven_until:
                rows -= timeline.next(MISSING_DRAFTS)
            if rows > plan.budget:
                return False
            blocks = timeline.next(BLOCKS)
            if blocks <= kv.free_blocks + kv.booked_blocks:
                break
            if len(self.running) == 1 or kv.prefixes is not None:
                return False
            self._preempt(self.running.pop())
            plan.preempted += 1
        kv.book(blocks)
        plan.budget -= rows
        plan.booked = booked
        return True

    def _preempt(self, sequence: SequenceState) -> None:
        booking = sequence.booking
        if booking is not None:
            self._settle(booking)
            self.timeline.remove(booking)
        super()._preempt(sequence)

    def _admitted_for(self) -> Iterable[SequenceState]:
        admitted = super()._admitted_for()
        return admitted if self.rules.admission == "whole_request" else tuple(admitted)[len(self.timeline.bookings) :]

    def _swap_in(self, plan: StepPlan, sequence: SequenceState) -> bool:
        if not super()._swap_in(plan, sequence):
            return False
        self.unbooked.append(sequence)
        return True

    def _join(self, sequence: SequenceState) -> None:
        super()._join(sequence)
        if sequence.decoding:
            self.unbooked.append(sequence)

    def drop_cancelled(self) -> list[SequenceState]:
        for sequence in self.cancelled:
            if sequence.booking is not None:
                booking = sequence.booking
                self._settle(booking)
                self.timeline.remove(booking)
        return super().drop_cancelled()

    def advance(self, rounds: int) -> list[Booking]:
        """Lets `rounds` rounds pass. Returns the bookings that ended; their blocks are free again."""
        timeline, kv = self.timeline, self.kv
        if rounds > 1:
            kv.book(timeline.next(BLOCKS, rounds))
        timeline.now += rounds
        finished = timeline.pop_finished()
        for booking in finished:
            sequence = booking.sequence
            kv.count_alone(sequence.request_id, booking.blocks.item(-1))
            if sequence.runs:
                kv.publish(sequence.request_id, sequence.runs, sequence.prompt_tokens + sequence.output_tokens - 1)
            kv.release(sequence.request_id)
            self.running.remove(sequence)
            sequence.booking, sequence.ended = None, True
        return finished
