"""The steps of the fast engine on their way into columns.

A span of rounds notes once what holds for all of them. What differs from round to round is not copied: it stands on the timeline,
which keeps its past until it is read here, some ten thousand rounds at a time. Terms of cost are then worked out for all rounds
of as many sequences and drafts together.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from simulator.serving.booking import BLOCKS, CONTEXT, CUT, EMITTED, LONGEST, MISSING_DRAFTS, WINDOWED, Timeline
from simulator.serving.record import Floats, StepRecord, StepRecords, Values, added_up

Terms = Iterable[tuple[str, float]]
# What stands on the timeline of each field, and with which sign it is added to what the span noted.
_ON_TIMELINE = {
    "context_tokens": ((CONTEXT, 1),),
    "rows": ((MISSING_DRAFTS, -1),),
    "drafted": ((MISSING_DRAFTS, -1),),
    "accepted": ((EMITTED, 1), (CUT, 1)),
    "emitted": ((EMITTED, 1),),
    "used_blocks": ((BLOCKS, 1),),
}
_STEP = Struct(f"{len(StepRecord._fields)}d")
_AT_ONCE = 1 << 16
# Places of names that a span adds come after those of its kind, and what has not appeared comes last.
_BEHIND_KIND = 1 << 16
_NOWHERE = (1 << 62, 0)


class RoundTerms(Protocol):
    """Named parts of the cost of rounds alike, from arrays."""

    def terms(self, context: Any, windowed: Any, longest: Any) -> list[tuple[str, Any]]: ...


class StepLog:
    """Takes spans and single steps in their order; `settle` moves them into `steps`."""

    def __init__(self, steps: StepRecords, timeline: Timeline, round_end_s: array[float]):
        self.steps, self._timeline, self._round_end_s = steps, timeline, round_end_s
        self._seconds = array("d")  # of every step
        # Of every span: its steps, whether they are rounds on the timeline, the fields of the first, one after the other, and
        # where their terms come from. Terms beside those are kept with the place of their span, which is one step.
        self._counts = array("i")
        self._booked = bytearray()
        self._noted = bytearray()
        self._kinds: list[RoundTerms | None] = []
        self._beside: list[tuple[int, Terms]] = []
        self._first = 0  # the first round that is not in the columns yet

    def __len__(self) -> int:
        return len(self.steps) + len(self._seconds)

    def add(
        self, seconds: Sequence[float] | Floats, booked: bool, step: tuple[float, ...], alike: RoundTerms | None, terms: Terms
    ) -> None:
        """Rounds that the timeline has passed if they were `booked`, or one step that does not stand on it.

        step: fields of the first `StepRecord`, without what stands on the timeline. terms: those beside the ones of `alike`.
        """
        append_to(self._seconds, seconds)
        if terms:
            self._beside.append((len(self._counts), terms))
        self._counts.append(len(seconds))
        self._booked.append(booked)
        self._noted += _STEP.pack(*step)
        self._kinds.append(alike)
        if len(self._seconds) >= _AT_ONCE:
            self.settle()

    def settle(self) -> None:
        """Moves everything into the columns, and lets the timeline forget it."""
        if not self._counts:
            return
        counts = np.array(self._counts)
        is_round = np.repeat(np.array(self._booked, dtype=np.bool_), counts)
        self.steps.extend(self._fields(counts, is_round), self._terms(counts, is_round))
        for noted in (self._kinds, self._beside, self._booked, self._noted, self._counts, self._seconds):
            del noted[:]
        self._first = self._timeline.now
        self._timeline.forget()

    def _fields(self, counts: NDArray[np.int32], is_round: NDArray[np.bool_]) -> dict[str, Values]:
        """Fields of `StepRecord`: one number a span where nothing on the timeline adds to it."""
        columns: dict[str, Values] = {}
        noted = np.array(np.frombuffer(self._noted)).reshape(len(counts), -1).T
        for name, values in zip(StepRecord._fields, noted, strict=True):
            columns[name] = Values(values, counts)
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
        kinds = list(dict.fromkeys(self._kinds))
        number = {kind: index for index, kind in enumerate(kinds)}
        kind_of_span = np.array([number[kind] for kind in self._kinds], dtype=np.int32)
        first_span = np.unique(kind_of_span, return_index=True)[1].tolist()
        appears: dict[str, tuple[int, int]] = {}  # in which span, and where there
        constant: dict[str, Floats] = {}  # by kind
        varying: dict[str, list[tuple[NDArray[np.int64], Floats]]] = {}  # of steps
        for kind, steps, found in self._by_kind(kinds, np.repeat(kind_of_span, counts), is_round):
            index = number[kind]
            for place, (name, seconds) in enumerate(found.items()):
                if name not in appears:  # kinds come in the order of their first spans
                    appears[name] = first_span[index], place
                    constant[name], varying[name] = np.zeros(len(kinds)), []
                if isinstance(seconds, np.ndarray):
                    varying[name].append((steps, seconds))
                else:
                    constant[name][index] = seconds
        beside: dict[str, list[tuple[list[int], Any]]] = {}  # of spans
        for names, (spans, of_spans) in self._named_alike().items():
            for place, (name, seconds) in enumerate(added_up(zip(names, of_spans, strict=True)).items(), _BEHIND_KIND):
                appears[name] = min(appears.get(name, _NOWHERE), (spans[0], place))
                beside.setdefault(name, []).append((spans, seconds))
        return {
            name: _column(constant.get(name), kind_of_span, counts, beside.get(name, ()), varying.get(name, ()))
            for name in sorted(appears, key=appears.__getitem__)
        }

    def _named_alike(self) -> dict[tuple[str, ...], tuple[list[int], Floats]]:
        """Spans with terms of the same names beside their kind's: names → places of the spans, seconds (names, spans)."""
        alike: dict[tuple[str, ...], tuple[list[int], list[tuple[float, ...]]]] = {}
        for span, terms in self._beside:
            names, seconds = zip(*terms, strict=True)
            spans, of_spans = alike.setdefault(names, ([], []))
            spans.append(span)
            of_spans.append(seconds)
        return {names: (spans, np.array(of_spans).T) for names, (spans, of_spans) in alike.items()}

    def _by_kind(
        self, kinds: list[RoundTerms | None], kind_of_step: NDArray[np.int32], is_round: NDArray[np.bool_]
    ) -> Iterator[tuple[RoundTerms, NDArray[np.int64], dict[str, Any]]]:
        """(kind, its steps, their terms) of each kind of rounds alike."""
        kind_of_round = kind_of_step[is_round]
        order = np.argsort(kind_of_round, kind="stable")
        steps = np.flatnonzero(is_round)[order]
        context, windowed, longest = (self._timeline.past(row, self._first)[order] for row in (CONTEXT, WINDOWED, LONGEST))
        ends = np.cumsum(np.bincount(kind_of_round, minlength=len(kinds))).tolist()
        for kind, first, last in zip(kinds, [0, *ends], ends, strict=False):
            if kind is not None:
                terms = kind.terms(context[first:last], windowed[first:last], longest[first:last])
                yield kind, steps[first:last], added_up(terms)


def _column(
    constant: Floats | None,
    kind_of_span: NDArray[np.int32],
    counts: NDArray[np.int32],
    beside: Iterable[tuple[list[int], Floats]],
    varying: Iterable[tuple[NDArray[np.int64], Floats]],
) -> Values:
    """One term: constant by kind, added to by spans of one step, and varying from round to round."""
    of_kinds = np.zeros(1 + kind_of_span.max()) if constant is None else constant
    if not (beside or varying):
        return Values(of_kinds, counts, kind_of_span)
    by_span = of_kinds[kind_of_span]
    for spans, seconds in beside:
        by_span[spans] += seconds
    if not varying:
        return Values(by_span, counts)
    every = np.repeat(by_span, counts)
    for steps, of_steps in varying:
        every[steps] += of_steps
    return Values(every)


def append_to(column: array[float], values: Sequence[float] | Floats) -> None:
    """Adds values at the end."""
    if isinstance(values, np.ndarray):
        column.frombytes(values.tobytes())
    else:
        column.extend(values)
