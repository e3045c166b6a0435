"""A server check for people and programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from simulator.interchange.engine_settings import Snippet
from simulator.printed_numbers import milliseconds, significant, times
from simulator.questions.server_check import DRAFT_SHARE, TIME_PER_TOKEN, Compared, ServerCheck
from simulator.reports.exports import exported
from simulator.reports.summary import SCHEMA_VERSION, plain_data
from simulator.spec import SpecError

# Two runs that differ by less say nothing: a run repeated differs by as much.
_LEAST_GAIN = 0.03
CHECK_HEADER = ("quantity", "run", "measured", "predicted", "80 % interval", "error")


def measured_sentence(check: ServerCheck) -> str:
    """What the two runs themselves say; "" of one run."""
    gain = check.measured_gain
    if gain is None:
        return ""
    before, after = (
        milliseconds(next(row.measured for row in check.rows if row.quantity == TIME_PER_TOKEN and row.part == part))
        for part in ("without", "with")
    )
    said = "wins" if gain > 1 + _LEAST_GAIN else "loses" if gain < 1 - _LEAST_GAIN else "changes little"
    return f"Measured: speculation {said} on this server, {times(gain)} in time per token ({before} to {after})."


def settings_of_check(check: ServerCheck) -> tuple[Snippet, ...]:
    """What was measured as settings to paste; nothing where the engine has no such setting or nothing was drafted."""
    if not check.scenario.deployment.speculative:
        return ()
    try:
        return exported(check.scenario)
    except SpecError:
        return ()


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
    summary = {
        "schema_version": SCHEMA_VERSION,
        "verdict": check.verdict,
        "measured_gain": check.measured_gain,
        "rows": [{**asdict(row), "error": row.error, "inside": row.inside} for row in check.rows],
        "doubts": list(check.doubts),
        "settings": [asdict(snippet) for snippet in settings_of_check(check)],
        "recipe": None if check.recipe is None else asdict(check.recipe),
    }
    data: dict[str, Any] = plain_data(summary)
    return data


def _shown(row: Compared, value: float) -> str:
    if row.quantity == DRAFT_SHARE:
        return f"{100 * value:.1f} %"
    if row.part == "ratio":
        return times(value) if row.quantity.startswith("gain") else significant(value)
    if row.quantity.endswith("per second"):
        return significant(value)
    return f"{significant(value)} s" if value >= 1 else f"{significant(1000 * value)} ms"
