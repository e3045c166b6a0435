"""What happened: one record per request, one row per engine step. Times are simulated seconds from the start of the run.

Both are kept as columns, so that a million requests stay small; a row becomes an object when it is asked for.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """The life of one request. Times are None where it was rejected on arrival (`rejected` then says why).

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


class Rounds(NamedTuple):
    """Bursts after the first as a stretch of the replica's rounds: `count` of them from number `first` on.

    tokens: the size of each, None where all are single tokens.
    """

    first: int
    count: int
    tokens: bytes | None


_TIMES = ("arrival_s", "first_scheduled_s", "first_token_s", "finish_s")
_COUNTS = ("request_id", "prompt_tokens", "output_tokens", "rounds", "draft_rounds", "drafted", "accepted", "preemptions")


class RequestRecords(Sequence[RequestRecord]):
    """The records of a run. Numbers are columns (`column`); bursts are kept by request, or as a stretch of rounds.

    A time that there is not is NaN in a column. `round_end_s`: when each round of the replica ended.
    """

    def __init__(self, round_end_s: array[float] | None = None) -> None:
        self.round_end_s = array("d") if round_end_s is None else round_end_s
        self._columns: dict[str, Any] = {name: array("d") for name in _TIMES} | {name: array("q") for name in _COUNTS}
        self._first_round, self._burst_at = array("q"), array("q")
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

    def append(self, record: RequestRecord, rounds: Rounds | None = None) -> None:
        """Adds a record; with `rounds` its own bursts are left unread: one at its first token, then those."""
        row = len(self._first_round)
        columns = self._columns
        for name in _TIMES:
            value = getattr(record, name)
            columns[name].append(math.nan if value is None else value)
        for name in _COUNTS:
            columns[name].append(getattr(record, name))
        if record.rejected:
            self._rejected[row] = record.rejected
        if rounds is None:
            self._first_round.append(-1)
            self._burst_at.append(-1)
            if record.emission_s:
                self._own_bursts[row] = record.emission_s, record.emission_tokens
            return
        self._first_round.append(rounds.first)
        self._burst_at.append(-1 if rounds.tokens is None else len(self._burst_tokens))
        if rounds.tokens is not None:
            self._burst_tokens += rounds.tokens

    def sorted_by_id(self) -> RequestRecords:
        """The same records in the order of their ids."""
        return self.take(np.argsort(self.column("request_id"), kind="stable"))

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> RequestRecords:
        """Some of the records, or all in another order; what they hold is shared."""
        order = np.arange(len(self._first_round)) if self._order is None else self._order
        taken = RequestRecords.__new__(RequestRecords)
        taken.__dict__.update(self.__dict__)
        taken._order = order[rows]
        return taken

    def column(self, name: str) -> NDArray[Any]:
        """One number of every record, (records,): float times with NaN for None, integer counts."""
        values = np.frombuffer(self._columns[name], np.float64 if name in _TIMES else np.int64)
        return values if self._order is None else values[self._order]

    def __len__(self) -> int:
        return len(self._first_round) if self._order is None else len(self._order)

    @overload
    def __getitem__(self, index: int) -> RequestRecord: ...
    @overload
    def __getitem__(self, index: slice) -> RequestRecords: ...
    def __getitem__(self, index: int | slice) -> RequestRecord | RequestRecords:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        row = index % len(self) if self._order is None else int(self._order[index])
        times = {name: None if math.isnan(value := self._columns[name][row]) else value for name in _TIMES}
        counts = {name: self._columns[name][row] for name in _COUNTS}
        seconds, tokens = self._bursts(row)
        return RequestRecord(
            **times, **counts, rejected=self._rejected.get(row, ""), emission_s=seconds, emission_tokens=tokens
        )

    def __iter__(self) -> Iterator[RequestRecord]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return f"({', '.join(map(repr, self))})"

    def rejections(self) -> list[str]:
        """Why, for every record that was rejected."""
        if not self._rejected:
            return []
        rows = range(len(self)) if self._order is None else self._order.tolist()
        return [self._rejected[row] for row in rows if row in self._rejected]

    def _bursts(self, row: int) -> tuple[array[float], array[int]]:
        first = self._first_round[row]
        if first < 0:
            return self._own_bursts.get(row, (array("d"), array("i")))
        count, at = self._columns["rounds"][row], self._burst_at[row]
        seconds = array("d", (self._columns["first_token_s"][row],)) + self.round_end_s[first : first + count]
        tokens = self._burst_tokens[at : at + count] if at >= 0 else b"\1" * count
        return seconds, array("i", (1, *tokens))

    def gaps_s(self) -> tuple[Floats, NDArray[np.int64]]:
        """Times between bursts of all records, and how often each occurs."""
        order = np.arange(len(self)) if self._order is None else self._order
        first = np.frombuffer(self._first_round, np.int64)[order]
        own = [np.diff(np.array(self._own_bursts[row][0])) for row in order[first < 0].tolist() if row in self._own_bursts]
        loose = np.concatenate([np.empty(0), *own])
        kept = first >= 0
        first, count = first[kept], self.column("rounds")[kept]
        kept_rounds = count > 0
        begin_s = self.column("first_token_s")[kept][kept_rounds]
        first, count = first[kept_rounds], count[kept_rounds]
        ends = np.frombuffer(self.round_end_s, np.float64) if self.round_end_s else np.empty(0)
        # A gap between rounds occurs once for every record that took part in both.
        change = np.zeros(len(ends) + 1, dtype=np.int64)
        np.add.at(change, first, 1)
        np.subtract.at(change, first + count - 1, 1)
        shared = np.cumsum(change)[: max(len(ends) - 1, 0)]
        seconds = np.concatenate((loose, ends[first] - begin_s, np.diff(ends)))
        times = np.concatenate((np.ones(len(loose) + len(first), dtype=np.int64), shared))
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


