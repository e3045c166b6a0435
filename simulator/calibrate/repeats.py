"""What speculation turns on, judged in one process: the ratio t(γ+1 rows)/t(1 row) of the main model as the fitted profile has
it, as measured, and as measured a second time with samples of its own, which no fit has seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from calibration.measurement import Measurement, MeasurementFile
from simulator.architecture import config_of
from simulator.calibrate.laws import Forward, forward_law
from simulator.calibrate.levels import with_levels
from simulator.calibrate.report import RATIO_BAR, FitReport


@dataclass(frozen=True, slots=True)
class RepeatedRatio:
    """t(γ+1)/t(1), γ = `num_speculative_tokens`: of the profile, and by two independent measurements; samples: behind the
    poorest of the four times."""

    num_speculative_tokens: int
    profile: float
    first: float
    second: float
    samples: int

    @property
    def profile_error(self) -> float:
        """|profile / second - 1|."""
        return abs(self.profile / self.second - 1)

    @property
    def difference(self) -> float:
        """|first / second - 1|: what measuring again changes."""
        return abs(self.first / self.second - 1)


def repeated_ratios(file: MeasurementFile, report: FitReport) -> tuple[str, list[RepeatedRatio]]:
    """(what was measured twice, its ratios); empty where the time was too short for a second measurement."""
    file = with_levels(file)
    again = file.of("forward", split="check")
    if not again:
        return "", []
    where = {name: again[0].inputs[name] for name in ("model", "dtype", "mode", "batch", "context")}
    second = _by_rows(again, where)
    first = _by_rows([each for each in file.of("forward") if each.split != "check"], where)
    words = "{model} {dtype}, {mode}, batch {batch}, context {context}".format(**where)
    rows = sorted(first.keys() & second.keys())
    if 1 not in rows:
        return words, []
    modelled = dict(zip(rows, _modelled(report, where, rows), strict=True))
    return words, [
        RepeatedRatio(
            number - 1,
            modelled[number] / modelled[1],
            first[number].median_s / first[1].median_s,
            second[number].median_s / second[1].median_s,
            min(len(each[at].seconds) for each in (first, second) for at in (1, number)),
        )
        for number in rows[1:]
    ]


def _modelled(report: FitReport, where: Mapping[str, int | float | str], rows: Sequence[int]) -> Sequence[float]:
    """Seconds of the passes by the fitted device."""
    name, batch, context = str(where["model"]), int(where["batch"]), int(where["context"])
    models = {name: config_of(report.header.models[name], Path(name)).architecture}
    law = forward_law(report.hardware, str(where["dtype"]), report.regime, models)
    return law({}, [Forward(name, batch, number, context) for number in rows])


def _by_rows(measured: Sequence[Measurement], where: dict[str, int | float | str]) -> dict[int, Measurement]:
    return {
        int(each.inputs["rows"]): each for each in measured if all(each.inputs[name] == value for name, value in where.items())
    }


def repeat_lines(file: MeasurementFile, report: FitReport) -> list[str]:
    """Profile and both measurements side by side, as lines of text."""
    where, ratios = repeated_ratios(file, report)
    if not ratios:
        return ["No second measurement of the ratio t(γ+1)/t(1): more --minutes are needed."]
    off, apart = (max(ratios, key=key) for key in (lambda each: each.profile_error, lambda each: each.difference))
    return [
        f"Ratio t(γ+1 rows)/t(1 row), {where}",
        f"  γ                {'  '.join(f'{ratio.num_speculative_tokens:5d}' for ratio in ratios)}",
        f"  profile          {'  '.join(f'{ratio.profile:5.2f}' for ratio in ratios)}",
        f"  measured         {'  '.join(f'{ratio.first:5.2f}' for ratio in ratios)}",
        f"  measured again   {'  '.join(f'{ratio.second:5.2f}' for ratio in ratios)}",
        f"  Off the second measurement, never fitted: the profile by at most {off.profile_error:.1%} (γ = "
        f"{off.num_speculative_tokens}), the first measurement by at most {apart.difference:.1%} (γ = "
        f"{apart.num_speculative_tokens}); {min(ratio.samples for ratio in ratios)} samples or more each.",
        f"  {_verdict(report, off.profile_error)}",
    ]


def _verdict(report: FitReport, error: float) -> str:
    """Whether profile and second measurement agree, and whether noise would let them."""
    passes, noise = report.part("whole forward"), report.ratio_noise
    if passes is None or passes.problem or not (passes.values or passes.row_factors):
        return "No pass was fitted: more --minutes are needed."
    words = f"noise alone makes up to {noise.difference:.1%}" if noise else "too few samples to tell what noise makes"
    if error <= RATIO_BAR:
        return f"Within {RATIO_BAR:.0%}; {words}."
    if noise is None or noise.difference >= RATIO_BAR:
        return f"Not within {RATIO_BAR:.0%}, and this noise forbids better: {words}."
    return f"Not within {RATIO_BAR:.0%}, though {words}: the law misses something here."
