"""Measurements of one device: what ran, every raw second, the environment. `measurement_file` writes and reads them.

Cells are visited in rounds, so that each cell's samples are spread over the whole run.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION = 1
# A sample shorter than this drowns in the clock's own cost, so that short calls are timed many at a time.
SHORTEST_SAMPLE_S = 2e-3
Kind = Literal[
    "copy", "read", "triad", "gemm", "decode_attention", "verify_attention", "forward", "launch", "synchronize", "sampling",
    "kv_crop", "all_reduce",
]  # fmt: skip
# fit: given to the fit. held_out: judges the fit, never given to it. check: a cell of the fit measured a second time, on
# its own, which tells how well the measurement repeats; neither fitted nor held out.
Split = Literal["fit", "held_out", "check"]
# thread_cpu leaves out time spent descheduled (one thread only); device: events on the device's own clock.
Clock = Literal["thread_cpu", "wall", "device"]
Status = Literal["ok", "out_of_memory", "unsupported", "failed"]
Value = int | float | str


class MeasurementError(ValueError):
    """A file of measurements is not sound: `path`, `line` (from 1; 0 for the file), and what is wrong."""

    def __init__(self, path: Path, line: int, message: str):
        self.path, self.line, self.message = path, line, message
        super().__init__(f"{path}:{line}: {message}" if line else f"{path}: {message}")


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, allow_inf_nan=False)


class Header(_Record):
    """The run: device and environment. Seconds, bytes.

    device: torch's name (cpu, cuda, mps). compute_units: streaming multiprocessors, or cores in use on a CPU.
    dtypes: types that GEMM runs in; pass_dtypes and modes: those of whole passes. backends: attention kernel of a plain step
    and of verification. peaks: id of the hardware profile with the datasheet peaks of this device, "" where it is not known.
    rates: the first look at the device that the plan's durations come from. plan: hash of the planned cells. models: Hugging
    Face config of each model measured, by the name that cells use.
    """

    schema_version: Literal[1] = 1
    device: str
    device_name: str
    device_count: int
    driver: str
    torch: str
    transformers: str
    compute_capability: str = ""
    memory_bytes: int
    cache_bytes: int
    compute_units: int
    dtypes: tuple[str, ...]
    threads: int
    load_average: float
    clock: Clock
    started: str
    minutes: float
    seed: int
    peaks: str = ""
    pass_dtypes: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    backends: dict[str, str] = Field(default_factory=dict)
    rates: dict[str, float] = Field(default_factory=dict)
    plan: str
    models: dict[str, dict[str, Any]] = Field(default_factory=dict)


class Cell(_Record):
    """One thing to time. Inputs by kind, sizes in elements and counts, never in thousands:

    copy, read, triad            bytes (of one array), moved_bytes (by all arrays), dtype
    gemm                         m, n, k, dtype
    decode_attention             batch, rows = 1, context, heads, kv_heads, head_dim, dtype, backend
    verify_attention             the same with rows > 1: `rows` query rows a sequence, `context` cached tokens before them
    forward                      model, batch, rows, context, dtype, mode (eager, cuda_graph, compile); logits of all rows
    launch, synchronize          none of size: one smallest kernel; waiting for it
    sampling                     rows, vocab_size, dtype, method (greedy, multinomial)
    kv_crop                      layers, batch, kv_heads, head_dim, context, removed, dtype
    all_reduce                   devices, bytes, dtype
    """

    kind: Kind
    inputs: dict[str, Value]
    split: Split

    @property
    def key(self) -> str:
        """A short name, the same for equal cells."""
        return hashlib.sha256(canonical(self.model_dump())).hexdigest()[:12]


class Visit(_Record):
    """One stay at a cell: `seconds` per call in the run's clock, `wall_seconds` beside it where the clock is another.

    calls: timed together in each sample. round: which turn over all cells. at_s: since the run's start, resumed parts
    counted on. status other than ok: no samples, and the `reason`.
    """

    cell: Cell
    round: int
    at_s: float
    calls: int = 1
    seconds: tuple[float, ...] = ()
    wall_seconds: tuple[float, ...] = ()
    status: Status = "ok"
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Measurement:
    """All samples of one cell, whose `key` it has; `rounds` and `at_s` hold one entry a sample."""

    kind: Kind
    inputs: Mapping[str, Value]
    split: Split
    seconds: tuple[float, ...]
    wall_seconds: tuple[float, ...]
    rounds: tuple[int, ...]
    at_s: tuple[float, ...]
    status: Status = "ok"
    reason: str = ""
    key: str = ""

    @property
    def median_s(self) -> float:
        """Median over all samples. Raises StatisticsError where there is none."""
        return statistics.median(self.seconds)

    def of_rounds(self, parity: int) -> Measurement:
        """The same with samples of even (0) or odd (1) rounds alone."""
        kept = [index for index, number in enumerate(self.rounds) if number % 2 == parity]
        return replace(
            self,
            seconds=tuple(self.seconds[index] for index in kept),
            wall_seconds=tuple(self.wall_seconds[index] for index in kept) if self.wall_seconds else (),
            rounds=tuple(self.rounds[index] for index in kept),
            at_s=tuple(self.at_s[index] for index in kept),
        )

    @property
    def round_medians_s(self) -> tuple[float, ...]:
        """The median of each round's samples: samples of one round share its disturbances, rounds do not."""
        by_round: dict[int, list[float]] = {}
        for number, seconds in zip(self.rounds, self.seconds, strict=True):
            by_round.setdefault(number, []).append(seconds)
        return tuple(statistics.median(samples) for samples in by_round.values())


@dataclass(frozen=True, slots=True)
class MeasurementFile:
    """A file as read. sha256: of its bytes. minutes: asked for, all parts together. finished: it ends in its `end` line.
    dropped: a partial last line was left out."""

    header: Header
    measurements: tuple[Measurement, ...]
    sha256: str
    finished: bool
    dropped: bool
    elapsed_s: float
    last_round: int
    minutes: float

    def of(self, *kinds: Kind, split: Split | None = None) -> tuple[Measurement, ...]:
        """Cells that were measured, of some kinds, of one split."""
        return tuple(each for each in self.measurements if each.seconds and each.kind in kinds and split in (None, each.split))


def canonical(record: Mapping[str, Any]) -> bytes:
    """The same bytes for equal records."""
    return json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
