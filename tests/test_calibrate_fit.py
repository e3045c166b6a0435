"""Laws of fitting a device: known coefficients come back, held-out cells judge, the same file gives the same profile."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibration.fit import Fit, Observation, UnidentifiableError
from calibration.measurement import (
    Cell,
    Header,
    Kind,
    Measurement,
    MeasurementFile,
    Value,
    Visit,
)
from calibration.measurement_file import MeasurementWriter, read_measurements
from simulator.architecture import config_of
from simulator.calibrate import pass_fitting
from simulator.calibrate.attention_fitting import fit_walk
from simulator.calibrate.cells import row_series
from simulator.calibrate.compare import compare, comparison_lines
from simulator.calibrate.device_fit import fit_measurements
from simulator.calibrate.figure import write_figure
from simulator.calibrate.gemm_fitting import fit_gemm, gemm_seconds
from simulator.calibrate.laws import Attention, Forward, Gemm, attention_law, forward_law, with_coefficients, with_row_factors
from simulator.calibrate.parts import Cells
from simulator.calibrate.profile import profile_text, write_profile
from simulator.calibrate.repeats import repeated_ratios
from simulator.calibrate.report import FitReport, report_lines
from simulator.cost.roofline import logits_s
from simulator.hardware import Hardware, find_hardware
from simulator.plots.kernel_fit import GemmPoint, fit_table

CONFIGS = {
    name: {
        "model_type": "llama", "hidden_size": hidden, "intermediate_size": 4 * hidden, "num_hidden_layers": layers,
        "num_attention_heads": hidden // 128, "num_key_value_heads": max(hidden // 512, 1), "head_dim": 128, "vocab_size": 32000,
        "tie_word_embeddings": False, "max_position_embeddings": 8192, "hidden_act": "silu", "rms_norm_eps": 1e-5,
    }
    for name, hidden, layers in (("wide", 4096, 8), ("narrow", 2048, 16))
}  # fmt: skip
TRUTH = {
    "memory_bandwidth_fraction": 0.82, "gemm_overhead_s": 5e-6, "gemm_smoothness": 2.6, "gemm_tile_rows": 64.0,
    "attention_overhead_s": 1.2e-5, "attention_bandwidth_fraction": 0.77, "attention_wave_s": 3e-6,
    "attention_flops_fraction": 0.2, "elementwise_overhead_s": 4e-6, "gemm_walk_s_per_k": 0.0,
}  # fmt: skip
SHAPES = ((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (2048, 2048), (16384, 2048), (2048, 8192), (32000, 4096))
ROWS = (1, 2, 3, 4, 8, 16, 64, 65, 160, 512, 2048)
ROUNDS = 5


def true_device(one_row: float = 1.0) -> Hardware:
    device = with_coefficients(find_hardware("h100_sxm"), TRUTH)
    device = with_coefficients(device, {"flops_fraction": 0.7}, "bf16")
    return with_row_factors(device, "bf16", {1: one_row, 2: 1.0} if one_row != 1 else {})


def split(index: int) -> str:
    return "held_out" if index % 4 == 3 else "fit"


def cells(device: Hardware) -> list[tuple[Cell, float]]:
    """The plan of a run, and what each cell takes on `device`."""
    return [*gemm_plan(device), *attention_plan(device), *pass_plan(device)]


def gemm_plan(device: Hardware) -> Iterator[tuple[Cell, float]]:
    for index, (n, k) in enumerate(SHAPES):
        for m in ROWS:
            inputs = {"m": m, "n": n, "k": k, "dtype": "bf16"}
            yield Cell(kind="gemm", inputs=inputs, split=split(index)), gemm_seconds(device, "bf16")([Gemm(m, n, k)])[0]


def attention_plan(device: Hardware) -> Iterator[tuple[Cell, float]]:
    law = attention_law(device, "bf16", "split_kv")
    places = itertools.product((1, 2, 4, 16, 32), (1, 4, 16, 64), (128, 1024, 4096, 16384))
    for index, (rows, batch, context) in enumerate(places):
        kind = "verify_attention" if rows > 1 else "decode_attention"
        inputs = {
            "batch": batch,
            "rows": rows,
            "context": context,
            "heads": 32,
            "kv_heads": 8,
            "head_dim": 128,
            "dtype": "bf16",
            "backend": "flash",
        }
        yield Cell(kind=kind, inputs=inputs, split=split(index)), law({}, [Attention(batch, rows, context + rows, 32, 8, 128)])[0]


def pass_plan(device: Hardware) -> Iterator[tuple[Cell, float]]:
    models = {name: config_of(config, Path(name)).architecture for name, config in CONFIGS.items()}
    law = forward_law(device, "bf16", "split_kv", models)
    places = itertools.product(CONFIGS, (1, 4), (256, 2048), (1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 33))
    for index, (model, batch, context, rows) in enumerate(places):
        inputs = {"model": model, "batch": batch, "rows": rows, "context": context, "dtype": "bf16", "mode": "cuda_graph"}
        seconds = law({}, [Forward(model, batch, rows, context)])[0]
        yield Cell(kind="forward", inputs=inputs, split=split(index)), seconds
        if batch == 1 and split(index) == "fit":
            yield Cell(kind="forward", inputs=inputs, split="check"), seconds


def measured(
    path: Path, device: Hardware, noise: float = 0.05, peaks: str = "h100_sxm", draws: bytes = b"samples"
) -> MeasurementFile:
    """A finished file of noisy times."""
    header = Header(
        device="cuda", device_name="NVIDIA H100 80GB HBM3", device_count=1, driver="570.1, CUDA 12.8", torch="2.13.0",
        transformers="5.24.0", compute_capability="9.0", memory_bytes=85e9, cache_bytes=50 * 2**20, compute_units=132,
        dtypes=("bf16",), threads=1, load_average=0.1, clock="device", started="2026-11-29T12:00:00+00:00", minutes=3.0, seed=0,
        peaks=peaks, plan="0" * 16, models=CONFIGS,
    )  # fmt: skip
    noises = np.random.default_rng([11, *draws])
    # Waiting for the disk after each line would take most of the test.
    with pytest.MonkeyPatch.context() as patch, MeasurementWriter.create(path, header) as writer:
        patch.setattr(os, "fsync", lambda handle: None)
        plan = cells(device)
        for number in range(ROUNDS):
            for cell, seconds in plan:
                taken = tuple(float(f"{seconds * math.exp(each):.6g}") for each in noises.normal(0, noise, 3))
                writer.append(Visit(cell=cell, round=number, at_s=float(number), seconds=taken))
        writer.finish()
    return read_measurements(path)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "device.jsonl"
    measured(path, true_device())
    return path


@pytest.fixture(scope="module")
def report(stored: Path) -> FitReport:
    return fit_measurements(read_measurements(stored))


@pytest.mark.parametrize(("name", "tolerance"), [
    ("memory_bandwidth_fraction", 0.03), ("gemm_overhead_s", 0.15), ("gemm_smoothness", 0.25), ("attention_bandwidth_fraction", 0.04),
    ("attention_overhead_s", 0.10), ("attention_flops_fraction", 0.08), ("elementwise_overhead_s", 0.15),
])  # fmt: skip
def test_coefficients_of_a_known_device_come_back_from_noisy_times(report: FitReport, name: str, tolerance: float) -> None:
    assert getattr(report.hardware.coefficients, name).value == pytest.approx(TRUTH[name], rel=tolerance)


def test_the_arithmetic_rate_and_its_interval_come_back(report: FitReport) -> None:
    assert report.hardware.coefficients.flops_fraction["bf16"].value == pytest.approx(0.7, rel=0.04)
    row = next(row for row in report.coefficients if row.name == "flops_fraction.bf16")
    assert row.low - (row.high - row.low) < 0.7 < row.high + (row.high - row.low)
    assert "989.4 TFLOP/s (datasheet)" in row.of


def test_a_sound_run_is_believed_and_says_its_noise(report: FitReport) -> None:
    assert report.verdict.level == "good"
    passes = report.part("whole forward")
    assert passes is not None
    assert passes.held_out is not None
    assert passes.held_out.median < 0.03
    # Three samples of 5 % in each of five rounds: a median is uncertain by about 1.5 %.
    assert passes.noise == pytest.approx(0.013, abs=0.006)
    text = "\n".join(report_lines(report))
    assert "held out" in text
    assert "whole forward bf16, cuda_graph, measured again" in text
    assert "Free verification" in text


def test_free_rows_are_those_that_cost_less_than_a_tenth_more(report: FitReport) -> None:
    for row in report.free:
        assert row.modelled >= 1
    alone = [row for row in report.free if "batch 1" in row.where]
    assert all(row.modelled >= row.measured or row.measured == 33 for row in alone)


@pytest.mark.parametrize("walk", [0.0, 1.3e-9])
def test_a_walk_along_k_is_found_where_there_is_one(walk: float) -> None:
    """25 matrices of 0.5 to 134 MB, 5 % noise."""
    device = with_coefficients(true_device(), {"gemm_walk_s_per_k": walk, "gemm_walk_longest_s": 5e-6})
    sides, noise = (512, 1024, 2048, 4096, 8192), np.random.default_rng(5)
    gemms = [Gemm(m, n, k) for n in sides for k in sides for m in (1, 4, 16, 64, 256, 1024)]
    times = [seconds * float(np.exp(noise.normal(0, 0.05))) for seconds in gemm_seconds(device, "bf16")(gemms)]
    cells = [Observation(cell, seconds, f"{cell.n}x{cell.k}") for cell, seconds in zip(gemms, times, strict=True)]
    part = fit_gemm(find_hardware("h100_sxm"), "bf16", Cells(cells, ()), tiles=(64,))
    assert ("walk" in part.law) == (walk > 0)
    assert part.values["gemm_walk_s_per_k"] == pytest.approx(walk, rel=0.12)
    if walk:
        assert part.values["gemm_walk_longest_s"] == pytest.approx(5e-6, rel=0.12)


def test_what_blocks_spend_on_starting_and_ending_is_found_where_they_do() -> None:
    """36 matrices of 1 to 134 MB up to 2048 rows, 5 % noise; without it two of three coefficients would take it over."""
    device = with_coefficients(true_device(), {"gemm_fill_k": 250.0})
    sides, noise = (512, 1024, 2048, 3072, 4096, 8192), np.random.default_rng(7)
    gemms = [Gemm(m, n, k) for n in sides for k in sides for m in (1, 4, 16, 64, 256, 1024, 2048)]
    times = [seconds * float(np.exp(noise.normal(0, 0.05))) for seconds in gemm_seconds(device, "bf16")(gemms)]
    cells = [Observation(cell, seconds, f"{cell.n}x{cell.k}") for cell, seconds in zip(gemms, times, strict=True)]
    part = fit_gemm(find_hardware("h100_sxm"), "bf16", Cells(cells, ()), tiles=(64,))
    assert part.values["gemm_fill_k"] == pytest.approx(250.0, rel=0.15)
    assert part.values["flops_fraction"] == pytest.approx(true_device().coefficients.flops_fraction["bf16"].value, rel=0.03)


def test_a_level_of_its_own_for_one_row_is_found_and_kept(tmp_path: Path) -> None:
    """A matrix-vector kernel that takes 0.6 of what the matrix kernel would: without its level, every ratio is off by it."""
    found = fit_measurements(measured(tmp_path / "run.jsonl", true_device(0.6), 0.02))
    factors = found.hardware.profile.gemm_row_factors["bf16"]
    assert factors.at(1) / factors.at(2) == pytest.approx(0.6, rel=0.05)
    gemm_part = found.part("GEMM")
    assert gemm_part is not None
    tried = {name: error for name, error in gemm_part.tried if isinstance(error, float)}
    assert tried[gemm_part.law] < 0.7 * tried["smooth maximum, tiles of 64 rows"]


def test_held_out_cells_are_never_fitted(stored: Path, report: FitReport) -> None:
    """Held-out times ten times too long move no coefficient, and ruin the judgement."""
    file = read_measurements(stored)
    spoilt = tuple(
        replace(each, seconds=tuple(10 * value for value in each.seconds)) if each.split == "held_out" else each
        for each in file.measurements
    )
    found = fit_measurements(replace(file, measurements=spoilt))
    same = {row.name: row.value for row in report.coefficients}
    assert {row.name: row.value for row in found.coefficients} == same
    assert found.verdict.level == "do not trust"


def test_rows_that_follow_no_law_are_kept_as_passes_showed_them(tmp_path: Path) -> None:
    """Three rows dearer than four, as small-row kernels of CPUs are: the profile's ratios are those of the measured passes."""
    jagged = {1: 0.6, 2: 1.1, 3: 1.6, 4: 0.9, 5: 1.2, 6: 1.0, 7: 1.3, 8: 0.8, 9: 1.1, 17: 1.0, 33: 1.0}
    device = with_row_factors(true_device(), "bf16", jagged)
    file = measured(tmp_path / "run.jsonl", device, 0.02)
    series = row_series(file, "bf16", "cuda_graph")
    assert series is not None
    found = fit_measurements(file)
    part = found.part("whole forward")
    assert part is not None
    assert "factors by rows of passes" in part.law
    factors = found.hardware.profile.gemm_row_factors["bf16"]
    rows = [cell.inputs.rows for cell in series.whole]
    assert len(rows) >= 7
    found_ratios = [factors.at(each) / factors.at(rows[0]) for each in rows]
    assert found_ratios == pytest.approx([jagged[each] / jagged[rows[0]] for each in rows], rel=0.06)


