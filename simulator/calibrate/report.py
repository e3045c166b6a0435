"""FitReport: what a device's measurements taught, how far it is off, and whether to believe it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from calibration.fit import Errors, Observation
from calibration.measurement import Header
from simulator.calibrate.laws import Forward
from simulator.calibrate.levels import RatioNoise
from simulator.calibrate.parts import Part, RatioRow
from simulator.hardware import Hardware
from simulator.kernel_switches import AttentionRegime

# A row that costs less than a tenth of a pass more is as good as free.
FREE = 1.10
_MOST_FREE_ROWS = 256
# Median error of whole passes, and of t(b(γ+1))/t(b), on what was not fitted. Ratios decide the sign of speculation, and
# rounds of one configuration scatter by 3 to 6 % (docs/model.md).
_GOOD = (0.08, 0.06)
_USABLE = (0.15, 0.10)
_NOISY = 0.05
# Two measurements of the ratio t(γ+1 rows)/t(1 row) in one run are to agree to this.
RATIO_BAR = 0.10
# Held-out passes: fewer make no good profile, and next to none no verdict at all.
_FEW, _TOO_FEW = 10, 5

Level = Literal["good", "usable", "do not trust"]


@dataclass(frozen=True)
class Verdict:
    """Whether to believe the profile, why, and what would make it better."""

    level: Level
    reasons: tuple[str, ...]
    advice: tuple[str, ...]


@dataclass(frozen=True)
class FreeRows:
    """The most rows a sequence that cost less than a tenth more than one, at a batch and context; measured among the rows
    that were, modelled up to 256."""

    where: str
    measured: int
    modelled: int


@dataclass(frozen=True)
class CoefficientRow:
    """One coefficient as found. low, high: 95 % interval. of: what a fraction is of, in datasheet units, "" for times."""

    name: str
    value: float
    low: float
    high: float
    relative_std: float
    of: str
    at_bound: bool


@dataclass(frozen=True)
class FitReport:
    """The fitted device and the evidence. regime: how its own PyTorch verifies several rows. host: what the host does beside the
    passes. ratio_noise: of the ratios that decide, None where too few rounds tell it."""

    header: Header
    sha256: str
    hardware: Hardware
    regime: AttentionRegime
    parts: tuple[Part[Any], ...]
    ratios: tuple[RatioRow, ...]
    free: tuple[FreeRows, ...]
    host: tuple[str, ...] = ()
    ratio_noise: RatioNoise | None = None
    verdict: Verdict = Verdict("do not trust", (), ())

    @property
    def coefficients(self) -> tuple[CoefficientRow, ...]:
        return tuple(row for part in self.parts for row in _rows(part, self.hardware))

    def part(self, beginning: str) -> Part[Any] | None:
        """The first part whose name begins so."""
        return next((part for part in self.parts if part.name.startswith(beginning)), None)


def _rows(part: Part[Any], hardware: Hardware) -> Iterator[CoefficientRow]:
    """What was fitted, with intervals; what was chosen from a list (tiles, a fixed smoothness) has none."""
    dtype = part.name.split()[1] if part.name.startswith("GEMM") else ""
    for name, value in part.values.items():
        fitted = part.fit is not None and name in part.fit.names
        low, high = part.fit.interval(name) if part.fit is not None and fitted else (value, value)
        std = part.fit.std(name) / value if part.fit is not None and fitted and value else 0.0
        full = f"{name}.{dtype}" if dtype else name
        yield CoefficientRow(
            full, value, max(low, 0.0), high, std, _of(name, dtype, hardware), name in (part.fit.at_bound if part.fit else ())
        )


def _of(name: str, dtype: str, hardware: Hardware) -> str:
    profile = hardware.profile
    if "bandwidth_fraction" in name:
        peak = profile.memory_bandwidth_bytes_per_s
        return f"{peak.value / 1e9:.4g} GB/s ({peak.source})"
    if "flops_fraction" in name:
        rate = profile.peak_flops_per_s[dtype or hardware.wide_dtype]
        return f"{rate.value / 1e12:.4g} TFLOP/s ({rate.source})"
    return ""


def free_rows(
    observations: Sequence[Observation[Forward]], predict: Callable[[Sequence[Forward]], Sequence[float]], dtype: str
) -> list[FreeRows]:
    """For each model, batch and context of which one row was measured: rows that are as good as free."""
    by_place: dict[tuple[str, int, int], dict[int, float]] = {}
    for each in observations:
        cell = each.inputs
        by_place.setdefault((cell.model, cell.batch, cell.context), {})[cell.rows] = each.measured
    found = []
    for (model, batch, context), times in sorted(by_place.items()):
        if 1 not in times or len(times) < 2:
            continue
        measured = _last_free(sorted(times.items()))
        rows = range(1, _MOST_FREE_ROWS + 1)
        modelled = _last_free(list(zip(rows, predict([Forward(model, batch, each, context) for each in rows]), strict=True)))
        found.append(FreeRows(f"{model} {dtype}, batch {batch}, context {context}", measured, modelled))
    return found


def _last_free(times: Sequence[tuple[int, float]]) -> int:
    """The last row count before the first that costs a tenth more than one."""
    last = 1
    for rows, seconds in times:
        if seconds >= FREE * times[0][1]:
            break
        last = rows
    return last


# -------------------------------------------------------------------------------------------------------------- verdict


def verdict_on(report: FitReport) -> Verdict:
    """Good, usable or not to be trusted, by errors on cells that were not fitted; noise of the measurement caps it."""
    part = report.part("whole forward") or report.part("GEMM")
    assert part is not None
    name = part.name if part.name.startswith("whole") else "GEMM (no whole forward was measured)"
    judged = part.held_out
    if judged is None:
        return Verdict("do not trust", (f"{name}: no held-out cell was measured",), ("more minutes: the plan was cut short",))
    rows = [row for row in report.ratios if row.name.startswith(part.name)]
    found = (judged.median, max((row.errors.median for row in rows), default=1.0))
    level: Level = "good" if _within(found, _GOOD) else "usable" if _within(found, _USABLE) else "do not trust"
    noise = part.noise or 0.0
    if judged.count < _TOO_FEW:
        level = "do not trust"
    ratio_noise = report.ratio_noise.difference if report.ratio_noise else math.inf
    if level == "good" and (
        noise > _NOISY or ratio_noise > RATIO_BAR or judged.count < _FEW or not part.name.startswith("whole")
    ):
        level = "usable"
    reasons = [f"{name}: median error {judged.median:.1%} on {judged.count} held-out cells, 90th percentile {judged.p90:.1%}"]
    for row in rows:
        what = "of a second measurement" if row.name != part.name else "where a pass was held out"
        reasons.append(f"ratio t(b(γ+1))/t(b), {what}: median error {row.errors.median:.1%}, worst {row.errors.worst:.1%}")
    if part.noise is not None:
        reasons.append(f"noise of the measurement itself: {part.noise:.1%}")
    reasons += _noise_of_ratios(report)
    reasons += [f"{each.name}: {each.problem.partition('; ')[0]}" for each in report.parts if each.problem]
    return Verdict(level, tuple(reasons), tuple(_advice(report, part, judged, level)))


def _noise_of_ratios(report: FitReport) -> Iterator[str]:
    """What the ratios that decide may differ by in a second measurement, for noise alone."""
    if report.ratio_noise is not None:
        found = report.ratio_noise.difference
        yield f"noise of the ratio t(γ+1 rows)/t(1 row): a second measurement differs by up to {found:.1%} for it alone"
    elif report.part("whole forward"):
        yield "noise of the ratio t(γ+1 rows)/t(1 row): too few rounds to tell"


def _within(found: tuple[float, float], bars: tuple[float, float]) -> bool:
    return all(value <= bar for value, bar in zip(found, bars, strict=True))


def _advice(report: FitReport, part: Part[Any], judged: Errors, level: Level) -> Iterator[str]:
    header = report.header
    if (part.noise or 0.0) > _NOISY:
        busy = f"load was {header.load_average:.1f} on {header.threads} threads" if header.device == "cpu" else "clocks moved"
        yield f"a quieter machine: {busy}"
    if report.part("whole forward") and (report.ratio_noise is None or report.ratio_noise.difference > RATIO_BAR):
        yield f"a quieter machine or more minutes than {header.minutes:g}: this noise hides ratios closer than {RATIO_BAR:.0%}"
    elif judged.count < _FEW:
        yield f"more minutes than {header.minutes:g}"
    if level != "good" and judged.median > max(_GOOD[0], 2 * (part.noise or 0.0)):
        yield f"the law misses something here that longer measuring does not mend; worst at {part.worst}"


# ----------------------------------------------------------------------------------------------------------------- text


def report_lines(report: FitReport) -> list[str]:
    """The report as lines of text: verdict first, then coefficients, errors, ratios, free rows."""
    header, verdict = report.header, report.verdict
    threads = f", {header.threads} thread{'s' if header.threads > 1 else ''}" if header.device == "cpu" else ""
    lines = [f"{header.device_name}{threads}: {verdict.level}", ""]
    lines += [f"  {reason}" for reason in verdict.reasons] + [f"  → {each}" for each in verdict.advice]
    lines += ["", "Coefficients (95 % interval)"]
    rows = [
        (row.name, _number(row.value), f"{_number(row.low)} … {_number(row.high)}" if row.high > row.low else "chosen",
         ("of " + row.of if row.of else "") + (", at its bound" if row.at_bound else ""))
        for row in report.coefficients
    ]  # fmt: skip
    lines += _aligned(("coefficient", "value", "interval", ""), rows)
    for part in report.parts:
        if part.row_factors:
            factors = ", ".join(f"{rows}: {value:.2f}" for rows, value in part.row_factors.items())
            lines.append(f"  factors by rows, {part.name}: {factors}")
    lines += ["", "Errors |predicted / measured - 1|; held-out cells were never fitted"]
    errors_rows = [
        (part.name, part.law, *_error_cells(part.fitted), *_error_cells(part.held_out), _percent(part.noise), part.worst)
        for part in report.parts
    ]
    lines += _aligned(("part", "law", "fitted", "cells", "held out", "cells", "noise", "worst at"), [
        (name, law, f, fc, h, hc, noise, worst) for name, law, f, fc, h, hc, noise, worst in errors_rows
    ])  # fmt: skip
    lines += ["", "Ratio t(b(γ+1))/t(b), γ = 1..8, where one of the two was not fitted"]
    lines += _aligned(
        ("of", "median", "p90", "worst", "pairs", "worst at"),
        [
            (
                row.name,
                _percent(row.errors.median),
                _percent(row.errors.p90),
                _percent(row.errors.worst),
                str(row.errors.count),
                row.worst,
            )
            for row in report.ratios
        ],
    )
    if report.free:
        lines += ["", f"Free verification: rows a sequence that cost less than {FREE - 1:.0%} more than one"]
        lines += _aligned(("where", "measured", "modelled"), [(r.where, str(r.measured), str(r.modelled)) for r in report.free])
    return [*lines, *(["", *report.host] if report.host else [])]


def _error_cells(found: Errors | None) -> tuple[str, str]:
    return ("-", "0") if found is None else (f"{found.median:.1%} p90 {found.p90:.1%} max {found.worst:.0%}", str(found.count))


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _number(value: float) -> str:
    return f"{value:.3g}"


def _aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[index]) for row in (header, *rows)) for index in range(len(header))]
    return [
        "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in (header, *rows)
    ]
