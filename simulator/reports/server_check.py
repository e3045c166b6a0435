"""A server check for people and programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from simulator.plots.words import significant, times
from simulator.questions.server_check import Compared, ServerCheck

CHECK_HEADER = ("quantity", "run", "measured", "predicted", "80 % interval", "error")


def check_rows(check: ServerCheck) -> list[tuple[str, ...]]:
    """Rows under `CHECK_HEADER`; an error outside the interval is marked."""
    return [
        (
            row.quantity, {"ratio": "both", "with": "speculative", "without": "plain"}[row.part], _shown(row, row.measured),
            _shown(row, row.predicted.value), f"{_shown(row, row.predicted.low)} to {_shown(row, row.predicted.high)}",
            f"{100 * row.error:+.0f} %" + ("" if row.inside else " outside"),
        )
        for row in check.rows
    ]  # fmt: skip


def check_summary(check: ServerCheck) -> dict[str, Any]:
    """The JSON document of a check."""
    return {
        "schema_version": 1,
        "verdict": check.verdict,
        "rows": [{**asdict(row), "error": row.error, "inside": row.inside} for row in check.rows],
        "doubts": list(check.doubts),
        "recipe": None if check.recipe is None else asdict(check.recipe),
    }


def _shown(row: Compared, value: float) -> str:
    if row.part == "ratio":
        return times(value) if row.quantity.startswith("gain") else significant(value)
    if row.quantity.endswith("per second"):
        return significant(value)
    return f"{significant(value)} s" if value >= 1 else f"{significant(1000 * value)} ms"
