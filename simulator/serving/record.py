"""What happened: one record per request, one row per engine step. Times are simulated seconds from the start of the run."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


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
    def itl_s(self) -> NDArray[np.float64]:
        """Times between bursts, (bursts - 1,): a round's tokens reach the user together."""
        return np.diff(np.array(self.emission_s, dtype=np.float64))


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


class StepRecords:
    """All steps of a run as columns, so that a million steps stay small. `terms` holds each cost term's seconds per step."""

    __slots__ = ("_columns", "_length", "_terms")

    def __init__(self) -> None:
        floats = ("start_s", "seconds")
        self._columns: tuple[array[Any], ...] = tuple(array("d" if name in floats else "q") for name in StepRecord._fields)
        self._terms: dict[str, array[float]] = {}
        self._length = 0

    def append(self, step: StepRecord, terms: Iterable[tuple[str, float]]) -> None:
        """Adds one step; terms of the same name in one step add up."""
        for column, value in zip(self._columns, step, strict=True):
            column.append(value)
        for name, seconds in terms:
            column = self._terms.setdefault(name, array("d"))
            missing = self._length - len(column)
            if missing < 0:
                column[-1] += seconds
                continue
            column.frombytes(bytes(8 * missing))
            column.append(seconds)
        self._length += 1

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> StepRecord:
        return StepRecord(*(column[index] for column in self._columns))

    def __iter__(self) -> Iterator[StepRecord]:
        return (StepRecord(*row) for row in zip(*self._columns, strict=True))

    def column(self, name: str) -> NDArray[np.float64]:
        """One field of `StepRecord` over all steps, (steps,)."""
        return np.array(self._columns[StepRecord._fields.index(name)], dtype=np.float64)

    def term(self, name: str) -> NDArray[np.float64]:
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


@dataclass(frozen=True, slots=True)
class ServingResult:
    """A whole run: every request by id, every step in time, and the busy time by cost term, of all replicas together."""

    records: tuple[RequestRecord, ...]
    steps: StepRecords
    term_seconds: dict[str, float]
    replicas: int = 1
