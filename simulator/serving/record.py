"""What happened: one record per request, one row per engine step. Times are simulated seconds from the start of the run.

Both are kept as columns, so that a million requests stay small; a row becomes an object when it is asked for.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from simulator.serving.kv_transfer import TransferRecords
from simulator.serving.sequence import SequenceState

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """The life of one request. Times are None where it was rejected on arrival (`rejected` then says why).

    `cancelled_s`: when the client gave up waiting, None where it did not; there is then no `finish_s`, and what was emitted by
    the end of the step in progress stands in the bursts. `cached_tokens`: tokens of its prompt that were found in the prefix
    cache, over all its admissions. `swaps`: those of its preemptions that moved its blocks to the host instead of dropping them.
    `rounds` counts the decode passes it took part in, `draft_rounds` those with at least one draft (vLLM's `num_drafts`).
    `accepted` counts accepted drafts as engines do: before the last round is cut at `output_tokens`.
    `emission_s` and `emission_tokens` hold the time and size of every burst of tokens.
    """

    request_id: int
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    finish_s: float | None = None
    rounds: int = 0
    draft_rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    preemptions: int = 0
    rejected: str = ""
    emission_s: array[float] = field(default_factory=lambda: array("d"))
    emission_tokens: array[int] = field(default_factory=lambda: array("i"))
    cached_tokens: int = 0
    swaps: int = 0
    cancelled_s: float | None = None

    @property
    def queueing_s(self) -> float | None:
        """From arrival to the start of the first step that worked on it."""
        return None if self.first_scheduled_s is None else self.first_scheduled_s - self.arrival_s

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token, from arrival."""
        return None if self.first_token_s is None else self.first_token_s - self.arrival_s

    @property
    def e2e_latency_s(self) -> float | None:
        """From arrival to the last token."""
        return None if self.finish_s is None else self.finish_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first, (end to end - TTFT) / (tokens - 1); None for one-token outputs."""
        if self.finish_s is None or self.first_token_s is None or self.output_tokens < 2:
            return None
        return (self.finish_s - self.first_token_s) / (self.output_tokens - 1)

    @property
    def itl_s(self) -> Floats:
        """Times between bursts, (bursts - 1,): a round's tokens reach the user together."""
        return np.diff(np.array(self.emission_s, dtype=np.float64))


_TIMES = ("arrival_s", "first_scheduled_s", "first_token_s", "finish_s", "cancelled_s")
_COUNTS = (
    "request_id", "prompt_tokens", "output_tokens", "rounds", "draft_rounds", "drafted", "accepted", "preemptions",
    "cached_tokens", "swaps",
)  # fmt: skip
# Fields that a sequence calls by the same name.
_OF_SEQUENCES = ("arrival_s", *_COUNTS)
# How each number of a request is kept: tokens and rounds of one request are far below 2³¹, as rounds of a replica are.
_KINDS = dict.fromkeys(_TIMES, "d") | dict.fromkeys((*_COUNTS, "first_round"), "i") | {"request_id": "q", "burst_at": "q"}
_BATCH = 1024


class RequestRecords(Sequence[RequestRecord]):
    """The records of a run. Numbers are columns (`column`); bursts are kept by request, or as a stretch of rounds.

    `round_end_s`: when each round of the replica ended.
    """

    def __init__(self, round_end_s: array[float] | None = None) -> None:
        self.round_end_s = array("d") if round_end_s is None else round_end_s
        self._columns = {name: array(kind) for name, kind in _KINDS.items()}  # type: dict[str, array[Any]]
        self._pending: list[tuple[SequenceState, float, int, Integers | None]] = []
        self._burst_tokens = bytearray()
        self._own_bursts: dict[int, tuple[array[float], array[int]]] = {}
        self._rejected: dict[int, str] = {}
        self._order: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, records: Iterable[RequestRecord]) -> RequestRecords:
        """The given records in their order."""
        if isinstance(records, RequestRecords):
            return records
        table = cls()
        for record in records:
            table.append(record)
        return table

    @classmethod
    def joined(cls, parts: Sequence[RequestRecords]) -> RequestRecords:
        """All records of several replicas, part after part."""
        whole = cls()
        for part in parts:
            part._settle()
            first, first_round, burst_at = len(whole._columns["arrival_s"]), len(whole.round_end_s), len(whole._burst_tokens)
            begins = {"first_round": first_round, "burst_at": burst_at}
            order = np.arange(len(part)) if part._order is None else part._order
            for name, column in whole._columns.items():
                values = np.array(part._columns[name])[order]
                if name in begins:
                    values[values >= 0] += begins[name]  # less than 0 is none
                column.frombytes(values.tobytes())
            whole.round_end_s += part.round_end_s
            whole._burst_tokens += part._burst_tokens
            for index, row in enumerate(order.tolist()):
                if row in part._own_bursts:
                    whole._own_bursts[first + index] = part._own_bursts[row]
                if row in part._rejected:
                    whole._rejected[first + index] = part._rejected[row]
        return whole

    def append(self, record: RequestRecord) -> None:
        """Adds a record."""
        self._settle()
        place = len(self)
        values = {name: getattr(record, name) for name in (*_TIMES, *_COUNTS)} | {"first_round": -1, "burst_at": -1}
        for name, value in values.items():
            self._columns[name].append(math.nan if value is None else value)
        if record.emission_s:
            self._own_bursts[place] = record.emission_s, record.emission_tokens
        if record.rejected:
            self._rejected[place] = record.rejected

    def add(self, sequence: SequenceState, finish_s: float, first_round: int = -1, burst_tokens: Integers | None = None) -> None:
        """Adds the record of a sequence that is over, and must not change any more.

        With `first_round` its bursts after the first are the replica's rounds from that number on, of `burst_tokens` each; None:
        one token each. One that was given up has no finish, also where its last token came in the step in which that happened.
        """
        self._pending.append((sequence, finish_s, first_round, burst_tokens))
        if len(self._pending) == _BATCH:
            self._settle()

    def _settle(self) -> None:
        """Moves what is pending into the columns."""
        if not self._pending:
            return
        columns, place, at = self._columns, len(self._columns["arrival_s"]), len(self._burst_tokens)
        sequences, finish_s, first_round, bursts = zip(*self._pending, strict=True)
        self._pending.clear()
        for name in _OF_SEQUENCES:
            columns[name].extend(map(attrgetter(name), sequences))
        for name in ("first_scheduled_s", "cancelled_s"):
            columns[name].extend([math.nan if time_s is None else time_s for time_s in map(attrgetter(name), sequences)])
        columns["first_token_s"].extend([s.emission_s[0] if s.emission_s else math.nan for s in sequences])
        given_up = [sequence.cancelled_s is not None for sequence in sequences]
        columns["finish_s"].extend(map(lambda time_s, gone: math.nan if gone else time_s, finish_s, given_up))
        columns["first_round"].extend(first_round)
        for index, (sequence, first, tokens) in enumerate(zip(sequences, first_round, bursts, strict=True), place):
            columns["burst_at"].append(-1 if tokens is None else at)
            at += 0 if tokens is None else len(tokens)
            if first < 0 and sequence.emission_s:
                self._own_bursts[index] = sequence.emission_s, sequence.emission_tokens
        self._burst_tokens += np.concatenate([np.empty(0, np.int64), *(t for t in bursts if t is not None)]).astype(np.uint8).data

    def sorted_by_id(self) -> RequestRecords:
        """The same records in the order of their ids."""
        return self.take(np.argsort(self.column("request_id"), kind="stable"))

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> RequestRecords:
        """Some of the records, or all in another order; what they hold is shared."""
        self._settle()
        order = np.arange(len(self)) if self._order is None else self._order
        taken = RequestRecords.__new__(RequestRecords)
        taken.__dict__.update(self.__dict__)
        taken._order = order[rows]
        return taken

    def column(self, name: str) -> NDArray[Any]:
        """One number of every record, (records,): times as floats, NaN where there is none; counts as integers."""
        self._settle()
        values = np.array(self._columns[name], dtype=np.float64 if name in _TIMES else np.int64)
        return values if self._order is None else values[self._order]

    @property
    def queueing_s(self) -> Floats:
        """As of each record, (records,); NaN for None, here and below."""
        return self._span_s("arrival_s", "first_scheduled_s")

    @property
    def ttft_s(self) -> Floats:
        return self._span_s("arrival_s", "first_token_s")

    @property
    def e2e_latency_s(self) -> Floats:
        return self._span_s("arrival_s", "finish_s")

    @property
    def tpot_s(self) -> Floats:
        tokens = self.column("output_tokens") - 1
        found: Floats = np.full(len(tokens), math.nan)
        np.divide(self._span_s("first_token_s", "finish_s"), tokens, out=found, where=tokens > 0)
        return found

    def _span_s(self, begin: str, end: str) -> Floats:
        seconds: Floats = self.column(end) - self.column(begin)
        return seconds

    def served_by_arrival(self) -> RequestRecords:
        """Those that finished, in order of arrival."""
        order = np.lexsort((self.column("request_id"), self.column("arrival_s")))
        return self.take(order[~np.isnan(self.column("finish_s")[order])])

    def admitted_by_arrival(self) -> RequestRecords:
        """Those that were not rejected, in order of arrival: they finished or were given up."""
        order = np.lexsort((self.column("request_id"), self.column("arrival_s")))
        over = ~np.isnan(self.column("finish_s")) | ~np.isnan(self.column("cancelled_s"))
        return self.take(order[over[order]])

    def __len__(self) -> int:
        return len(self._columns["arrival_s"]) + len(self._pending) if self._order is None else len(self._order)

    @overload
    def __getitem__(self, index: int) -> RequestRecord: ...
    @overload
    def __getitem__(self, index: slice) -> RequestRecords: ...
    def __getitem__(self, index: int | slice) -> RequestRecord | RequestRecords:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        self._settle()
        row = index % len(self) if self._order is None else int(self._order[index])
        values: dict[str, Any] = {name: self._columns[name][row] for name in (*_TIMES, *_COUNTS)}
        values |= {name: None for name in _TIMES if math.isnan(values[name])}
        seconds, tokens = self._bursts(row)
        return RequestRecord(**values, rejected=self._rejected.get(row, ""), emission_s=seconds, emission_tokens=tokens)

    def __iter__(self) -> Iterator[RequestRecord]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return f"({', '.join(map(repr, self))})"

    def rejections(self) -> list[str]:
        """Why, for every record that was rejected."""
        self._settle()
        if not self._rejected:
            return []
        rows = range(len(self)) if self._order is None else self._order.tolist()
        return [self._rejected[row] for row in rows if row in self._rejected]

    def _bursts(self, row: int) -> tuple[array[float], array[int]]:
        first = self._columns["first_round"][row]
        if first < 0:
            return self._own_bursts.get(row, (array("d"), array("i")))
        count, at = self._columns["rounds"][row], self._columns["burst_at"][row]
        seconds = array("d", (self._columns["first_token_s"][row],)) + self.round_end_s[first : first + count]
        tokens = self._burst_tokens[at : at + count] if at >= 0 else b"\1" * count
        return seconds, array("i", (1, *tokens))

    def gaps_s(self) -> tuple[Floats, NDArray[np.int32]]:
        """Times between bursts of all records, and how often each occurs."""
        first, count, first_token_s = self.column("first_round"), self.column("rounds"), self.column("first_token_s")
        order = np.arange(len(self)) if self._order is None else self._order
        own = [np.diff(np.array(self._own_bursts[row][0])) for row in order[first < 0].tolist() if row in self._own_bursts]
        loose = np.concatenate([np.empty(0), *own])
        staged = (first >= 0) & (count > 0)
        first, count, begin_s = first[staged], count[staged], first_token_s[staged]
        ends = np.frombuffer(self.round_end_s)
        # A gap between two rounds occurs once for every record that took part in both.
        shared = np.zeros(len(ends), dtype=np.int32)
        np.add.at(shared, first, 1)
        np.subtract.at(shared, first + count - 1, 1)
        np.cumsum(shared, out=shared)
        between = np.flatnonzero(shared)
        seconds = np.concatenate((loose, ends[first] - begin_s, ends[between + 1] - ends[between]))
        times = np.concatenate((np.ones(len(loose) + len(first), dtype=np.int32), shared[between]))
        return seconds, times


