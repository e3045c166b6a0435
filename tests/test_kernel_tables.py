"""Laws of the fits to published kernel tables: what is held out never meets the fit, and the bars of docs/model.md hold there."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from calibration.fit import Errors, Law, errors
from calibration.kernel_tables import gemm_table
from calibration.measurement import MeasurementError
from simulator.calibrate.cells import gemm_cells
from simulator.calibrate.gemm_fitting import fit_gemm
from simulator.calibrate.laws import Attention, attention_law
from simulator.calibrate.parts import Cells, settled
from simulator.calibrate.tables import (
    SOURCES,
    attention_tables,
    gemm_rule,
    judge_layers,
    layer_measurements,
    leave_one_matrix_out,
)
from simulator.hardware import Hardware, find_hardware

TABLES = Path(__file__).parents[2] / "shared" / "data" / "gpu_timing"
pytestmark = pytest.mark.skipif(not TABLES.is_dir(), reason="no published kernel tables")
LAYERS = ("a100_sxm_80gb", "a40", "h100_sxm", "rtx_4090", "rtx_pro_6000")


def judge(cells: Cells[Attention], law: Law[Attention]) -> Errors:
    """Errors of a law without free parameters on what is held out."""
    return errors(law({}, [cell.inputs for cell in cells.held_out]), [cell.measured for cell in cells.held_out])


@cache
def layer_fit(profile_id: str) -> tuple[Hardware, dict[str, Errors]]:
    """Eight row counts of one device's four matrices fitted; the device, and the errors on all else."""
    layers = layer_measurements(TABLES, SOURCES[profile_id])
    dtype = str(layers[0].inputs["dtype"])
    part = fit_gemm(find_hardware(profile_id), dtype, gemm_cells(layers, dtype), tiles=SOURCES[profile_id].tiles)
    hardware = settled(find_hardware(profile_id), part, "", dtype)
    return hardware, dict(judge_layers(layers, hardware, dtype, "layers"))


@pytest.mark.parametrize("profile_id", [name for name, source in SOURCES.items() if source.gemm])
def test_held_out_matrices_share_no_shape_with_fitted_ones(profile_id: str) -> None:
    for file, dtype in SOURCES[profile_id].gemm[:1]:
        cells = gemm_cells(gemm_table(TABLES / file, dtype, gemm_rule(dtype)), dtype)
        shapes = [{cell.group for cell in side} for side in (cells.fit, cells.held_out)]
        assert not shapes[0] & shapes[1]
        assert min(len(each) for each in shapes) >= 20


@pytest.mark.parametrize("profile_id", LAYERS)
def test_held_out_layers_share_no_cell_with_fitted_ones(profile_id: str) -> None:
    layers = layer_measurements(TABLES, SOURCES[profile_id])
    cells = gemm_cells(layers, str(layers[0].inputs["dtype"]))
    assert len(cells.fit) == 8 * 4
    assert not {cell.inputs for cell in cells.fit} & {cell.inputs for cell in cells.held_out}


@pytest.mark.parametrize("profile_id", LAYERS)
def test_layers_up_to_512_rows_are_predicted_within_8_percent(profile_id: str) -> None:
    assert layer_fit(profile_id)[1]["layers, 1 device"].mean < 0.08


@pytest.mark.parametrize(
    ("profile_id", "devices"),
    [
        ("a100_sxm_80gb", 2),
        ("a100_sxm_80gb", 4),
        ("a100_sxm_80gb", 8),
        ("a40", 2),
        ("a40", 4),
        ("a40", 8),
        ("h100_sxm", 2),
        ("h100_sxm", 4),
    ],
)
def test_layers_split_over_devices_are_predicted_within_10_percent(profile_id: str, devices: int) -> None:
    """From one device's layer alone. On the H100 over 8 devices matrices are too short for what one device taught: 13 %."""
    assert layer_fit(profile_id)[1][f"layers, {devices} devices"].mean < 0.10


@pytest.mark.parametrize("profile_id", LAYERS)
def test_a_matrix_is_predicted_from_the_other_three_within_10_percent(profile_id: str) -> None:
    layers = layer_measurements(TABLES, SOURCES[profile_id])
    dtype = str(layers[0].inputs["dtype"])
    ((_, found),) = leave_one_matrix_out(layers, find_hardware(profile_id), dtype, SOURCES[profile_id].tiles)
    assert found.mean < 0.10


def test_waves_of_blocks_are_what_narrow_matrices_of_a_split_layer_run_into() -> None:
    """H100 layers over 8 devices: the form without them errs by 15 to 16 %, and so does every table by rows."""
    assert layer_fit("h100_sxm")[0].coefficients.gemm_wave_power.value > 0.3
    assert layer_fit("h100_sxm")[1]["layers, 8 devices"].mean < 0.135


@pytest.mark.parametrize(
    ("profile_id", "bar"),
    [("a100_sxm_80gb", 0.06), ("h100_sxm", 0.06), ("rtx_4090", 0.06), ("rtx_pro_6000", 0.06), ("a40", 0.10)],
)
def test_ratios_of_layers_are_predicted_within_6_percent(profile_id: str, bar: float) -> None:
    """t(b(γ+1))/t(b), γ = 1..8; times of the A40 are stored in whole microseconds and step irregularly: 9 % there."""
    assert layer_fit(profile_id)[1]["layers, 1 device, ratio"].median < bar


@pytest.mark.parametrize("profile_id", ["a40", "rtx_4090", "rtx_pro_6000"])
def test_shipped_coefficients_are_those_of_this_fit(profile_id: str) -> None:
    """The devices whose fit takes seconds; those with single GEMMs were fitted by the same call."""
    fitted = layer_fit(profile_id)[0].coefficients
    shipped = find_hardware(profile_id).coefficients
    for name in ("memory_bandwidth_fraction", "gemm_overhead_s", "gemm_smoothness", "gemm_tile_rows", "gemm_wave_power"):
        assert getattr(shipped, name).value == pytest.approx(getattr(fitted, name).value, rel=0.005), name


@pytest.mark.parametrize("profile_id", [name for name, source in SOURCES.items() if source.decode or source.mixed])
def test_decode_attention_over_a_cold_cache_is_predicted_within_10_percent(profile_id: str) -> None:
    """With the shipped coefficients, on cells that were not fitted (A100: 13 %)."""
    cells = attention_tables(TABLES, SOURCES[profile_id])["decode"]
    law = attention_law(find_hardware(profile_id), "bf16", "split_kv", {"attention_flops_fraction": 1.0})
    found = judge(cells, law)
    assert found.median < (0.13 if profile_id == "a100_sxm_80gb" else 0.10)


@pytest.mark.parametrize("profile_id", ["rtx_4090", "rtx_pro_6000"])
def test_serial_walks_beside_decodes_are_predicted_within_10_percent(profile_id: str) -> None:
    cells = attention_tables(TABLES, SOURCES[profile_id])["walk"]
    found = judge(cells, attention_law(find_hardware(profile_id), "bf16", "serial_walk"))
    assert found.count > 500
    assert found.median < 0.10


def test_a_table_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match=r"gone\.csv: cannot be read"):
        gemm_table(tmp_path / "gone.csv", "bf16", gemm_rule("bf16"))
