"""Kernels of llama.cpp and MLX for a few rows, beside published times: rows above the dispatch limit run another kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.architecture import find_model
from simulator.cost.deployment import Deployment
from simulator.cost.forward import ForwardCost
from simulator.cost.forward_pass import uniform_pass
from simulator.cost.uncertainty import UncertainPricer
from simulator.hardware import find_hardware
from simulator.serving_engine import RowLaw, find_engine
from simulator.speculation import built_head

LLAMA_8B = "meta-llama/Llama-3.1-8B"


def steps(device: str, weights: str, rows: int, engine: str = "llamacpp", model: str = LLAMA_8B) -> float:
    """A pass of `rows` rows of one sequence, in passes of one row."""
    cost = ForwardCost(find_model(model), find_hardware(device), find_engine(engine), 1, weights, "fp16")
    one, several = (cost.price(uniform_pass(1, count, 128, None)).seconds for count in (1, rows))
    return several / one


# Rows → tokens/s of passes of so many rows (llama-bench with that microbatch), vector kernels.
PUBLISHED = {
    ("rtx_3090", "q4_0"): {1: 156.56, 2: 279.89, 4: 470.48, 6: 541.57, 8: 583.77},  # ggml-org/llama.cpp#15802
    ("rtx_5090", "q8_0"): {1: 189, 2: 360, 4: 655, 6: 799, 8: 928},  # ggml-org/llama.cpp#26079
    ("v100_sxm2_32gb", "q4_k_m"): {1: 113.7, 2: 199.2, 4: 255.3, 6: 260.0, 8: 280.3},  # in Q2_K, ggml-org/llama.cpp#28912
    ("mi210", "q8_0"): {1: 146.2, 2: 230.1, 4: 355.2, 6: 404.4, 8: 441.9},  # a MI100 in Q4_0, ggml-org/llama.cpp#23227
    ("rx_7900_xtx", "q4_k_m"): {1: 56.2, 2: 99.0, 4: 146.8, 8: 166.1},  # a RX 6800, ggml-org/llama.cpp#5351
    ("m1_pro", "q8_0"): {1: 23.75, 2: 37.02, 4: 66.85, 6: 63.97, 8: 71.21},  # a 7B, ggml-org/llama.cpp#10581
}


@pytest.mark.parametrize(("device", "weights", "rows"), [(*key, rows) for key, rates in PUBLISHED.items() for rows in rates])
def test_rows_of_a_vector_kernel_cost_what_was_measured(device: str, weights: str, rows: int) -> None:
    rates = PUBLISHED[device, weights]
    assert steps(device, weights, rows) == pytest.approx(rows * rates[1] / rates[rows], rel=0.25)


def test_columns_beyond_four_cost_more_than_those_before() -> None:
    """The vector kernel of CUDA runs half as many warps for them: an RTX 3090 takes 0.11 steps a row up to four and 0.2 beyond."""
    for device in ("rtx_3090", "v100_sxm2_32gb", "rx_7900_xtx"):
        passes = [steps(device, "q4_k_m", rows) for rows in (2, 4, 6, 8)]
        assert passes[3] - passes[2] > 1.3 * (passes[1] - passes[0])
    assert steps("m1_pro", "q4_k_m", 8) - steps("m1_pro", "q4_k_m", 6) == pytest.approx(
        steps("m1_pro", "q4_k_m", 4) - steps("m1_pro", "q4_k_m", 2), rel=0.1
    )


def test_a_data_centre_radeon_pays_no_cliff_at_three_rows_of_q8_0() -> None:
    """Vulkan re-reads nearly all of the weights for each row, HIP a fifth; its matrix kernel is flat from 9 to 32 rows."""
    assert steps("mi210", "q8_0", 3) < 1.5 < steps("r9700", "q8_0", 3)
    assert steps("mi210", "q8_0", 32) == pytest.approx(steps("mi210", "q8_0", 9), rel=0.05)


def test_a_law_with_half_a_kink_is_refused() -> None:
    law = find_engine("llamacpp").small_rows[0].model_dump()
    with pytest.raises(ValueError, match="must be given together"):
        RowLaw.model_validate({**law, "steeper_after_rows": None})


def test_nine_rows_fall_off_the_vector_kernel_of_vulkan_and_not_of_cuda() -> None:
    """2.1, 1.7 and 1.5 times as long on Radeons in three reports; CUDA's matrix kernel is no slower than the vector kernel's last."""
    jump = {device: steps(device, "q4_k_m", 9) / steps(device, "q4_k_m", 8) for device in ("strix_halo", "rtx_3090")}
    assert 1.4 < jump["strix_halo"] < 2.2
    assert jump["rtx_3090"] < 1


def test_c28_three_slots_scale_to_eight_rows_together() -> None:
    """ggml-org/llama.cpp#27544, a Radeon with Vulkan: three slots give 1.64 times one slot's rate at 6 rows, 1.07 at 9, 1.09 at 12."""
    gains = {rows: 3 * steps("strix_halo", "q4_k_m", rows) for rows in (2, 3, 4)}
    gains = {3 * rows: gain / steps("strix_halo", "q4_k_m", 3 * rows) for rows, gain in gains.items()}
    assert gains[6] > 1.6
    assert gains[9] == pytest.approx(1.07, rel=0.2)
    assert gains[12] == pytest.approx(1.09, rel=0.2)