class StepRecord(NamedTuple):
    """One engine step. Running, waiting and blocks are as it starts; `emitted` includes first tokens of prompts."""

    start_s: float
    seconds: float
    decode_sequences: int
    context_tokens: int  # in the KV cache before the step, summed over the decoding sequences
    rows: int  # decode query rows: 1 + drafted, summed over the decoding sequences
    drafted: int
    accepted: int
    emitted: int
    prefill_sequences: int
    prefill_tokens: int
    prompts_finished: int
    preempted: int
    running: int
    waiting: int
    used_blocks: int


_TYPES: dict[str, Any] = {"start_s": np.float64, "seconds": np.float64, "context_tokens": np.int64}


class Values(NamedTuple):
    """A number of each of many steps: every step's; with `counts` that of every span of so many; with `place` numbers[place]."""

    numbers: NDArray[Any]
    counts: NDArray[np.int32] | None = None
    place: NDArray[np.int32] | None = None

    def of_steps(self) -> NDArray[Any]:
        """Every step's, (steps,)."""
        numbers = self.numbers if self.place is None else self.numbers[self.place]
        return numbers if self.counts is None else np.repeat(numbers, self.counts)

    def packed(self, steps: int, dtype: Any) -> Values:
        """The same in little memory."""
        numbers = self.numbers.astype(dtype, copy=False)
        if numbers.dtype.kind == "i":
            numbers = numbers.astype(np.result_type(*map(np.min_scalar_type, (numbers.min(initial=0), numbers.max(initial=0)))))
        if self.counts is not None and self.place is None and (numbers == numbers[0]).all():
            return Values(numbers[:1].copy(), np.array([steps], dtype=np.int32))
        return self._replace(numbers=numbers)


