"""What was predicted first for runs never seen, which is out of sample for good: by set, each run beside its speedup."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass

from simulator.questions.published_cases import UNSEEN, PublishedCase, published_cases, table_path


@dataclass(frozen=True)
class FirstPrediction:
    """One run of a set, and the speedup that was predicted for it once."""

    set_number: int
    case: PublishedCase
    speedup: float


def first_predictions() -> list[FirstPrediction]:
    """Of every set that was predicted, without the runs that were refused; the first set first."""
    found = []
    for path in sorted(table_path(UNSEEN).parent.glob("unseen_first*.csv"), key=lambda path: _number(path.name)):
        with path.open(encoding="utf-8", newline="") as file:
            speedups = {row["id"]: float(row["speedup"]) for row in csv.DictReader(file) if row["speedup"]}
        cases = published_cases(path.name.replace("first", "cases"))
        found += [
            FirstPrediction(_number(path.name), case, speedups[case.point.id]) for case in cases if case.point.id in speedups
        ]
    return found


def _number(name: str) -> int:
    found = re.search(r"_(\d+)\.csv$", name)
    return 1 if found is None else int(found[1])
