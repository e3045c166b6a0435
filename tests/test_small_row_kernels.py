"""Kernels of llama.cpp and MLX for a few rows, beside published times: rows above the dispatch limit run another kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator import predict, resources
from simulator.architecture import find_model
from simulator.cost.deployment import Deployment
from simulator.cost.forward import ForwardCost
from simulator.cost.forward_pass import uniform_pass
from simulator.cost.uncertainty import UncertainPricer
from simulator.hardware import find_hardware
from simulator.number_format import FORMATS
from simulator.row_law import RowLaw
from simulator.serving_engine import find_engine
from simulator.speculation import built_head

LLAMA_8B = "meta-llama/Llama-3.1-8B"


def steps(device: str, weights: str, rows: int, engine: str = "llamacpp", model: str = LLAMA_8B) -> float:
    """A pass of `rows` rows of one sequence, in passes of one row."""
    cost = ForwardCost(find_model(model), find_hardware(device), find_engine(engine), 1, weights, "fp16")
    one, several = (cost.price(uniform_pass(1, count, 128, None)).seconds for count in (1, rows))
    return several / one


# Rows → passes of one row that a pass of so many takes, by device, weights and engine.
PUBLISHED = {
    ("rtx_3090", "q4_0", "llamacpp"): {2: 1.12, 4: 1.33, 6: 1.73, 8: 2.15},  # ggml-org/llama.cpp#15802
    ("rtx_5090", "q8_0", "llamacpp"): {2: 1.05, 4: 1.15, 6: 1.42, 8: 1.63},  # ggml-org/llama.cpp#26079
    ("gb10", "q8_0", "llamacpp"): {2: 1.03, 8: 1.09},  # the same
    ("v100_sxm2_32gb", "q4_k_m", "llamacpp"): {2: 1.14, 4: 1.78, 6: 2.62, 8: 3.24},  # in Q2_K, ggml-org/llama.cpp#28912
    ("mi210", "q8_0", "llamacpp"): {2: 1.27, 4: 1.65, 6: 2.17, 8: 2.65},  # a MI100 in Q4_0, ggml-org/llama.cpp#23227
    ("rx_7900_xtx", "q4_k_m", "llamacpp"): {2: 1.14, 4: 1.53, 8: 2.71},  # a RX 6800, ggml-org/llama.cpp#5351
    ("m1_pro", "q8_0", "llamacpp"): {2: 1.28, 4: 1.42, 6: 2.23, 8: 2.67},  # a 7B, ggml-org/llama.cpp#10581
    ("m2_ultra", "q4_k_m", "llamacpp"): {2: 1.55, 3: 2.06, 4: 2.45, 5: 2.77, 6: 3.40},  # 14B, 32B, ggml-org/llama.cpp#10491, #10581
    ("m4_pro", "q4_0", "llamacpp"): {2: 1.81},  # ggml-org/llama.cpp#25250
    ("m3_max", "mlx4", "mlx"): {2: 1.0, 4: 1.28, 6: 2.04, 8: 2.5, 10: 3.94, 32: 3.98, 33: 7.77},  # ml-explore/mlx#3863
    ("m4_pro", "mlx4", "mlx"): {2: 0.99, 3: 1.13, 4: 1.43, 5: 1.75, 8: 2.84, 10: 4.5, 32: 4.5},  # ml-explore/mlx#3852
    ("m4_pro", "mlx4", "mlx_0_31"): {4: 1.89, 8: 3.44},  # ml-explore/mlx#3839
    ("m3_ultra", "bf16", "mlx_0_31"): {2: 1.99, 8: 2.0, 16: 2.0},  # ml-explore/mlx#4265
    ("m1_pro", "mlx4", "mlx"): {2: 1.71, 4: 3.1},  # ml-explore/mlx#3661
}  # fmt: skip


@pytest.mark.parametrize(("case", "rows"), [(key, rows) for key, passes in PUBLISHED.items() for rows in passes])
def test_rows_cost_what_was_measured(case: tuple[str, str, str], rows: int) -> None:
    device, weights, engine = case
    assert steps(device, weights, rows, engine) == pytest.approx(PUBLISHED[case][rows], rel=0.25)


def test_columns_beyond_four_cost_more_than_those_before() -> None:
    """The vector kernel of CUDA runs half as many warps for them: an RTX 3090 takes 0.11 steps a row up to four and 0.2 beyond."""
    for device in ("rtx_3090", "v100_sxm2_32gb", "rx_7900_xtx"):
        passes = [steps(device, "q4_k_m", rows) for rows in (2, 4, 6, 8)]
        assert passes[3] - passes[2] > 1.3 * (passes[1] - passes[0])


def test_more_bits_hide_more_rows_behind_the_stream_of_weights() -> None:
    """Rows of MLX's kernel cost arithmetic, the same in 4, 8 and 16 bit, once it takes longer than the weights (qmv_wide, gemv_wide)."""
    four, eight, sixteen = (steps("m4_max", weights, 8, "mlx") for weights in ("mlx4", "mlx8", "bf16"))
    assert four > 1.4 * eight > 1.4 * sixteen
    assert steps("m4_max", "bf16", 16, "mlx") > 1.5 * steps("m4_max", "bf16", 15, "mlx")


