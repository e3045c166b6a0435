"""The steps of the fast engine on their way into columns.

A span of rounds notes once what holds for all of them. What differs from round to round is not copied: it stands on the timeline,
which keeps its past until it is read here, some ten thousand rounds at a time. Terms of cost are then worked out for all rounds
of as many sequences and drafts together.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from simulator.serving.booking import BLOCKS, CONTEXT, CUT, JUMPS, LONGEST, MISSING_DRAFTS, WINDOWED, Timeline
from simulator.serving.record import Floats, StepRecord, StepRecords, Values, added_up

Terms = Iterable[tuple[str, float]]
# What stands on the timeline of each field, and with which sign it is added to what the span noted.
_ON_TIMELINE = {
    "context_tokens": ((CONTEXT, 1),),
    "rows": ((MISSING_DRAFTS, -1),),
    "drafted": ((MISSING_DRAFTS, -1),),
    "accepted": ((JUMPS, 1),),
    "emitted": ((JUMPS, 1), (CUT, -1)),
    "used_blocks": ((BLOCKS, 1),),
}
_AT_ONCE = 1 << 16


class RoundTerms(Protocol):
    """Named parts of the cost of rounds alike, from arrays."""

    def terms(self, context: Any, windowed: Any, longest: Any) -> list[tuple[str, Any]]: ...


class _Span(NamedTuple):
    """Steps noted together: fields of the first, whether they are rounds on the timeline, and where their terms come from."""

    steps: int
    booked: bool
    step: tuple[float, ...]
    alike: RoundTerms | None
    terms: Terms  # of the one step, beside those of `alike`


class StepLog:
    """Takes spans and single steps in their order; `settle` moves them into `steps`."""

    def __init__(self, steps: StepRecords, timeline: Timeline, round_end_s: array[float]):
        self.steps, self._timeline, self._round_end_s = steps, timeline, round_end_s
        self._seconds = array("d")  # of every step
        self._spans: list[_Span] = []
        self._first = 0  # the first round that is not in the columns yet

    def __len__(self) -> int:
        return len(self.steps) + len(self._seconds)

    def add_step(self, step: StepRecord, terms: Terms) -> None:
        """A step that is not on the timeline."""
        self._seconds.append(step.seconds)
        self._spans.append(_Span(1, False, step, None, terms))

    def add_rounds(self, seconds: list[float] | Floats, step: tuple[float, ...], alike: RoundTerms | None, terms: Terms) -> None:
        """Rounds that the timeline has passed. `step`: fields of the first `StepRecord`, without what stands on the timeline."""
        append_to(self._seconds, seconds)
        self._spans.append(_Span(len(seconds), True, step, alike, terms))
        if len(self._seconds) >= _AT_ONCE:
            self.settle()

    def settle(self) -> None:
        """Moves everything into the columns, and lets the timeline forget it."""
        if not self._spans:
            return
        counts = np.array([span.steps for span in self._spans], dtype=np.int32)
        is_round = np.repeat([span.booked for span in self._spans], counts)
        self.steps.extend(self._fields(counts, is_round), self._terms(counts, is_round))
        self._spans.clear()
        del self._seconds[:]
        self._first = self._timeline.now
        self._timeline.forget()

    def _fields(self, counts: NDArray[np.int32], is_round: NDArray[np.bool_]) -> dict[str, Values]:
        """Fields of `StepRecord`: one number a span where nothing on the timeline adds to it."""
        columns: dict[str, Values] = {}
        noted = zip(*(span.step for span in self._spans), strict=True)
        for name, values in zip(StepRecord._fields, noted, strict=True):
            columns[name] = Values(np.array(values), counts)
            for row, sign in _ON_TIMELINE.get(name, ()):
                passed = self._timeline.past(row, self._first)
                if passed.any():
                    every = columns[name].of_steps()
                    every[is_round] += sign * passed
                    columns[name] = Values(every)
        start_s = np.zeros(len(is_round))
        ends = np.array(self._round_end_s[self._first :])
        start_s[is_round] = np.concatenate(([0.0], ends[:-1])) if len(ends) else ends
        start_s[np.cumsum(counts) - counts] = columns["start_s"].numbers
        return columns | {"start_s": Values(start_s), "seconds": Values(np.array(self._seconds))}

    def _terms(self, counts: NDArray[np.int32], is_round: NDArray[np.bool_]) -> dict[str, Values]:
        """Terms of the cost, in the order in which they first appear; one number a span where that is what the formulas give."""
        kinds = list(dict.fromkeys(span.alike for span in self._spans))
        number = {kind: index for index, kind in enumerate(kinds)}
        kind_of_span = np.array([number[span.alike] for span in self._spans], dtype=np.int32)
        constant: dict[str, Floats] = {}  # by kind
        varying: dict[str, list[tuple[NDArray[np.int64], Floats]]] = {}  # of steps
        names_of: dict[RoundTerms | None, list[str]] = {None: []}
        for kind, steps, found in self._by_kind(kinds, np.repeat(kind_of_span, counts), is_round):
            names_of[kind] = list(found)
            for name, seconds in found.items():
                if isinstance(seconds, np.ndarray):
                    varying.setdefault(name, []).append((steps, seconds))
                else:
                    constant.setdefault(name, np.zeros(len(kinds)))[number[kind]] = seconds
        beside: dict[str, list[tuple[int, float]]] = {}
        names: dict[str, None] = {}
        for index, span in enumerate(self._spans):
            names.update(dict.fromkeys(names_of.pop(span.alike, ())))
            if span.terms:
                for name, seconds in added_up(span.terms).items():
                    names[name] = None
                    beside.setdefault(name, []).append((index, seconds))
        return {
            name: _column(constant.get(name), kind_of_span, counts, beside.get(name, ()), varying.get(name, ())) for name in names
        }

    def _by_kind(
        self, kinds: list[RoundTerms | None], kind_of_step: NDArray[np.int32], is_round: NDArray[np.bool_]
    ) -> Iterator[tuple[RoundTerms, NDArray[np.int64], dict[str, Any]]]:
        """(kind, its steps, their terms) of each kind of rounds alike."""
        inputs = [self._timeline.past(row, self._first) for row in (CONTEXT, WINDOWED, LONGEST)]
        kind_of_round, step_of_round = kind_of_step[is_round], np.flatnonzero(is_round)
        order = np.argsort(kind_of_round, kind="stable")
        parts = np.split(order, np.cumsum(np.bincount(kind_of_round, minlength=len(kinds)))[:-1])
        for kind, rounds in zip(kinds, parts, strict=True):
            if kind is not None:
                yield kind, step_of_round[rounds], added_up(kind.terms(*(row[rounds] for row in inputs)))


def _column(
    constant: Floats | None,
    kind_of_span: NDArray[np.int32],
    counts: NDArray[np.int32],
    beside: Iterable[tuple[int, float]],
    varying: Iterable[tuple[NDArray[np.int64], Floats]],
) -> Values:
    """One term: constant by kind, added to by spans of one step, and varying from round to round."""
    of_kinds = np.zeros(1 + kind_of_span.max()) if constant is None else constant
    if not (beside or varying):
        return Values(of_kinds, counts, kind_of_span)
    by_span = of_kinds[kind_of_span]
    for span, seconds in beside:
        by_span[span] += seconds
    if not varying:
        return Values(by_span, counts)
    every = np.repeat(by_span, counts)
    for steps, of_steps in varying:
        every[steps] += of_steps
    return Values(every)


def append_to(column: array[float], values: list[float] | Floats) -> None:
    """Adds values at the end."""
    if isinstance(values, np.ndarray):
        column.frombytes(values.tobytes())
    else:
        column.extend(values)
