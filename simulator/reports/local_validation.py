"""Predicted against measured on this machine, in words, tables, JSON and as a small folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from simulator.plots.local_validation import local_validation_figure
from simulator.plots.style import save
from simulator.printed_numbers import percent, significant, times
from simulator.questions.decoding_replay import TERMS
from simulator.questions.local_validation import (
    MEAN_BAR,
    OTHER,
    SPEEDUP_BAR,
    TOTAL_BAR,
    Compared,
    DecodingTime,
    LocalCase,
    LocalValidation,
    Sign,
)
from simulator.reports.accuracy import markdown_table
from simulator.reports.files import replace_files, to_json, write_text

Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]
SIGNS: dict[Sign, str] = {"win": "win", "lose": "loss", "close": "close"}
_LABELS = ("draft, γ", "prompts", "batch")
_TOTALS = (*_LABELS, "τ", "measured", "predicted", "error", "plain", "independent α")
_SPEEDUPS = (*_LABELS, "R", "said", "speedup", "said", "error", "textbook", "sign", "said")


def local_sentences(found: LocalValidation) -> list[str]:
    """The verdict first, then on what it rests."""
    cases, machine = found.cases, found.machine
    worst = max(cases, key=lambda case: abs(case.speculative.error))
    worst_ratio = max(cases, key=lambda case: abs(case.speedup_error))
    called = [case for case in cases if "close" not in (case.measured_sign, case.predicted_sign)]
    independent = sum(abs(case.independent_error) for case in cases) / len(cases)
    first = {
        "holds": "Prediction equals measurement within the bars",
        "fails": "Prediction and measurement differ by more than the bars allow",
        "too busy to judge": "The machine is too busy to judge"
        + (" all cases; what can be judged is within the bars" if any(case.judged for case in cases) else ""),
    }[found.verdict]
    sentences = [
        f"{first}: totals of {len(cases)} cases err by {percent(found.mean_error)} on average (bar {percent(MEAN_BAR)}).",
        f"Largest error of a total {_signed(worst.speculative.error)} (bar {percent(TOTAL_BAR)}; {_where(worst)}), of a speedup "
        f"{_signed(worst_ratio.speedup_error)} (bar {percent(SPEEDUP_BAR)}; {_where(worst_ratio)}).",
        f"Signs: right in {sum(case.sign_right for case in called)} of {len(called)} that can be told"
        + (f", {len(cases) - len(called)} too close to call." if len(called) < len(cases) else "."),
        f"The independent-α formula at the same pass times errs by {percent(independent)} on average.",
    ]
    if found.replayed:
        sentences.append("Every real round, proposed and accepted, is the replay's.")
    else:
        wrong = [case for case in cases if not case.rounds_equal]
        sentences.append(f"REAL ROUNDS DIFFER FROM THE REPLAY in {len(wrong)} cases: {_where(wrong[0])}.")
    sentences.append(
        f"{machine.blocks} blocks in {machine.minutes:.0f} min on one thread of {machine.processor} ({machine.cores} cores, load "
        f"average {machine.load_average:.1f}, runs took {machine.wall_factor:.1f} × their CPU time), torch {machine.torch}."
    )
    return sentences


def local_notes(found: LocalValidation) -> list[str]:
    """What a reader should doubt."""
    notes = [f"left out: {each}" for each in found.skipped]
    busy = [case for case in found.cases if not case.judged]
    if busy:
        total, speedup = (max(getattr(case, name) for case in busy) for name in ("total_floor", "speedup_floor"))
        floor = "unknown" if math.isinf(total) else f"{percent(total)} of a total and {percent(speedup)} of a speedup"
        notes.append(
            f"{len(busy)} of {len(found.cases)} cases cannot be judged: the noise floor (two standard errors) is {floor}, "
            "more than half a bar. Give it more --minutes, or a quieter machine."
        )
    texts = [case for case in found.cases if case.texts[0] < case.texts[1]]
    if texts:
        count = sum(case.texts[1] - case.texts[0] for case in texts)
        notes.append(f"{count} outputs of batches differ from those of single sequences: another rounding turned a near tie")
    return notes


def local_tables(found: LocalValidation) -> Iterator[Table]:
    """(title, header, rows) for each target: totals, speedups, terms."""
    for target in dict.fromkeys(case.target for case in found.cases):
        cases = [case for case in found.cases if case.target == target]
        yield (
            f"{target}: total time, and errors of plain decoding and of the independent-α formula",
            _TOTALS,
            _rows(cases, _total),
        )
        yield (
            f"{target}: R, and speedup over plain decoding: measured, and what prediction said",
            _SPEEDUPS,
            _rows(cases, _speedup),
        )
        names = [name for name in (*TERMS, OTHER) if any(name in case.speculative.measured.terms for case in cases)]
        rows = [(*_labels(case), *(_term(case.speculative, name) for name in names)) for case in cases]
        title = f"{target}: terms of speculative decoding, measured (predicted less measured), % of the total"
        yield title, (*_LABELS, *names), rows


def _rows(cases: Sequence[LocalCase], row: Callable[[LocalCase], tuple[str, ...]]) -> list[tuple[str, ...]]:
    return [(*_labels(case), *row(case)) for case in cases]


def local_summary(found: LocalValidation) -> dict[str, Any]:
    """The JSON document. Seconds; errors are predicted over measured, less one."""
    return {
        "schema_version": 1,
        "verdict": found.verdict,
        "mean_error": found.mean_error,
        "bars": {"total": TOTAL_BAR, "mean_total": MEAN_BAR, "speedup": SPEEDUP_BAR},
        "machine": {**asdict(found.machine), "load_average": _finite(found.machine.load_average)},
        "skipped": list(found.skipped),
        "cases": [_case_json(case) for case in found.cases],
    }


def local_markdown(found: LocalValidation, figure: str) -> str:
    """A page with the verdict, the figure and all tables."""
    first, *others = local_sentences(found)
    parts = ["# Prediction beside measurement", f"**{first}**", "\n".join(f"- {each}" for each in (*others, *local_notes(found)))]
    parts.append(f"![Predicted against measured time and speedup of each case, and error by term]({figure})")
    for title, header, rows in local_tables(found):
        parts.append(f"## {title}")
        parts.append(markdown_table(header, rows))
    return "\n\n".join(parts) + "\n"


def write_local_validation(found: LocalValidation, directory: str | Path) -> tuple[Path, ...]:
    """local_validation.md, .json and the figure; each whole or not there. Raises `SpecError` where it cannot be written."""

    def fill(folder: Path) -> None:
        (folder / "figures").mkdir()
        save(local_validation_figure(found), folder / "figures" / "local_validation.png")
        write_text(folder / "local_validation.md", local_markdown(found, "figures/local_validation.png"))
        write_text(folder / "local_validation.json", to_json(local_summary(found)))

    return replace_files(Path(directory), fill)


def _case_json(case: LocalCase) -> dict[str, Any]:
    def way(compared: Compared) -> dict[str, Any]:
        return {
            "predicted": _time_json(compared.predicted), "measured": _time_json(compared.measured), "error": compared.error,
        }  # fmt: skip

    return {
        "target": case.target,
        "draft": case.draft,
        "num_speculative_tokens": case.gamma,
        "batch": case.batch,
        "prompts": case.kind,
        "mean_acceptance_length": case.mean_acceptance_length,
        "acceptance_rate": case.acceptance_rate,
        "plain": way(case.plain),
        "speculative": way(case.speculative),
        "speedup": {"predicted": case.predicted_speedup, "measured": case.measured_speedup, "error": case.speedup_error},
        "round_cost_ratio": {"predicted": case.predicted_r, "measured": case.measured_r},
        "sign": {"predicted": case.predicted_sign, "measured": case.measured_sign, "right": case.sign_right},
        "independent_acceptance": {
            "total_s": case.independent_s, "error": case.independent_error, "textbook_speedup": case.textbook_speedup,
        },
        "rounds_equal": case.rounds_equal,
        "texts_equal": list(case.texts),
        "noise_floor": {"total": _finite(case.total_floor), "speedup": _finite(case.speedup_floor)},
        "judged": case.judged,
        "errors_by_block": [{"plain": plain, "speculative": speculative} for plain, speculative in case.block_errors],
    }  # fmt: skip


def _time_json(time: DecodingTime) -> dict[str, Any]:
    return {"total_s": time.total_s, "steps": time.steps, "step_s": time.step_s, "terms_s": dict(time.terms)}


def _total(case: LocalCase) -> tuple[str, ...]:
    measured, predicted = case.speculative.measured.total_s, case.speculative.predicted.total_s
    marked = "" if abs(case.speculative.error) <= TOTAL_BAR else " outside" if case.judged else " (noise)"
    return (
        f"{case.mean_acceptance_length:.2f}", f"{significant(measured)} s", f"{significant(predicted)} s",
        _signed(case.speculative.error) + marked, _signed(case.plain.error), _signed(case.independent_error),
    )  # fmt: skip


def _speedup(case: LocalCase) -> tuple[str, ...]:
    marked = "" if abs(case.speedup_error) <= SPEEDUP_BAR else " outside" if case.judged else " (noise)"
    return (
        f"{case.measured_r:.2f}", f"{case.predicted_r:.2f}", times(case.measured_speedup),
        times(case.predicted_speedup), _signed(case.speedup_error) + marked, times(case.textbook_speedup),
        SIGNS[case.measured_sign], SIGNS[case.predicted_sign] + ("" if case.sign_right else " WRONG"),
    )  # fmt: skip


def _term(compared: Compared, name: str) -> str:
    total_s = compared.measured.total_s
    measured, predicted = (time.terms.get(name, 0.0) / total_s for time in (compared.measured, compared.predicted))
    return f"{100 * measured:.1f} ({100 * (predicted - measured):+.1f})" if measured or predicted else ""


def _labels(case: LocalCase) -> tuple[str, str, str]:
    return f"{case.draft}, {case.gamma}", case.kind, str(case.batch)


def _where(case: LocalCase) -> str:
    return f"{case.name}, {case.kind}, batch {case.batch}"


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