def test_matrix_units_make_a_tile_cheap_and_not_the_rows_below_it() -> None:
    """ml-explore/mlx#3791: an M5 Max takes 1.5 times as long for 12 to 16 rows as for 8, which cost as much as on an M4 Max."""
    passes = {device: {rows: steps(device, "mlx4", rows, "mlx") for rows in (8, 16)} for device in ("m4_max", "m5_max")}
    assert passes["m5_max"][8] == pytest.approx(passes["m4_max"][8], rel=0.25)
    assert passes["m5_max"][16] / passes["m5_max"][8] == pytest.approx(1.52, rel=0.2)


def test_few_rows_of_16_bit_pay_for_a_tile_before_the_kernel_for_them_and_on_old_devices() -> None:
    for device, engine in (("m4_max", "mlx_0_31"), ("m1_max", "mlx"), ("m1_max", "mlx_0_31")):
        assert steps(device, "bf16", 2, engine) == pytest.approx(steps(device, "bf16", 16, engine), rel=0.1)
        assert steps(device, "bf16", 2, engine) > 1.7
    assert steps("m4_max", "bf16", 4, "mlx") < 1.1


def test_experts_on_metal_are_read_again_for_each_row_below_32_tokens() -> None:
    """ggml-org/llama.cpp#4725, eight experts of which two run, an Apple device in Q6_K: 1.9, 3.1 and 5.4 steps at 2, 4 and 8 tokens."""
    measured = {2: 1.86, 4: 3.05, 8: 5.37}
    for tokens, expected in measured.items():
        assert steps("m3_max", "q6_k", tokens, model="mistralai/Mixtral-8x7B-v0.1") == pytest.approx(expected, rel=0.3)
    law = find_engine("llamacpp").row_law("q6_k", find_hardware("m3_max"))
    assert law is not None
    assert law.expert_reads(31, 4) > 1 == law.expert_reads(32, 4)


def test_a_data_centre_radeon_pays_no_cliff_at_three_rows_of_q8_0() -> None:
    """Vulkan re-reads nearly all of the weights for each row, HIP a fifth; its matrix kernel is flat from 9 to 32 rows."""
    assert steps("mi210", "q8_0", 3) < 1.5 < steps("r9700", "q8_0", 3)
    assert steps("mi210", "q8_0", 32) == pytest.approx(steps("mi210", "q8_0", 9), rel=0.05)


def test_a_law_with_half_a_kink_is_refused() -> None:
    law = find_engine("llamacpp").small_rows[0].model_dump()
    with pytest.raises(ValueError, match="must be given together"):
        RowLaw.model_validate({**law, "kink_after_rows": None})
    share = {"value": 0.5, "source": "assumed"}
    with pytest.raises(ValueError, match="must be given together"):
        RowLaw.model_validate({**law, "expert_weight_reads_per_row": share})
    with pytest.raises(ValueError, match="needs matrix_tile_rows"):
        RowLaw.model_validate({**law, "matrix_arithmetic_fraction": share})


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


def test_a_row_law_is_of_a_backend_and_not_of_every_device() -> None:
    """MLX on NVIDIA and llama.cpp on a CPU run other kernels, of which these laws say nothing."""
    assert find_engine("mlx").row_law("bf16", find_hardware("h100_sxm")) is None
    assert find_engine("mlx").row_law("bf16", find_hardware("m3_max")) is not None
    assert find_engine("llamacpp").row_law("q4_k_m", find_hardware("xeon_8480")) is None
    laws = [find_engine("llamacpp").row_law("q4_k_m", find_hardware(name)) for name in ("rtx_4090", "R9700", "m3_max")]
    assert len({law.weight_reads(4) for law in laws if law is not None}) == 3


