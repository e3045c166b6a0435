"""Laws of levelled rounds: what slows a whole round moves no ratio, and the noise that is claimed is the noise there is."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from calibration.measurement import Measurement, MeasurementFile
from calibration.measurement_file import read_measurements
from simulator.calibrate.device_fit import fit_measurements
from simulator.calibrate.levels import levelled, ratio_noise, with_levels
from simulator.calibrate.profile import write_profile
from simulator.calibrate.repeats import repeat_lines
from simulator.hardware import find_hardware

ROWS = range(1, 10)
RATIOS = [1.0, 1.6, 1.95, 1.53, 1.72, 1.78, 1.96, 1.83, 2.03]
RUN = Path(__file__).parents[1] / "calibration" / "measurements" / "zen5_one_thread.jsonl"


def passes(levels: list[float], noise: float, draws: int, split: str = "fit", context: int = 512) -> list[Measurement]:
    """Nine passes in rounds that were slowed by `levels`, that of one row thrice a round."""
    random = np.random.default_rng([draws, *split.encode()])
    found = []
    for rows, ratio in zip(ROWS, RATIOS, strict=True):
        rounds = [number for number in range(len(levels)) for _ in range(3 if rows == 1 else 1)]
        seconds = tuple(0.05 * ratio * levels[number] * math.exp(random.normal(0, noise)) for number in rounds)
        inputs = {"model": "a", "dtype": "fp32", "mode": "eager", "batch": 1, "rows": rows, "context": context}
        key = f"{split} {rows} {context}"
        found.append(Measurement("forward", inputs, split, seconds, (), tuple(rounds), (0.0,) * len(rounds), key=key))  # type: ignore[arg-type]
    return found


def ratios(measured: list[Measurement]) -> np.ndarray:
    return np.array([each.median_s for each in measured]) / measured[0].median_s


def a_file(measured: list[Measurement]) -> MeasurementFile:
    return replace(read_measurements(RUN), measurements=tuple(measured))


def slowed(rounds: int, draws: int) -> list[float]:
    """Rounds of a busy machine."""
    return [float(each) for each in np.exp(np.random.default_rng([7, draws]).normal(0, 0.15, rounds))]


def test_a_round_that_is_slowed_as_a_whole_moves_nothing() -> None:
    plain = levelled(passes([1.0] * 7, 0.0, 0))
    busy = levelled(passes([1.0, 2.5, 1.0, 1.7, 1.0, 1.0, 3.0], 0.0, 0))
    assert [each.seconds for each in plain] == [each.seconds for each in passes([1.0] * 7, 0.0, 0)]
    for before, after in zip(plain, busy, strict=True):
        assert after.seconds == pytest.approx(before.seconds, rel=1e-9)


def test_ratios_of_few_busy_rounds_scatter_less_once_levelled() -> None:
    """Six rounds of a busy machine, 4 % noise of one sample, two hundred machines."""
    errors: dict[bool, list[float]] = {False: [], True: []}
    for draws in range(200):
        measured = passes(slowed(6, draws), 0.04, draws)
        for level in errors:
            found = ratios(levelled(measured) if level else measured)
            errors[level] += np.abs(np.log(found / np.array(RATIOS)))[1:].tolist()
    assert np.quantile(errors[True], 0.9) < 0.06
    assert np.quantile(errors[True], 0.9) < 0.8 * np.quantile(errors[False], 0.9)


@pytest.mark.parametrize("rounds", [4, 8, 20])
def test_two_measurements_differ_by_what_their_noise_says(rounds: int) -> None:
    """At the worst γ too, nine times in ten; and it is no more than that needs."""
    inside, claimed, differences = [], [], []
    for draws in range(120):
        levels = slowed(rounds, draws)
        first, second = (passes(levels, 0.04, draws, split) for split in ("fit", "check"))
        noise = ratio_noise(a_file([*first, *second]))
        assert noise is not None
        apart = np.abs(np.log(ratios(levelled(first)) / ratios(levelled(second))))[1:]
        inside.append(apart.max() <= noise.difference)
        claimed.append(noise.difference)
        differences += apart.tolist()
    assert 0.8 < np.mean(inside) < 1
    assert np.median(claimed) == pytest.approx(2.73 * np.sqrt(np.mean(np.square(differences))), rel=0.3)


def test_first_and_second_measurement_are_levelled_apart_and_other_passes_not_at_all() -> None:
    levels = slowed(9, 3)
    first, second = (passes(levels, 0.03, 1, split) for split in ("fit", "check"))
    elsewhere = passes(levels, 0.03, 1, "fit", 1024)
    spoilt = [replace(each, seconds=tuple(3 * s for s in each.seconds)) for each in second]
    one, other = (with_levels(a_file([*first, *elsewhere, *again])).measurements for again in (second, spoilt))
    assert one[:18] == other[:18]
    assert list(one[9:18]) == elsewhere
    assert list(one[:9]) == levelled(first)


def test_a_run_cut_short_ends_with_a_profile_that_claims_nothing_and_says_why(tmp_path: Path) -> None:
    """One round of the passes that decide, and one matrix: too little for any coefficient."""
    whole = read_measurements(RUN)
    checked = {each.key for each in whole.of("forward", split="check")}
    places = [dict(each.inputs) for each in whole.measurements if each.key in checked]
    kept = [
        replace(each, seconds=each.seconds[:1], rounds=each.rounds[:1], at_s=each.at_s[:1], wall_seconds=each.wall_seconds[:1])
        for each in whole.measurements
        if each.seconds and ((each.kind == "forward" and dict(each.inputs) in places) or each.kind == "read")
    ]
    kept += whole.of("gemm")[:1]
    file = replace(whole, measurements=tuple(kept))
    report = fit_measurements(file)
    assert report.verdict.level == "do not trust"
    assert report.ratio_noise is None
    assert repeat_lines(file, report)[-1].strip() == "No pass was fitted: more --minutes are needed."
    write_profile(report, tmp_path / "short.yaml")
    assert yaml.safe_load((tmp_path / "short.yaml").read_text())["coefficients"] == {}
    assert find_hardware(str(tmp_path / "short.yaml")).coefficients.gemm_overhead_s.source == "assumed"