class _Column:
    """One number of every step, in pieces."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: list[Values] = []

    def add(self, piece: Values) -> None:
        self._pieces.append(piece)

    def all(self, steps: int, dtype: Any) -> NDArray[Any]:
        """Every step's, (steps,)."""
        values, at = np.empty(steps, dtype=dtype), 0
        for piece in self._pieces:
            part = piece.of_steps()
            values[at : at + len(part)] = part
            at += len(part)
        return values


class StepRecords:
    """All steps of a run as columns, so that a million steps stay small. `terms` holds each cost term's seconds per step."""

    def __init__(self) -> None:
        self._columns = {name: _Column() for name in StepRecord._fields}
        self._terms: dict[str, _Column] = {}
        self._length = 0
        # Steps that are not in the columns yet, and their terms.
        self._pending: list[tuple[StepRecord, Iterable[tuple[str, float]]]] = []

    @classmethod
    def joined(cls, parts: Sequence[StepRecords], order: NDArray[np.int64]) -> StepRecords:
        """All steps of several replicas, one after the other, in another order."""
        whole = cls()
        names = dict.fromkeys(name for part in parts for name in part.term_names)
        fields = {name: np.concatenate([part.column(name) for part in parts])[order] for name in StepRecord._fields}
        terms = {name: np.concatenate([part.term(name) for part in parts])[order] for name in names}
        whole.extend({name: Values(values) for name, values in fields.items()}, {n: Values(s) for n, s in terms.items()})
        return whole

    def append(self, step: StepRecord, terms: Iterable[tuple[str, float]]) -> None:
        """Adds a step; terms of the same name add up."""
        self._pending.append((step, terms))
        if len(self._pending) == _BATCH:
            self._settle()

    def extend(self, fields: Mapping[str, Values], terms: Mapping[str, Values]) -> None:
        """Adds many steps at once: all fields of `StepRecord`, `start_s` of every step, and the terms that they have."""
        self._settle()
        steps = len(fields["start_s"].numbers)
        for name, column in self._columns.items():
            column.add(fields[name].packed(steps, _TYPES.get(name, np.int32)))
        for name in terms:
            if name not in self._terms:
                self._terms[name] = _Column()
                self._terms[name].add(_none_in(self._length))
        for name, column in self._terms.items():
            column.add(terms[name].packed(steps, np.float64) if name in terms else _none_in(steps))
        self._length += steps

    def _settle(self) -> None:
        """Moves what is pending into the columns."""
        if not self._pending:
            return
        steps, terms = zip(*self._pending, strict=True)
        self._pending = []
        fields = zip(StepRecord._fields, zip(*steps, strict=True), strict=True)
        named = [added_up(each) for each in terms]
        names = dict.fromkeys(name for each in named for name in each)
        self.extend(
            {name: Values(np.array(values)) for name, values in fields},
            {name: Values(np.array([each.get(name, 0.0) for each in named])) for name in names},
        )

    def __len__(self) -> int:
        return self._length + len(self._pending)

    def __getitem__(self, index: int) -> StepRecord:
        return StepRecord(*(self.column(name)[index].item() for name in StepRecord._fields))

    def __iter__(self) -> Iterator[StepRecord]:
        return map(StepRecord._make, zip(*(self.column(name).tolist() for name in StepRecord._fields), strict=True))

    def column(self, name: str) -> NDArray[Any]:
        """One field of `StepRecord` over all steps, (steps,)."""
        self._settle()
        return self._columns[name].all(self._length, _TYPES.get(name, np.int32))

    def term(self, name: str) -> Floats:
        """Seconds of one cost term in every step, (steps,); 0 where a step has no such term, or none has."""
        self._settle()
        if name not in self._terms:
            return np.zeros(len(self))
        return self._terms[name].all(self._length, np.float64)

    @property
    def term_names(self) -> tuple[str, ...]:
        """Names of the cost terms, in order of first appearance."""
        self._settle()
        return tuple(self._terms)

    def term_seconds(self) -> dict[str, float]:
        """Busy time by cost term."""
        return {name: float(self.term(name).sum()) for name in self.term_names}