_TYPECODES = {"start_s": "d", "seconds": "d", "context_tokens": "q", "prefill_tokens": "q", "used_blocks": "q"}


class StepRecords:
    """All steps of a run as columns, so that a million steps stay small. `terms` holds each cost term's seconds per step."""

    __slots__ = ("_columns", "_length", "_terms")

    def __init__(self) -> None:
        self._columns: tuple[array[Any], ...] = tuple(array(_TYPECODES.get(name, "i")) for name in StepRecord._fields)
        self._terms: dict[str, array[float]] = {}
        self._length = 0

    def append(self, step: StepRecord, terms: Iterable[tuple[str, float]]) -> None:
        """Adds one step; terms of the same name in one step add up."""
        for column, value in zip(self._columns, step, strict=True):
            column.append(value)
        for name, seconds in terms:
            column = self._terms.get(name)
            if column is None:
                column = self._terms[name] = array("d")
            missing = self._length - len(column)
            if missing < 0:
                column[-1] += seconds
                continue
            if missing:
                column.frombytes(bytes(8 * missing))
            column.append(seconds)
        self._length += 1

    def extend(self, count: int, step: tuple[Any, ...], terms: Iterable[tuple[str, Any]]) -> None:
        """Adds `count` steps at once: fields of `step` and terms (each named once) are one number, or an array (count,)."""
        for column, value in zip(self._columns, step, strict=True):
            _extend(column, value, count)
        for name, seconds in terms:
            column = self._terms.get(name)
            if column is None:
                column = self._terms[name] = array("d")
            missing = self._length - len(column)
            if missing:
                column.frombytes(bytes(8 * missing))
            _extend(column, seconds, count)
        self._length += count

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> StepRecord:
        return StepRecord(*(column[index] for column in self._columns))

    def __iter__(self) -> Iterator[StepRecord]:
        return (StepRecord(*row) for row in zip(*self._columns, strict=True))

    def column(self, name: str) -> Floats:
        """One field of `StepRecord` over all steps, (steps,)."""
        return np.array(self._columns[StepRecord._fields.index(name)], dtype=np.float64)

    def term(self, name: str) -> Floats:
        """Seconds of one cost term in every step, (steps,); 0 where a step has no such term."""
        column = np.array(self._terms[name], dtype=np.float64)
        return np.pad(column, (0, self._length - len(column)))

    @property
    def term_names(self) -> tuple[str, ...]:
        """Names of the cost terms, in order of first appearance."""
        return tuple(self._terms)

    def term_seconds(self) -> dict[str, float]:
        """Busy time by cost term."""
        return {name: math.fsum(column) for name, column in self._terms.items()}


def _extend(column: array[Any], value: Any, count: int) -> None:
    if isinstance(value, np.ndarray):
        column.frombytes(value.astype(column.typecode, copy=False).tobytes())
    else:
        column.extend(array(column.typecode, (value,)) * count)


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


@dataclass(frozen=True, slots=True)
class ServingResult:
    """A whole run: every request by id, every step in time, the busy time by cost term, and how it was computed."""

    records: RequestRecords
    steps: StepRecords
    term_seconds: dict[str, float]
    statistics: EngineStatistics = EngineStatistics()