def test_smooth_rows_are_left_to_the_law(report: FitReport) -> None:
    part = report.part("whole forward")
    assert part is not None
    tried = dict(part.tried)
    chosen = part.law.startswith("matrices with factors")
    errors = [value for name, value in tried.items() if name.endswith("other repetitions") and isinstance(value, float)]
    assert chosen == (errors[0] > min(errors[1:]))


@pytest.mark.parametrize("copies", [False, True])
def test_verification_that_copies_the_cache_for_every_head_is_told_from_a_walk_that_does_not(copies: bool) -> None:
    truth = {
        "walk_overhead_s": 2e-5, "walk_s_per_token": 6e-8, "walk_fixed_s": 2e-6, "walk_row_s_per_token": 8e-9,
        "walk_copy_s_per_byte": 9e-11 * copies, "walk_copy_free_bytes": 5e6 * copies,
    }  # fmt: skip
    device = with_coefficients(find_hardware("epyc_9654"), truth)
    device = replace(device, profile=device.profile.model_copy(update={"compute_units": 1}))
    law = attention_law(device, "fp32", "serial_walk")
    places = itertools.product((1, 2, 4, 8), (2, 3, 4, 8, 16), (128, 256, 1024, 2048, 4096))
    inputs = [Attention(batch, rows, context + rows, 9, 3, 64) for batch, rows, context in places]
    noise = np.random.default_rng([3, *b"copies"]).normal(0, 0.03, len(inputs))
    cells = [
        Observation(each, seconds * math.exp(off), f"{each.batch}, {each.tokens - each.rows}")
        for each, seconds, off in zip(inputs, law({}, inputs), noise, strict=True)
    ]
    part = fit_walk(device, "fp32", Cells(cells[::2], cells[1::2]))
    assert ("copies" in part.law) == copies
    assert part.held_out is not None
    assert part.held_out.median < 0.04
    for name in ("walk_s_per_token", "walk_row_s_per_token", *(("walk_copy_s_per_byte",) if copies else ())):
        assert part.values[name] == pytest.approx(truth[name], rel=0.15), name


