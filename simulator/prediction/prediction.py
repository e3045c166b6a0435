"""Prediction: the answer at one operating point, and its row in a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Prediction:
    """The answer at one operating point. Seconds; intervals hold 80 %; None where it cannot be said.

    unmeasured: what no measured run had, as `cost.unmeasured.Unmeasured.parts`.

    largest_acceptance_length: tokens of a round whose drafts are all accepted; above it no break-even can be reached.
    """

    id: str
    status: Literal["ok", "unsupported"]
    reason: str = ""
    plain_step_s: float | None = None
    round_s: float | None = None
    r: float | None = None
    r_low: float | None = None
    r_high: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    break_even_acceptance_length: float | None = None
    break_even_acceptance_rate: float | None = None
    verdict: Literal["win", "lose", "close", ""] = ""
    bound: str = ""
    draft_share: float | None = None
    verification_cost_ratio: float | None = None
    mean_acceptance_length: float | None = None
    largest_acceptance_length: float | None = None
    textbook_speedup: float | None = None
    causes: tuple[tuple[str, float], ...] = ()
    warnings: tuple[str, ...] = ()
    unmeasured: tuple[str, ...] = ()


COLUMNS = (
    "id", "status", "reason", "plain_step_s", "round_s", "r", "r_low", "r_high", "speedup", "speedup_low", "speedup_high",
    "break_even_acceptance_length", "break_even_acceptance_rate", "verdict", "bound", "draft_share", "verification_cost_ratio",
    "warnings", "mean_acceptance_length", "textbook_speedup",
)  # fmt: skip


def as_row(prediction: Prediction) -> dict[str, Any]:
    """The columns of a predictions table; numbers to six digits, warnings joined."""
    row: dict[str, Any] = {}
    for name in COLUMNS:
        value = getattr(prediction, name)
        row[name] = (
            "; ".join(value)
            if name == "warnings"
            else f"{value:.6g}"
            if isinstance(value, float)
            else ""
            if value is None
            else value
        )
    return row