def test_c29_a_ninth_sequence_lowers_the_rate_of_all() -> None:
    """ggml-org/llama.cpp#25356, Strix Halo with Vulkan, 512 experts in 4 bit: 122.5 tokens/s of eight sequences, 82.9 of nine."""
    model, device = find_model("Qwen/Qwen3-Next-80B-A3B-Instruct"), find_hardware("strix_halo")
    pricer = Deployment(device, find_engine("llamacpp"), model, "q4_k_m").pricer()
    rates = {batch: batch / pricer.plain(batch, 600).seconds for batch in (4, 8, 9, 32)}
    assert rates[4] < rates[8]
    assert rates[9] / rates[8] == pytest.approx(82.9 / 122.5, rel=0.2)
    assert rates[32] > rates[8]


def test_mlx_pays_for_a_tile_of_32_rows_above_nine() -> None:
    """ml-explore/mlx#3863, M3 Max in 4 bit: 0.508 ms for 10 to 32 rows, 1.002 for 33, where one row takes 0.129."""
    sixteen, thirty_two, more = (steps("m3_max", "mlx4", rows, "mlx") for rows in (16, 32, 33))
    assert thirty_two < 1.5 * sixteen
    assert sixteen == pytest.approx(0.508 / 0.129, rel=0.25)
    assert more > 1.2 * thirty_two


def test_a_row_law_is_of_a_backend_and_not_of_every_device() -> None:
    """MLX on NVIDIA and llama.cpp on a CPU run other kernels, of which these laws say nothing."""
    assert find_engine("mlx").row_law("bf16", find_hardware("h100_sxm")) is None
    assert find_engine("mlx").row_law("bf16", find_hardware("m3_max")) is not None
    assert find_engine("llamacpp").row_law("q4_k_m", find_hardware("xeon_8480")) is None
    laws = [find_engine("llamacpp").row_law("q4_k_m", find_hardware(name)) for name in ("rtx_4090", "R9700", "m3_max")]
    assert len({law.weight_reads(4) for law in laws if law is not None}) == 3


def test_what_is_not_sure_of_a_row_law_is_not_sure_of_r() -> None:
    target = find_model("Qwen/Qwen3.5-27B")
    deployment = Deployment(
        find_hardware("R9700"), find_engine("llamacpp"), target, "q5_k_m", method="mtp", drafter=built_head(target, "mtp", 3)
    )
    pricer = UncertainPricer(deployment)
    shifted = dict(pricer.shifted)
    raised = next(name for name in shifted if name.endswith("weight_reads_per_row"))
    assert shifted[raised].round(3, 1, 500).r > 1.02 * pricer.base.round(3, 1, 500).r
    dense = UncertainPricer(replace(deployment, weights="bf16", drafter_weights="bf16"))
    assert not [name for name, _ in dense.shifted if name.startswith("small_rows")]