def _beside(file: MeasurementFile, *measurements: Measurement) -> MeasurementFile:
    return replace(file, measurements=(*file.measurements, *measurements))


def _once(kind: Kind, inputs: dict[str, Value], seconds: float, held_out: bool = False) -> Measurement:
    return Measurement(kind, inputs, "held_out" if held_out else "fit", (seconds,), (), (0,), (0.0,))


def test_all_reduce_and_sampling_times_reach_the_profile_and_its_answers(stored: Path, tmp_path: Path) -> None:
    file = read_measurements(stored)
    # Matrices are enough of a device beside them.
    file = replace(file, measurements=tuple(file.of("gemm")))
    reduced = [
        _once("all_reduce", {"devices": 2, "bytes": 2**power, "dtype": "bf16"},
              8e-6 + min(2**power, 2**20) / 9e10 + max(2**power - 2**20, 0) / 2e11, power == 18)
        for power in (13, 16, 18, 20, 23, 26)
    ]  # fmt: skip
    sampled = [
        _once("sampling", {"rows": rows, "vocab_size": 32000, "dtype": "bf16", "method": method},
              4.0 * rows * 32000 / 1e12 * times, rows == 4)
        for rows in (1, 4, 8, 16) for method, times in (("greedy", 1), ("multinomial", 20))
    ]  # fmt: skip
    crop = _once("kv_crop", {"layers": 30, "batch": 1}, 6e-5)
    found = fit_measurements(_beside(file, *reduced, *sampled, crop))
    write_profile(found, tmp_path / "two.yaml")
    loaded = find_hardware(str(tmp_path / "two.yaml"))
    cost = loaded.all_reduce("nccl", 2)
    assert (cost.alpha_s, cost.bandwidth_bytes_per_s, cost.large_message_bandwidth_bytes_per_s) == pytest.approx(
        (8e-6, 9e10, 2e11), rel=0.01
    )
    assert "custom" in loaded.profile.all_reduce
    assert loaded.sampling_bandwidth_bytes_per_s == pytest.approx(1e12, rel=0.01)
    assert logits_s(4, 32000, 2, loaded) == pytest.approx(2 * 4 * 4 * 32000 / 1e12, rel=0.01)
    text = "\n".join(report_lines(found))
    assert "cropping the KV cache 2.0 µs a layer" in text
    assert "softmax and a draw 20 times as long" in text