def test_small_models_pay_for_the_small_kernels_of_metal() -> None:
    """A 1B in Q8_0 makes 170.6 tokens/s on an M3 Max (ggml-org/llama.cpp#10171), two thirds of what its bytes would allow."""
    cost = ForwardCost(find_model("meta-llama/Llama-3.2-1B"), find_hardware("m3_max"), find_engine("llamacpp"), 1, "q8_0", "fp16")
    terms = {term.name: term.seconds for term in cost.price(uniform_pass(1, 1, 128, None)).terms}
    assert sum(terms.values()) == pytest.approx(1 / 170.6, rel=0.15)
    assert terms["unfused_kernels"] > 0.1 * sum(terms.values())
    elsewhere = replace(cost, hardware=find_hardware("rtx_4090")).price(uniform_pass(1, 1, 128, None))
    assert not [term for term in elsewhere.terms if term.name == "unfused_kernels"]


def test_every_apple_device_has_a_law_for_every_format_that_its_engines_take() -> None:
    gguf = {name for name in FORMATS if name[0] in "qi" and name not in ("int4", "int8")}
    mlx = {name for name in FORMATS if name.startswith("mlx")}
    apple = [find_hardware(name) for name in resources.ids("hardware") if find_hardware(name).profile.vendor == "Apple"]
    assert {device.profile.generation for device in apple} == {f"Apple M{number}" for number in range(1, 6)}
    for device in apple:
        for engine, formats in (("llamacpp", gguf), ("mlx", mlx), ("mlx_0_31", mlx)):
            for weights in (*formats, "bf16", "fp16", "mxfp4", "nvfp4"):
                law = find_engine(engine).row_law(weights, device)
                assert law is not None, (engine, weights, device.profile.name)
                # More rows of one kernel never cost less.
                for limits in (range(1, law.largest_rows + 1), range(law.largest_rows + 1, 130)):
                    reads = [law.weight_reads(rows) for rows in limits]
                    computed = [law.computed_rows(rows, 64) for rows in limits]
                    assert reads == sorted(reads)
                    assert computed == sorted(computed)


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


@pytest.mark.parametrize("engine", ["vllm", "vllm_0_25", "vllm_2025"])
def test_gguf_files_in_vllm_are_read_once_a_row_until_the_matrix_kernel(engine: str) -> None:
    """csrc/quantization/gguf/mmvq.cuh: a block row for each row, up to six (two of wide matrices); quantization/gguf.py."""
    passes = {rows: steps("v100_sxm2_32gb", "q8_0", rows, engine) for rows in (2, 3, 4, 5, 8)}
    assert passes[2] == pytest.approx(2, rel=0.1)
    assert passes[3] == pytest.approx(passes[4], rel=0.03), "graphs of four rows hold both"
    assert passes[4] == pytest.approx(4, rel=0.1)
    assert passes[8] < 0.7 * passes[4]
    assert passes[5] == pytest.approx(passes[8], rel=0.15), "graphs of eight rows run the matrix kernel"
    assert steps("rtx_4090", "q8_0", 4, engine) < 0.8 * passes[4], "whose cache holds most matrices"
    assert steps("v100_sxm2_32gb", "w8a16", 4, engine) < 1.2, "a format of the engine's own"


def test_gguf_experts_in_vllm_run_a_vector_kernel_to_sixty_four_tokens() -> None:
    """vllm-project/vllm#16780: every token reads its experts anew; from 65 tokens on the rows of an expert meet in a matrix kernel."""
    law = find_engine("vllm").row_law("q8_0", find_hardware("v100_sxm2_32gb"))
    assert law is not None
    assert [law.expert_reads(tokens, 4.0) for tokens in (1, 64)] == [4.0, 4.0]
    assert law.expert_reads(65, 4.0) < 1.5


def test_gguf_files_of_a_mixture_in_four_bit_floats_hold_the_rest_in_eight_bit() -> None:
    """A gpt-oss-120b made 53.5 tokens/s on a Strix Halo, 51.7 after 2,000 tokens (stored public file 69419290959)."""
    point = {"hardware": "ryzen_ai_max_395", "method": "eagle3", "num_speculative_tokens": 1, "batch": 1, "context_len": 2128}
    step_s = {
        (model, engine): predict(**point, target_model=model, engine=engine, precision="mxfp4").plain_step_s
        for model in ("openai/gpt-oss-120b", "openai/gpt-oss-20b")
        for engine in ("llamacpp", "generic")
    }
    assert step_s["openai/gpt-oss-120b", "llamacpp"] == pytest.approx(1 / 51.7, rel=0.1)
    own = predict(**point, target_model="openai/gpt-oss-120b", engine="generic", precision="mxfp4_moe").plain_step_s
    assert own is not None
    for model in ("openai/gpt-oss-120b", "openai/gpt-oss-20b"):
        assert step_s[model, "llamacpp"] < step_s[model, "generic"], "where the rest stays in 16 bit"
    assert own < step_s["openai/gpt-oss-120b", "generic"]
