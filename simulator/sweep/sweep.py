"""sweep: every cell of a grid answered once, in whatever order, and kept."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.sweep.cells import Cell, Grid
from simulator.sweep.ledger import Outcome, opened
from simulator.sweep.workers import outcomes

if TYPE_CHECKING:
    from simulator.simulation import Progress

LEDGER = "cells.jsonl"


@dataclass(frozen=True)
class SweepResult:
    """The outcome of every cell, in the order of the grid. resumed: cells that an earlier sweep had kept."""

    grid: Grid
    outcomes: tuple[Outcome, ...]
    resumed: int

    def __iter__(self) -> Iterator[tuple[Cell, Outcome]]:
        return zip(self.grid.cells, self.outcomes, strict=True)

    @property
    def failures(self) -> list[Failure]:
        """What went wrong, the most frequent first."""
        counts = Counter(outcome.failed for outcome in self.outcomes if outcome.failed)
        firsts = {outcome.failed: cell for cell, outcome in reversed(list(self))}
        return [Failure(reason, firsts[reason], cells) for reason, cells in counts.most_common()]


@dataclass(frozen=True, slots=True)
class Failure:
    """A reason for which cells have no answer, the first of them, and how many they are."""

    reason: str
    first: Cell
    cells: int


def idle_keys(result: SweepResult) -> list[str]:
    """Keys, with commas where they change together, whose values make no difference to any answer."""
    found = []
    stride = len(result.grid)
    for axis in result.grid.axes:
        values = len(axis.values)
        stride //= values
        rows = [json.dumps(outcome.rows) for outcome in result.outcomes]
        starts = [start for start in range(len(rows)) if start // stride % values == 0]
        same = all(rows[start] == rows[start + step * stride] for start in starts for step in range(1, values))
        if values > 1 and same and any(outcome.rows for outcome in result.outcomes):
            found.append(",".join(axis.keys))
    return found


def sweep(
    grid: Grid, out: Path | None = None, jobs: int | None = None, cluster: str | None = None, progress: Progress | None = None
) -> SweepResult:
    """Answers the grid. out: a folder that exists, whose ledger spares what it holds and keeps what is new.

    jobs: processes on this machine (None: as many as pay off); cluster: address of a Dask scheduler instead. Raises
    `SpecError`.
    """
    with opened(out / LEDGER) if out is not None else nullcontext() as ledger:
        found: dict[str, Outcome] = dict(ledger.outcomes) if ledger is not None else {}
        todo = {cell.name: cell for cell in grid.cells if cell.name not in found}
        resumed = sum(cell.name in found for cell in grid.cells)
        done = len(grid) - len(todo)
        if progress is not None and todo:
            progress(grid.question, done, len(grid))
        for outcome in outcomes(grid.question, list(todo.values()), jobs, cluster):
            found[outcome.cell] = outcome
            if ledger is not None:
                ledger.add(outcome, todo[outcome.cell].settings)
            done += 1
            if progress is not None:
                progress(grid.question, done, len(grid))
    return SweepResult(grid, tuple(found[cell.name] for cell in grid.cells), resumed)