# -------------------------------------------------------------------------------------------------------------- profile


def test_the_written_profile_is_the_fitted_device(tmp_path: Path, report: FitReport) -> None:
    path = tmp_path / "mine.yaml"
    write_profile(report, path)
    loaded = find_hardware(str(path))
    cell = [Gemm(8, 4096, 4096)]
    assert gemm_seconds(loaded, "bf16")(cell) == pytest.approx(gemm_seconds(report.hardware, "bf16")(cell), rel=1e-9)
    assert loaded.coefficients.elementwise_overhead_s == report.hardware.coefficients.elementwise_overhead_s
    assert report.sha256 in path.read_text()
    assert "torch 2.13.0" in path.read_text()
    assert loaded.profile.peak_flops_per_s == find_hardware("h100_sxm").profile.peak_flops_per_s
    assert [each.name for each in tmp_path.iterdir()] == ["mine.yaml"]


def test_the_same_measurements_give_the_same_bytes_without_torch(stored: Path, report: FitReport) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None\n"
        "from pathlib import Path\n"
        "from calibration.measurement_file import read_measurements\n"
        "from simulator.calibrate.device_fit import fit_measurements\n"
        "from simulator.calibrate.profile import profile_text\n"
        "sys.stdout.write(profile_text(fit_measurements(read_measurements(Path(sys.argv[1])))))"
    )
    again = subprocess.run([sys.executable, "-c", code, str(stored)], capture_output=True, text=True, check=True)
    assert again.stdout == profile_text(report)