def added_up(terms: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Seconds by name; those of the same name together."""
    terms = tuple(terms)
    named = dict(terms)
    if len(named) < len(terms):
        named = dict.fromkeys(named, 0.0)
        for name, seconds in terms:
            named[name] += seconds
    return named


def _none_in(steps: int) -> Values:
    """A column of so many steps that have no such term."""
    return Values(np.zeros(1), np.array([steps], dtype=np.int32))


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """How a run was computed. `wakes`: times the engine was woken, each of which carried out one step or several rounds.

    `steps`: all steps. `plain_steps`: those planned sequence by sequence. `priced_singly`: booked rounds priced from a list of
    sequences, as not all of them had the same number of drafts or the pricer has no sums.
    """

    wakes: int = 0
    steps: int = 0
    plain_steps: int = 0
    priced_singly: int = 0

    def __add__(self, other: EngineStatistics) -> EngineStatistics:
        """Of two replicas together."""
        return EngineStatistics(
            self.wakes + other.wakes,
            self.steps + other.steps,
            self.plain_steps + other.plain_steps,
            self.priced_singly + other.priced_singly,
        )


@dataclass(frozen=True, slots=True)
class ServingResult:
    """A whole run: every request by id, every step in time, the busy time by cost term, of all replicas together, and how it was
    computed. `replica_of_request` and `replica_of_step`: which replica, by record and by step; None where there is one.
    `prefill_replicas`: the last so many of them compute prompts for the others, with the `transfers` of their caches."""

    records: RequestRecords
    steps: StepRecords
    term_seconds: dict[str, float]
    statistics: EngineStatistics = EngineStatistics()
    replicas: int = 1
    replica_of_request: NDArray[np.int32] | None = None
    replica_of_step: NDArray[np.int32] | None = None
    prefill_replicas: int = 0
    transfers: TransferRecords | None = None
