"""How far first predictions of published runs that no constant was fitted on were off, by engine and method.

The sets `published_cases/unseen_cases*.csv` were each predicted once, and those predictions are kept (docs/accuracy.md, Never
seen): here they are held against what was measured, the latest set first.
"""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

from simulator import resources
from simulator.unseen_sets import FOLDER, unseen_sets

# A median of fewer runs says nothing.
FEWEST_RUNS = 3
# Errors of R below this are those of intervals anyway, and are not pointed out.
POINTED_OUT = 0.2


@dataclass(frozen=True)
class FirstError:
    """Of the latest set with enough runs of one engine and method. logs: ln(predicted R / measured R) of each."""

    logs: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(map(abs, self.logs))

    @property
    def sentence(self) -> str:
        """How many runs, how far off, and to which side where it is one."""
        size = f"{100 * self.median:.0f} %" if self.median < 0.5 else f"a factor of {math.exp(self.median):.1f}"
        side = ""
        if all(log < 0 for log in self.logs) or all(log > 0 for log in self.logs):
            side = f", rounds being {'dearer' if self.logs[0] < 0 else 'cheaper'}"
        return f"of {len(self.logs)} published runs never fitted half were first predicted with an error above {size}{side}"


def first_error(engine_name: str, method: str) -> FirstError | None:
    """None where no set has enough runs. method: as `cost.unmeasured.method_key` has it."""
    for logs in sets_latest_first():
        found = [log for engine, drafting, log in logs if drafting == method and _name_of(engine) == engine_name]
        if len(found) >= FEWEST_RUNS:
            return FirstError(tuple(found))
    return None


@cache
def sets_latest_first() -> tuple[tuple[tuple[str, str, float], ...], ...]:
    """(engine, method, error) of every run of each set that was predicted, the latest set first."""
    folder = resources.folder(FOLDER)
    return tuple(tuple(_errors(folder / each.first, folder / each.table)) for each in reversed(unseen_sets()) if not each.waits)


def _errors(first: Path, cases: Path) -> list[tuple[str, str, float]]:
    with first.open(encoding="utf-8", newline="") as file:
        predicted = {row["id"]: float(row["speedup"]) for row in csv.DictReader(file) if row["speedup"]}
    with cases.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["id"] in predicted]
    return [(row["engine"], _method(row), math.log(float(row["measured_speedup"]) / predicted[row["id"]])) for row in rows]


def _method(row: dict[str, str]) -> str:
    tree = row["tree_shape"] and "topk=1" not in row["tree_shape"]
    return f"{row['method']} tree" if tree else row["method"]


@cache
def _name_of(engine: str) -> str:
    """The name that the profile of an engine states, without the rest of it."""
    path = resources.file_of("engine", engine or "generic")
    found = None if path is None else re.search(r"^name: *\"?(.*?)\"? *$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return "" if found is None else found[1]