def test_a_device_that_no_datasheet_knows_gets_measured_peaks(stored: Path, report: FitReport, tmp_path: Path) -> None:
    file = read_measurements(stored)
    header = file.header.model_copy(update={"device_name": "ACME X1", "peaks": ""})
    unknown = replace(file, header=header, measurements=tuple(file.of("gemm")))
    found = fit_measurements(unknown)
    write_profile(found, tmp_path / "x1.yaml")
    loaded = find_hardware(str(tmp_path / "x1.yaml"))
    assert loaded.name == "ACME X1"
    assert loaded.profile.memory_bandwidth_bytes_per_s.source == "measured"
    cells_of = [Gemm(m, 4096, 4096) for m in (1, 8, 512)]
    assert gemm_seconds(loaded, "bf16")(cells_of) == pytest.approx(gemm_seconds(report.hardware, "bf16")(cells_of), rel=0.03)


def test_half_of_the_repetitions_may_leave_open_what_all_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the law may be told from all repetitions and not from half of them, by which it is judged."""
    asked = pass_fitting.fit

    def unsure(*given: Any, **how: Any) -> Fit:
        if how.get("tolerance") == 1e-7:
            raise UnidentifiableError(["attention_bandwidth_fraction"], "stays anywhere within its bounds")
        return asked(*given, **how)

    monkeypatch.setattr(pass_fitting, "fit", unsure)
    found = fit_measurements(read_measurements(SHIPPED[-1]))
    assert "gemm_row_factors" in profile_text(found)


ROOT = Path(__file__).parents[1]
SHIPPED = sorted((ROOT / "calibration" / "measurements").glob("*.jsonl"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_measurement_gives_its_shipped_profile_to_the_byte_and_holds_the_bar(path: Path) -> None:
    """Fitted again, the profile has the ratio t(γ+1 rows)/t(1 row) within 10 % of what a second series in the same run gave."""
    file = read_measurements(path)
    found = fit_measurements(file)
    assert profile_text(found) == (ROOT / "hardware_profiles" / f"{path.stem}.yaml").read_text()
    _, ratios = repeated_ratios(file, found)
    assert [ratio.num_speculative_tokens for ratio in ratios] == list(range(1, 9))
    assert max(ratio.profile_error for ratio in ratios) < 0.10
    # Whole passes that were not fitted, batches and contexts of their own and a model among them.
    part = found.part("whole forward")
    assert part is not None
    assert part.held_out is not None
    assert part.held_out.median < 0.15


# ----------------------------------------------------------------------------------------------------- two calibrations


def test_two_calibrations_of_an_unchanged_device_show_no_move(tmp_path: Path, report: FitReport) -> None:
    other = fit_measurements(measured(tmp_path / "again.jsonl", true_device(), 0.05, draws=b"again"))
    moved = compare(report.hardware, other.hardware)
    assert {"memory_bandwidth_bytes_per_s", "flops_per_s.bf16", "elementwise_overhead_s"} <= {each.name for each in moved}
    assert sum(each.significant for each in moved) <= 1
    assert "moved beyond" in comparison_lines(moved, "a.yaml", "b.yaml")[-1]


def test_a_slower_memory_is_the_one_thing_that_moved(report: FitReport) -> None:
    slower = with_coefficients(
        report.hardware, {"memory_bandwidth_fraction": 0.6}, quantity=report.hardware.coefficients.memory_bandwidth_fraction
    )
    significant = [each for each in compare(report.hardware, slower) if each.significant]
    assert [each.name for each in significant] == ["memory_bandwidth_bytes_per_s"]
    assert significant[0].ratio == pytest.approx(0.6 / report.hardware.coefficients.memory_bandwidth_fraction.value)
    assert significant[0].high is not None
    assert significant[0].high < 1


# --------------------------------------------------------------------------------------------------------------- figure


def test_the_figure_shows_points_law_ridge_and_residuals(stored: Path, report: FitReport, tmp_path: Path) -> None:
    points = [
        GemmPoint(int(each.inputs["m"]), int(each.inputs["n"]), int(each.inputs["k"]), each.median_s, each.split == "held_out")
        for each in read_measurements(stored).of("gemm")
    ]
    table = fit_table(points, report.hardware, "bf16")
    # Bytes over 3.35 TB/s equal FLOPs over 989 TFLOP/s at about 295 rows, more with activations.
    assert 295 < table.ridge_rows < 420
    assert float(np.median(np.abs(table.residuals))) < 0.03
    first = gemm_seconds(report.hardware, "bf16")(
        [Gemm(rows, *table.shape) for rows in (1, table.free_rows, table.free_rows + 1)]
    )
    assert first[1] < 1.1 * first[0] <= first[2]
    write_figure(read_measurements(stored), report, tmp_path / "device.png")
    assert (tmp_path / "device.png").read_bytes().startswith(b"\x89PNG")
