"""Laws of the cost model: what any pass, draft and round must satisfy, and a few published measurements."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.architecture import find_model
from simulator.cost.attention import AttentionCost, AttentionKernels
from simulator.cost.deployment import Deployment
from simulator.cost.drafting import METHODS as DRAFTING
from simulator.cost.drafting import drafting_terms
from simulator.cost.forward import ForwardCost
from simulator.cost.forward_pass import ForwardPass, uniform_pass
from simulator.cost.roofline import experts_touched, gemm, serial_walk_attention, smooth_maximum, split_kv_attention, walk_s
from simulator.cost.spread import Z80
from simulator.cost.uncertainty import UncertainPricer
from simulator.draft_tree import read_tree
from simulator.hardware import HardwareOverride, Quantity, find_hardware, override
from simulator.prediction import cannot_be_served
from simulator.serving_engine import Measured, captured_rows, find_engine
from simulator.spec import Document
from simulator.speculation import METHODS, built_head, self_draft

LLAMA_8B = find_model("meta-llama/Llama-3.1-8B-Instruct")
LLAMA_70B = find_model("meta-llama/Llama-3.1-70B-Instruct")
LLAMA_1B = find_model("meta-llama/Llama-3.2-1B-Instruct")
EAGLE3 = find_model("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B")
H100 = find_hardware("h100_sxm")
VLLM = find_engine("vllm")
MIXTURE, HYBRID = "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-Next-80B-A3B-Instruct"


def eagle3(**changes) -> Deployment:
    return replace(Deployment(H100, VLLM, LLAMA_8B, method="eagle3", drafter=EAGLE3), **changes)


def passes(**changes) -> ForwardCost:
    return eagle3(**changes).target_cost()


def plain_s(cost: ForwardCost, sequences: int, context: float = 512, rows: float = 1) -> float:
    return cost.price(uniform_pass(sequences, rows, context, cost.window)).seconds


# ------------------------------------------------------------------------------------------------------------ roofline


@given(st.floats(1e-9, 1e3), st.floats(1e-9, 1e3), st.floats(1, 16))
def test_smooth_maximum_lies_between_the_maximum_and_the_sum(a, b, p):
    value = smooth_maximum(a, b, p)
    assert max(a, b) * (1 - 1e-12) <= value <= (a + b) * (1 + 1e-12)


def test_smooth_maximum_tends_to_the_plain_roofline_away_from_the_knee():
    assert smooth_maximum(1.0, 0.05, 3.0) == pytest.approx(1.0, rel=1e-4)


@given(st.integers(1, 4096), st.integers(1, 4096))
def test_more_rows_never_make_a_gemm_cheaper(few, many):
    few, many = sorted((few, many))
    time = [gemm(rows, 4096, 4096, 2.0, H100, "bf16").seconds for rows in (few, many)]
    assert time[0] <= time[1] * (1 + 1e-12)


def test_gemm_reaches_the_weight_stream_at_one_row_and_the_arithmetic_at_many():
    n = k = 16384
    one, many = gemm(1, n, k, 2.0, H100, "bf16"), gemm(16384, n, k, 2.0, H100, "bf16")
    overhead = H100.coefficients.gemm_overhead_s.value
    assert one.bound == "memory"
    assert many.bound == "compute"
    assert one.seconds - overhead == pytest.approx(2.0 * n * k / H100.bandwidth_bytes_per_s, rel=0.01)
    assert many.seconds - overhead == pytest.approx(2.0 * 16384 * n * k / H100.flops_per_s("bf16"), rel=0.05)


def with_coefficients(device: str, **values: float):
    change = HardwareOverride(base=device, **values)
    return override(find_hardware(device), change, Document("", {}))


@given(st.integers(1, 1024), st.integers(1, 1024), st.integers(1, 300), st.integers(1, 300), st.floats(0, 1))
def test_waves_of_blocks_make_no_gemm_cheaper_and_keep_more_rows_and_columns_dearer(few, many, narrow, wide, power):
    waves = with_coefficients("h100_sxm", gemm_wave_power=power)
    (few, many), (narrow, wide) = sorted((few, many)), sorted((narrow, wide))
    small, large = (gemm(m, 128 * n, 4096, 2.0, waves, "bf16").seconds for m, n in ((few, narrow), (many, wide)))
    assert small <= large * (1 + 1e-12)
    assert large >= gemm(many, 128 * wide, 4096, 2.0, H100, "bf16").seconds * (1 - 1e-12)


def test_a_full_wave_of_blocks_costs_nothing_more_and_one_block_beyond_it_a_wave():
    waves, units = with_coefficients("h100_sxm", gemm_wave_power=1.0), H100.profile.compute_units
    full, beyond = (128 * count for count in (units, units + 1))
    times = [[gemm(512, n, 8192, 2.0, device, "bf16").seconds for n in (full, beyond)] for device in (H100, waves)]
    assert times[0][0] == times[1][0]
    # Eight waves are full, the ninth holds eight blocks.
    assert times[1][1] == pytest.approx(9 / 8 * times[0][0], rel=0.02)


@given(
    st.integers(1, 1024), st.integers(1, 1024), st.integers(1, 128), st.integers(1, 128), st.sampled_from((16.0, 32.0, 64.0)),
    st.floats(0, 1),
)  # fmt: skip
def test_smaller_tiles_where_blocks_are_few_keep_more_rows_and_columns_dearer(few, many, narrow, wide, least, power):
    smaller = with_coefficients("a100_sxm_80gb", gemm_tile_rows=128.0, gemm_least_tile_rows=least, gemm_wave_power=power)
    (few, many), (narrow, wide) = sorted((few, many)), sorted((narrow, wide))
    small, whole = (gemm(m, 128 * n, 4096, 2.0, smaller, "bf16").seconds for m, n in ((few, narrow), (many, wide)))
    assert small <= whole * (1 + 1e-12)


def test_few_rows_beyond_a_tile_cost_a_whole_one_only_where_blocks_are_many():
    """130 rows: tiles of 128 where the matrix has blocks enough for half of the units, of 64 where it has not."""
    device = with_coefficients(
        "a100_sxm_80gb", gemm_tile_rows=128.0, gemm_least_tile_rows=64.0, gemm_wave_power=0.0, gemm_fill_k=0.0,
        gemm_walk_s_per_k=0.0, memory_bandwidth_fraction=1.0, gemm_overhead_s=0.0, flops_fraction=0.02,
    )  # fmt: skip
    for n, padded in ((1536, 192), (12288, 256)):
        few, whole = (gemm(rows, n, 8192, 2.0, device, "bf16").seconds for rows in (130, padded))
        assert few == pytest.approx(whole, rel=1e-4)


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_starting_and_ending_blocks_weighs_as_k_shrinks(devices):
    """512 rows of a down projection, k shared by devices: what filling takes stays where the walk becomes short."""
    plain, filled = (with_coefficients("h100_sxm", gemm_fill_k=each, flops_fraction=0.1) for each in (0.0, 200.0))
    k = 11008 // devices
    start = plain.coefficients.gemm_overhead_s.value
    before, after = (gemm(512, 4096, k, 2.0, device, "bf16").seconds - start for device in (plain, filled))
    assert after / before == pytest.approx(1 + 200 / k, rel=0.005)


@given(st.integers(1, 512), st.integers(1, 64), st.integers(1, 64), st.floats(0, 1e-8), st.floats(0, 2e-5))
def test_a_walk_along_k_is_the_least_that_a_gemm_takes_and_bounded_by_what_is_split(rows, narrow, deep, walk, longest):
    n, k = 256 * narrow, 256 * deep
    plain, walked = (with_coefficients("h100_sxm", gemm_walk_s_per_k=each, gemm_walk_longest_s=longest) for each in (0.0, walk))
    start = plain.coefficients.gemm_overhead_s.value
    before, after = (gemm(rows, n, k, 2.0, device, "bf16").seconds - start for device in (plain, walked))
    assert after >= max(before, min(walk * k, longest)) * (1 - 1e-9)
    assert after <= (before + min(walk * k, longest)) * (1 + 1e-9)


def test_half_a_small_matrix_takes_more_than_half_its_time_and_a_large_one_hardly_knows_of_the_walk():
    """Why a draft's layers, and those of a model split over devices, cost more than their bytes."""
    walked, plain = H100, with_coefficients("h100_sxm", gemm_walk_s_per_k=0.0)
    start = H100.coefficients.gemm_overhead_s.value

    def busy(device, n, k):
        return gemm(1, n, k, 2.0, device, "bf16").seconds - start

    assert busy(plain, 1024, 2048) == pytest.approx(busy(plain, 2048, 2048) / 2, rel=0.01)
    assert busy(walked, 1024, 2048) > 0.7 * busy(walked, 2048, 2048)
    assert busy(walked, 28672, 8192) == pytest.approx(busy(plain, 28672, 8192), rel=0.01)


def test_rows_lengthen_a_walk_and_copies_of_the_cache_cost_what_the_caches_do_not_hold():
    """PyTorch on a CPU: three query heads share a KV head, and three copies of the cache are made before several rows are verified."""
    plain = {"walk_row_s_per_token": 0.0, "walk_copy_s_per_byte": 0.0}
    attention = {}
    for name, values in {
        "plain": plain,
        "rows": plain | {"walk_row_s_per_token": 8e-9},
        "copies": plain | {"walk_copy_s_per_byte": 1e-10, "walk_copy_free_bytes": 0.0},
        "held": plain | {"walk_copy_s_per_byte": 1e-10, "walk_copy_free_bytes": 1e9},
    }.items():
        device = with_coefficients("epyc_9654", compute_units=1, **values)
        cost = ForwardCost(find_model("SmolLM2-135M"), device, find_engine("hf_eager"), 1, "fp32", "fp32")
        attention[name] = [cost.attention.term(uniform_pass(1, rows, 1024, None)).seconds for rows in (1, 2, 4)]
    layers, heads, dim, tokens = 30, 9, 64, 1024
    plain_s = attention["plain"]
    # A plain step needs no mask and makes no copies; nor do its rows walk.
    assert len({times[0] for times in attention.values()}) == 1
    by_rows = [layers * heads * tokens * dim / 128 * 8e-9 * rows for rows in (2, 4)]
    assert [a - b for a, b in zip(attention["rows"][1:], plain_s[1:], strict=True)] == pytest.approx(by_rows)
    copied = layers * 2 * heads * dim * tokens * 4 * 1e-10
    assert [a - b for a, b in zip(attention["copies"][1:], plain_s[1:], strict=True)] == pytest.approx([copied, copied])
    assert attention["held"] == plain_s


def test_serial_walk_is_one_walk_while_blocks_fit_the_device_and_waves_after():
    units, walk = H100.profile.compute_units, walk_s(4096, 1, 128, H100)
    overhead = H100.coefficients.walk_overhead_s.value
    fits = serial_walk_attention(walk, walk * units, units, H100)
    one_more = serial_walk_attention(walk, walk * (units + 1), units + 1, H100)
    assert fits.seconds == pytest.approx(overhead + walk)
    assert one_more.seconds == pytest.approx(overhead + 2 * walk)


def test_unequal_serial_walks_take_the_longest_or_the_spread_work():
    units = H100.profile.compute_units
    overhead = H100.coefficients.walk_overhead_s.value
    assert serial_walk_attention(5e-6, 6e-6, 4, H100).seconds == pytest.approx(overhead + 5e-6)
    assert serial_walk_attention(5e-6, 1e-5 * units, 4 * units, H100).seconds == pytest.approx(overhead + 1e-5 + 2.5e-6)


def test_split_kv_attention_is_the_kv_stream_for_long_caches():
    kv_bytes = 64e9
    operation = split_kv_attention(kv_bytes, 8, 1.0, H100)
    assert operation.bound == "memory"
    assert operation.seconds == pytest.approx(kv_bytes / H100.attention_bandwidth_bytes_per_s, rel=0.01)


# ---------------------------------------------------------------------------------------------------------------- passes


def test_terms_sum_to_the_pass_and_are_never_negative():
    cost = passes(tensor_parallel_size=2)
    for asked in (
        uniform_pass(7, 1, 900, None),
        uniform_pass(7, 4, 900, None),
        ForwardPass(3, 3, 900, 900, 500, ((300, 100),), 4),
    ):
        priced = cost.price(asked)
        assert all(term.seconds >= 0 for term in priced.terms)
        assert priced.seconds == pytest.approx(math.fsum(term.seconds for term in priced.terms))
        assert {"layers", "lm_head", "attention", "small_kernels", "all_reduce"} <= {term.name for term in priced.terms}


def test_batch_one_decode_is_memory_bound_and_takes_its_weight_stream():
    cost = passes()
    priced = cost.price(uniform_pass(1, 1, 512, None))
    stream_s = (
        (LLAMA_8B.parameter_count - LLAMA_8B.vocab_size * LLAMA_8B.hidden_size)
        * 2
        / H100.profile.memory_bandwidth_bytes_per_s.value
    )
    assert priced.bound == "memory"
    assert stream_s < priced.seconds < 2 * stream_s


def test_plain_step_of_an_8b_model_on_an_h100_is_the_published_7_ms():
    """vllm-project/vllm#20780: 7.07 ms per token at batch 1 (the engine's step overhead was fitted on it)."""
    step = eagle3(engine=find_engine("vllm_2025")).pricer().plain(1, 512)
    assert step.seconds == pytest.approx(7.07e-3, rel=0.10)


@settings(derandomize=True, max_examples=40)
@given(st.integers(1, 256), st.integers(1, 8), st.integers(16, 65536))
def test_a_pass_never_gets_cheaper_with_sequences_rows_or_context(sequences, rows, context):
    cost = passes()
    base = plain_s(cost, sequences, context, rows)
    assert base <= plain_s(cost, sequences + 1, context, rows) * (1 + 1e-12)
    assert base <= plain_s(cost, sequences, context, rows + 1) * (1 + 1e-12)
    assert base <= plain_s(cost, sequences, context + 64, rows) * (1 + 1e-12)


def test_verification_is_nearly_free_at_batch_one_and_not_at_a_large_batch():
    cost = passes()
    assert plain_s(cost, 1, rows=5) / plain_s(cost, 1) < 1.1
    assert plain_s(cost, 256, rows=5) / plain_s(cost, 256) > 1.8


def test_faster_memory_and_arithmetic_never_slow_a_pass():
    slow = override(H100, HardwareOverride(base="h100_sxm", memory_bandwidth_fraction=0.5, flops_fraction=0.4), Document("", {}))
    for batch in (1, 64, 512):
        assert plain_s(passes(), batch, rows=4) < plain_s(passes(hardware=slow), batch, rows=4)


def test_tensor_parallelism_shares_the_layers_and_adds_all_reduce():
    alone, shared = passes(target=LLAMA_70B), passes(target=LLAMA_70B, tensor_parallel_size=4)
    one, four = alone.price(uniform_pass(8, 1, 512, None)), shared.price(uniform_pass(8, 1, 512, None))
    terms = {term.name: term.seconds for term in four.terms}
    assert terms["all_reduce"] > 0
    assert one.seconds / 4 < four.seconds < one.seconds / 2


def test_kv_heads_are_replicated_beyond_their_number():
    assert LLAMA_8B.kv_bytes_per_token("bf16", 16) == LLAMA_8B.kv_bytes_per_token("bf16", 8)


def test_sliding_window_layers_stop_paying_for_context():
    gemma = find_model("google/gemma-3-27b-it")
    cost = passes(target=gemma)
    window = gemma.sliding_window
    full = replace_window(cost)
    near = [plain_s(c, 8, window) for c in (cost, full)]
    far = [plain_s(c, 8, 32 * window) for c in (cost, full)]
    growth = [far[i] - near[i] for i in range(2)]
    unlimited = sum(group.count for group in gemma.layer_groups(1) if group.window is None)
    assert growth[0] == pytest.approx(growth[1] * unlimited / gemma.num_hidden_layers, rel=0.02)


def replace_window(cost: ForwardCost) -> ForwardCost:
    model = cost.architecture.model_copy(update={"sliding_window": None, "layer_pattern": None})
    return ForwardCost(model, cost.hardware, cost.engine, cost.tensor_parallel_size, cost.weights, cost.kv_cache)


def test_fp8_halves_the_weight_stream_and_runs_as_weight_only_where_the_device_has_no_fp8():
    a100 = find_hardware("a100_sxm_80gb")
    assert a100.compute_dtype("fp8") == "bf16"
    # The L40S computes in fp8, and has no law of its own for it.
    for hardware in (find_hardware("l40s"), a100):
        wide, narrow = passes(hardware=hardware), passes(hardware=hardware, weights="fp8")
        overhead = 4 * 32 * hardware.coefficients.gemm_overhead_s.value
        ratio = (narrow.layer_gemms(1).seconds - overhead) / (wide.layer_gemms(1).seconds - overhead)
        assert ratio == pytest.approx(0.5, abs=0.02)


def test_uncaptured_passes_wait_for_their_launches():
    eager = find_engine("hf_eager")
    cost = passes(engine=eager)
    step = cost.price(uniform_pass(1, 1, 512, None))
    assert step.seconds >= 32 * eager.launch_per_layer_s.value
    assert any(term.name == "launch_wait" and term.bound == "host" for term in step.terms)


def test_rows_are_padded_to_the_next_captured_graph_and_none_serves_beyond_the_ladder():
    assert [captured_rows(VLLM, rows, rows) for rows in (1, 3, 9, 512, 513)] == [1, 4, 16, 512, None]
    assert captured_rows(find_engine("hf_eager"), 1, 1) is None


def test_unpadded_graphs_serve_captured_batches_only_and_only_verification():
    early = find_engine("sglang_0_4_3")
    assert [captured_rows(early, 4 * batch, batch) for batch in (1, 31, 32, 33, 63, 64, 128)] == [
        4,
        124,
        128,
        None,
        None,
        256,
        512,
    ]
    assert [captured_rows(early, batch, batch) for batch in (31, 33, 63)] == [32, 40, 64], "plain steps are padded"


def test_graphs_counted_by_sequences_serve_any_number_of_rows_each_but_no_prompt():
    sglang = find_engine("sglang")
    assert [captured_rows(sglang, 5 * batch, batch) for batch in (1, 3, 9, 256, 257)] == [5, 20, 80, 1280, None]
    assert captured_rows(sglang, 64, 1, prompts=True) is None
    assert captured_rows(VLLM, 64, 1, prompts=True) == 64


# ------------------------------------------------------------------------------------------------------------- attention


def attention_s(cost: ForwardCost, sequences: int, rows: int, context: float) -> float:
    terms = cost.price(uniform_pass(sequences, rows, context, cost.window)).terms
    return next(term.seconds for term in terms if term.name == "attention")


def test_regime_follows_engine_and_compute_capability():
    regimes = {
        (e, h): find_engine(e).attention_regime(find_hardware(h))
        for e in ("vllm", "sglang", "vllm_v0")
        for h in ("rtx_4090", "h100_sxm")
    }
    assert regimes["vllm", "rtx_4090"] == "serial_walk"
    assert regimes["vllm", "h100_sxm"] == regimes["sglang", "rtx_4090"] == "split_kv"
    assert regimes["vllm_v0", "h100_sxm"] == "kv_reread"


@pytest.mark.parametrize(("device", "tokens", "measured_s"), [("rtx_4090", 8192, 264.3e-6), ("rtx_pro_6000", 8192, 187.4e-6)])
def test_serial_walk_is_the_measured_one(device, tokens, measured_s):
    """LLMServingSim's tables (vLLM 0.19, FlashAttention-2): 16 rows over 8k cached tokens, one layer of Llama-3.1-8B."""
    cost = passes(hardware=find_hardware(device))
    assert attention_s(cost, 1, 16, tokens) / 32 == pytest.approx(measured_s, rel=0.08)


def test_without_split_kv_a_few_rows_over_a_long_context_cost_several_plain_rows():
    """The walk of one block cannot be shared: 16 rows over 16k tokens took 9.2 × one row whose cache lay in L2."""
    cost = passes(hardware=find_hardware("rtx_4090"))
    assert 4 < attention_s(cost, 1, 16, 16384) / attention_s(cost, 1, 1, 16384) < 9.2


def test_split_kv_reads_the_cache_once_for_all_rows_and_reread_once_for_each():
    split, reread = passes(), passes(engine=find_engine("vllm_v0"))
    assert attention_s(split, 4, 8, 32768) < 1.2 * attention_s(split, 4, 1, 32768)
    assert attention_s(reread, 4, 8, 32768) == pytest.approx(8 * attention_s(reread, 4, 1, 32768), rel=0.1)


def test_long_prompts_cost_quadratic_attention():
    cost = passes()

    def prefill_attention_s(tokens: int) -> float:
        terms = cost.price(ForwardPass(0, 0, 0, 0, 0, ((tokens, 0),), 1)).terms
        return next(term.seconds for term in terms if term.name == "attention")

    assert prefill_attention_s(65536) / prefill_attention_s(32768) == pytest.approx(4, rel=0.05)


def test_chunks_of_a_prompt_cost_the_same_attention_arithmetic_as_the_whole():
    cost = passes()
    hardware_s = cost.hardware.coefficients.attention_overhead_s.value * 32

    def attention(chunks: list[tuple[int, int]]) -> float:
        return sum(
            next(term.seconds for term in cost.price(ForwardPass(0, 0, 0, 0, 0, (chunk,), 1)).terms if term.name == "attention")
            - hardware_s
            for chunk in chunks
        )

    whole, halves = attention([(32768, 0)]), attention([(16384, 0), (16384, 16384)])
    assert halves == pytest.approx(whole, rel=0.02)


# ---------------------------------------------------------------------------------------------------------------- rounds


@settings(derandomize=True, max_examples=30)
@given(st.integers(1, 8), st.integers(1, 200), st.integers(16, 16384), st.sampled_from(["vllm", "sglang", "hf_eager", "vllm_v0"]))
def test_round_terms_sum_and_r_grows_with_gamma(gamma, batch, context, engine):
    pricer = eagle3(engine=find_engine(engine)).pricer()
    cost, longer = pricer.round(gamma, batch, context), pricer.round(gamma + 1, batch, context)
    assert cost.round_s == pytest.approx(math.fsum(term.seconds for term in (*cost.draft, *cost.verify)))
    assert cost.r == pytest.approx(1 + sum(share for _, share in cost.causes()))
    assert 1 <= cost.r <= longer.r


def test_r_is_the_textbook_denominator_where_verification_is_free():
    """R → γc + 1 (Leviathan et al. 2023) with nothing but the weight stream to pay for."""
    free = HardwareOverride(
        base="h100_sxm", flops_fraction=1.0, gemm_overhead_s=0.0, gemm_smoothness=16.0, attention_overhead_s=0.0, attention_wave_s=0.0,
        attention_bandwidth_fraction=1.0, attention_flops_fraction=1.0, elementwise_overhead_s=0.0,
    )  # fmt: skip
    zero = VLLM.step_overhead_s.model_copy(update={"value": 0.0})
    engine = VLLM.model_copy(
        update=dict.fromkeys(
            ("step_overhead_s", "round_overhead_s", "request_overhead_s", "sampler_passes", "rejection_passes"), zero
        )
        | {"draft_step_overhead_s": {"default": zero}}
    )
    deployment = Deployment(override(H100, free, Document("", {})), engine, LLAMA_8B, method="draft_model", drafter=LLAMA_1B)
    cost = deployment.pricer().round(4, 1, 16)
    draft_pass_s = replace(deployment, target=LLAMA_1B).plain().pricer().plain(1, 16).seconds
    assert cost.r == pytest.approx(4 * draft_pass_s / cost.plain_step_s + 1, rel=0.01)


def test_round_cost_ratio_of_d1_holds_for_eagle_1_and_eagle_3():
    """vllm-project/vllm#20780: R = τ · TPOT / 7.07 ms; vllm_2025's draft constants were fitted on these runs."""
    published = {
        "eagle3": (
            {2: 2.36, 3: 2.79, 4: 3.08, 5: 3.32, 6: 3.46, 7: 3.54},
            {2: 4.32, 3: 4.09, 4: 4.05, 5: 4.13, 6: 4.20, 7: 4.29},
        ),
        "eagle": ({2: 2.10, 3: 2.29, 4: 2.39, 5: 2.43, 6: 2.45, 7: 2.47}, {2: 4.37, 3: 4.29, 4: 4.48, 5: 4.71, 6: 4.94, 7: 5.20}),
    }
    heads = {"eagle3": EAGLE3, "eagle": find_model("yuhuili/EAGLE-LLaMA3.1-Instruct-8B")}
    for method, (tau, tpot_ms) in published.items():
        pricer = eagle3(engine=find_engine("vllm_2025"), method=method, drafter=heads[method]).pricer()
        for gamma in tau:
            assert pricer.round(gamma, 1, 512).r == pytest.approx(tau[gamma] * tpot_ms[gamma] / 7.07, rel=0.15), (method, gamma)


def test_r_rises_with_batch_until_arithmetic_decides():
    pricer = eagle3().pricer()
    ratios = [pricer.round(3, batch, 512).r for batch in (1, 32, 128, 512)]
    assert ratios[-1] > ratios[0] + 0.5


def test_long_contexts_make_speculation_pay_again_at_a_large_batch():
    """Field case vllm-project/vllm#48627: reading the KV cache makes decoding memory-bound again."""
    pricer = eagle3().pricer()
    assert pricer.round(3, 256, 8192).r < pricer.round(3, 256, 256).r


def test_a_draft_that_keeps_its_cache_full_pays_one_more_pass_and_a_catch_up_row_little():
    draft = {"method": "draft_model", "drafter": LLAMA_1B}
    engines = {
        rule: find_engine("hf_eager").model_copy(update={"draft_cache": rule}) for rule in ("catch_up", "extra_pass", "padded")
    }
    cost = {rule: eagle3(engine=engine, **draft).pricer(1.0).round(4, 1, 512).draft_s for rule, engine in engines.items()}
    assert cost["extra_pass"] == pytest.approx(1.25 * cost["catch_up"], rel=0.02)
    assert cost["catch_up"] == pytest.approx(cost["padded"], rel=0.02)


def test_small_drafts_are_slower_on_many_devices_than_on_one():
    """Field cases C67 and C69: a small draft at the target's parallelism is bound by all-reduce and launches."""
    draft = find_model("Qwen/Qwen2.5-0.5B")
    target = find_model("Qwen/Qwen2.5-72B")
    times = [
        eagle3(target=target, tensor_parallel_size=8, method="draft_model", drafter=draft, draft_tensor_parallel_size=size)
        .pricer()
        .round(4, 1, 512)
        .draft_s
        for size in (1, 2)
    ]
    assert times[1] > times[0]


UNCAPTURED = find_engine("vllm_0_25")
PAIR = eagle3(target=LLAMA_70B, drafter=LLAMA_8B, method="draft_model", tensor_parallel_size=4, draft_tensor_parallel_size=4)


def terms_of(deployment: Deployment, gamma: int = 3, batch: int = 1, context: float = 512) -> dict[str, float]:
    found = deployment.pricer().round(gamma, batch, context)
    return {term.name: term.seconds for term in (*found.verify, *found.draft)}


def test_draft_passes_without_graphs_take_their_launches_where_the_device_is_done_sooner():
    """vllm-project/vllm#47460: draft passes are launch-bound, and can cost more than verification of the dense target."""
    terms = terms_of(replace(PAIR, engine=UNCAPTURED))
    device_s = sum(seconds for name, seconds in terms.items() if name in ("draft_first_pass", "draft_later_passes"))
    verify = PAIR.pricer().round(3, 1, 512).verify
    verify_s = sum(term.seconds for term in verify if term.bound != "host")
    launches_s = 3 * replace(PAIR, engine=UNCAPTURED).draft_cost().launches_s
    assert terms["draft_launch_wait"] == pytest.approx(launches_s - device_s - verify_s, rel=1e-9)
    assert terms["draft_launch_wait"] + device_s > 0.9 * verify_s
    assert "draft_launch_wait" not in terms_of(PAIR)


def test_launches_of_drafts_hide_behind_a_long_verification_and_grow_with_layers_and_slower_hosts():
    waits = [terms_of(replace(PAIR, engine=UNCAPTURED), batch=batch)["draft_launch_wait"] for batch in (1, 16, 512)]
    assert waits[0] > waits[1] > waits[2] == 0.0
    shallow = replace(PAIR, engine=UNCAPTURED, drafter=LLAMA_1B)
    assert terms_of(shallow)["draft_launch_wait"] < waits[0]
    beside_grace = replace(PAIR, engine=UNCAPTURED, hardware=find_hardware("gh200_96gb"))
    assert terms_of(beside_grace)["draft_launch_wait"] > 2 * waits[0]


def test_only_heads_and_models_whose_graphs_are_never_set_run_without_them():
    assert terms_of(eagle3(engine=UNCAPTURED)) == terms_of(eagle3())


def test_methods_that_need_tokens_on_the_host_show_the_hosts_step_in_every_step_but_not_in_plain_serving():
    """Asynchronous scheduling off costs 0.60 to 0.75 ms a step (one RTX PRO 6000), with it a round 0.97 less (vllm#25872)."""
    ngram = Deployment(H100, VLLM, LLAMA_8B, method="ngram")
    terms = terms_of(ngram)
    assert terms["unoverlapped_host"] == pytest.approx(0.97e-3, rel=0.05)
    assert "unoverlapped_host" not in terms_of(eagle3())
    pricer = ngram.pricer()
    assert pricer.round(3, 1, 512).plain_step_s == pytest.approx(ngram.plain().pricer().plain(1, 512).seconds)
    undrafted = pricer.price([(512, 0)], (), 0).seconds - ngram.plain().pricer().price([(512, 0)], (), 0).seconds
    assert undrafted == pytest.approx(0.65e-3 + 1.8e-5 + VLLM.ngram_lookup_s.value, rel=0.05)


def test_ngram_drafts_without_a_pass_and_costs_a_plain_step_where_it_proposes_nothing():
    pricer = eagle3(method="ngram", drafter=None).pricer()
    cost = pricer.round(5, 4, 512, proposal_rate=0.0)
    lookup_s = 4 * VLLM.ngram_lookup_s.value
    assert [term.name for term in cost.draft] == ["draft_lookup"]
    assert cost.round_s == pytest.approx(cost.plain_step_s + lookup_s)


# ----------------------------------------------------------------------------------------------------------------- steps


def test_a_step_of_equal_sequences_costs_the_round_and_a_plain_step_the_plain_pass():
    pricer = eagle3().pricer()
    cost = pricer.round(4, 6, 700)
    assert pricer.price([(700, 4)] * 6, (), 0).seconds == pytest.approx(cost.round_s)
    assert eagle3().plain().pricer().price([(700, 0)] * 6, (), 0).seconds == pytest.approx(cost.plain_step_s)


def test_step_terms_sum_and_prompts_add_prefill_terms():
    pricer = eagle3().pricer()
    step = pricer.price([(700, 4)] * 6, [(512, 0)], 1)
    assert step.seconds == pytest.approx(math.fsum(seconds for _, seconds in step.terms))
    assert {name for name, _ in step.terms if name.startswith("prefill")} == {"prefill", "prefill_draft"}
    assert step.seconds > pricer.price([(700, 4)] * 6, (), 0).seconds


def test_switched_off_speculation_still_keeps_the_drafts_cache_warm():
    """Field cases C27 and C58: loaded but idle speculation is not free; n-gram is."""
    plain = eagle3().plain().pricer().price([(700, 0)] * 6, (), 0).seconds
    idle = eagle3().pricer().price([(700, 0)] * 6, (), 0)
    assert plain < idle.seconds < 1.15 * plain
    assert "draft_cache_upkeep" in dict(idle.terms)


# ------------------------------------------------------------------------------- experts, latent attention, states, formats

H200 = find_hardware("h200_sxm")
SGLANG = find_engine("sglang")


def built(target: str, method: str, gamma: int = 3, hardware=H200, engine=SGLANG, **changes) -> Deployment:
    model = find_model(target)
    return replace(Deployment(hardware, engine, model, method=method, drafter=built_head(model, method, gamma)), **changes)


@given(st.integers(2, 512), st.integers(1, 16), st.integers(1, 4096))
def test_experts_touched_are_between_those_of_one_token_and_all(experts, top_k, tokens):
    top_k = min(top_k, experts)
    touched = experts_touched(experts, top_k, tokens)
    assert top_k * (1 - 1e-9) <= touched <= experts
    assert touched <= experts_touched(experts, top_k, tokens + 1) * (1 + 1e-12)


@given(st.floats(0.05, 50), st.floats(1.1, 8), st.integers(2, 400))
def test_favourite_experts_make_unions_smaller_and_even_popularity_is_the_uniform_law(shape, factor, tokens):
    """Jensen: (1 - p)^m is convex in p, so any spread of popularity misses more experts; the spread falls with the shape."""
    uneven, evener = (experts_touched(128, 8, tokens, a) for a in (shape, factor * shape))
    assert 8 * (1 - 1e-9) <= uneven <= evener * (1 + 1e-9) <= experts_touched(128, 8, tokens) * (1 + 1e-9)
    assert experts_touched(128, 8, tokens, 1e7) == pytest.approx(experts_touched(128, 8, tokens), rel=1e-4)


def test_unions_of_unequally_popular_experts_are_those_of_drawn_popularities():
    import numpy as np

    draws = np.random.default_rng(1).beta(0.45, 0.45 * 15, size=200_000)
    for tokens in (1, 8, 40):
        assert experts_touched(128, 8, tokens, 0.45) == pytest.approx(128 * (1 - ((1 - draws) ** tokens).mean()), rel=0.02)


def test_launches_are_counted_in_dense_layers():
    """An 8B dense model launches as many kernels as it has layers; a mixture 1.8, hybrid mixtures and latent attention more."""
    latent = "deepseek-ai/DeepSeek-V3"
    names = (LLAMA_8B.name, MIXTURE, HYBRID, latent)
    layers = {name: ForwardCost(find_model(name), H100, VLLM, 1, "bf16", "bf16") for name in names}
    per_layer = {name: cost.launched_layers / cost.architecture.num_hidden_layers for name, cost in layers.items()}
    assert per_layer[LLAMA_8B.name] == 1
    assert per_layer[MIXTURE] == pytest.approx(1.8)
    assert per_layer[HYBRID] == pytest.approx(1.2 + 0.4 + 0.75 * 2.0 + 0.25 * 0.6), "the shared expert is one more MLP"
    assert per_layer[latent] == pytest.approx(1.8 + (58 * 1.6 + 3 * 0.4) / 61)


def test_tensor_parallel_passes_launch_an_all_reduce_after_attention_and_after_each_mlp():
    one, two = (ForwardCost(LLAMA_8B, H100, VLLM, size, "bf16", "bf16") for size in (1, 2))
    assert two.launched_layers == pytest.approx(1.2 * one.launched_layers)


def test_arithmetic_in_8_bit_launches_a_scaling_of_rows_before_every_matrix():
    fp8, weight_only = (
        ForwardCost(LLAMA_8B, hardware, VLLM, 1, "fp8", "bf16") for hardware in (H100, find_hardware("a100_sxm_80gb"))
    )
    matrices = sum(group.count * len(group.matrices) for group in fp8.groups)
    assert fp8.launched_layers == pytest.approx(weight_only.launched_layers + matrices / 10)


def test_a_round_of_a_hybrid_brings_its_states_back_and_a_dense_one_has_none():
    for name, layers in ((HYBRID, 36), (LLAMA_8B.name, 0)):
        target = find_model(name)
        deployment = Deployment(H100, VLLM, target, method="eagle3", drafter=built_head(target, "eagle3", 3))
        terms = {term.name: term.seconds for term in deployment.pricer().round(3, 1, 512).verify}
        assert terms.get("state_rollback", 0.0) == pytest.approx(layers * VLLM.state_rollback_s.value)


def test_a_sequence_of_a_hybrid_holds_a_state_for_every_draft_and_one_of_a_dense_model_none():
    """In tokens of a 16-bit cache a state of all layers is as large as 36 · 1072 / 12 of Qwen3-Next."""
    hybrid, dense = (Deployment(H100, VLLM, find_model(name)) for name in (HYBRID, LLAMA_8B.name))
    assert [dense.state_blocks(drafts) for drafts in (0, 3)] == [0, 0]
    one, four = (hybrid.state_blocks(drafts) * VLLM.block_tokens for drafts in (0, 3))
    assert one == pytest.approx(36 * 1072 / 12, rel=0.01)
    assert four == pytest.approx(4 * one, rel=0.01)
    assert hybrid.held_tokens(1000, 3) == 1000 + four
    two = replace(hybrid, weights="fp8", tensor_parallel_size=2)
    assert not cannot_be_served(two, 256, 1000, 0)
    assert "recurrent states counted" in cannot_be_served(two, 256, 1000, 3)


def test_only_drafters_that_fuse_states_pay_for_it():
    head = built_head(LLAMA_8B, "eagle", 3)
    overheads = [
        {t.name: t.seconds for t in deployment.pricer().round(3, 1, 512).verify}["round_overhead"]
        for deployment in (eagle3(), eagle3(method="eagle", drafter=head))
    ]
    assert overheads[0] - overheads[1] == pytest.approx(VLLM.feature_overhead_s.value)


def test_a_small_active_mixture_pays_for_rows_at_batch_one_and_less_once_every_expert_is_read():
    """Field cases D6 and C66: verification pulls in other experts, until the plain batch already touches all."""
    pricer = built("Qwen/Qwen3-30B-A3B", "eagle3").pricer()
    dense = built("Qwen/Qwen3-8B", "eagle3").pricer()
    ratios = {batch: pricer.round(3, batch, 512).verification_cost_ratio for batch in (1, 8, 64)}
    assert ratios[1] > dense.round(3, 1, 512).verification_cost_ratio + 0.1
    assert ratios[64] < max(ratios[1], ratios[8])


def test_active_parameters_and_not_all_are_read_at_batch_one():
    model = find_model("Qwen/Qwen3-30B-A3B")
    step_s = Deployment(H200, SGLANG, model).pricer().plain(1, 64).seconds
    stream_s = 2 * model.active_parameter_count / H200.profile.memory_bandwidth_bytes_per_s.value
    assert stream_s < step_s < 2 * model.parameter_count / H200.profile.memory_bandwidth_bytes_per_s.value


def test_rows_that_gather_their_own_tokens_never_share_a_tile() -> None:
    """DeepSeek-V3.2 over eight devices has 16 heads on each: a row takes a tile of 64, four rows take four (sgl-project/sglang#27954).

    The list of tokens is computed to its end, so that a short context is no cheaper (vllm-project/vllm#33451).
    """
    model, device = find_model("DeepSeek-V3.2"), find_hardware("h200_sxm")
    (group, *_) = (each for each in model.layer_groups(8) if each.attention == "mla")
    bare = replace(group, index_flops_per_row_and_token=0.0, index_elements_per_token=0.0)
    cost = AttentionCost((bare,), device, AttentionKernels("split_kv"), 2.0)

    def arithmetic_s(rows: int, context: float) -> float:
        return cost.term(uniform_pass(256, rows, context, cost.window)).seconds / bare.count

    tile_s = 64 / bare.heads * bare.attention_flops_per_row_and_token * 2048 / device.attention_flops_per_s()
    assert arithmetic_s(4, 2048) - arithmetic_s(3, 2048) == pytest.approx(256 * tile_s, rel=1e-9)
    assert arithmetic_s(4, 512) == pytest.approx(arithmetic_s(4, 2048))
    dense = next(each for each in find_model("DeepSeek-V3").layer_groups(8) if each.attention == "mla")
    assert not dense.gathers
    assert bare.gathers


def test_latent_attention_reads_little_cache_and_verifies_at_the_price_of_arithmetic():
    """Absorbed form: 2·H·(2·latent + rope) FLOPs per row and token, so a few rows are compute-bound on an H100."""
    cost = Deployment(H100, VLLM, find_model("deepseek-ai/DeepSeek-V3"), "fp8", "bf16").target_cost()
    one, five = (
        next(t for t in cost.price(uniform_pass(64, rows, 16384, cost.window)).terms if t.name == "attention") for rows in (1, 4)
    )
    assert five.bound == "compute"
    assert five.seconds > 1.5 * one.seconds


def test_recurrent_layers_pay_for_every_verified_row():
    pricer = built("Qwen/Qwen3.5-9B", "mtp").pricer()
    cost = pricer.round(3, 8, 512)
    plain, verify = ({t.name: t.seconds for t in terms}["states"] for terms in (cost.plain, cost.verify))
    assert verify > plain
    # Read once and written after each of eight rows: nine moves where a plain step has two, once traffic decides.
    drafted = pricer.round(7, 4096, 512)
    plain, verify = ({t.name: t.seconds for t in terms}["states"] for terms in (drafted.plain, drafted.verify))
    assert verify / plain == pytest.approx(9 / 2, rel=1e-6)
    assert "states" not in {t.name for t in eagle3().pricer().round(3, 8, 512).verify}


def test_quantized_weights_read_fewer_bytes_and_small_row_kernels_read_them_again():
    device = find_hardware("r9700")
    llamacpp = find_engine("llamacpp")
    model = find_model("Qwen/Qwen3-8B")
    steps = {weights: Deployment(device, llamacpp, model, weights).target_cost() for weights in ("bf16", "q8_0", "q5_k_m")}
    one = {weights: cost.layer_gemms(1).seconds for weights, cost in steps.items()}
    assert one["q5_k_m"] < one["q8_0"] < one["bf16"]
    four = {weights: cost.layer_gemms(4).seconds / one[weights] for weights, cost in steps.items()}
    assert four["q8_0"] > 2.5
    assert 1.2 < four["q5_k_m"] < 1.7
    assert four["bf16"] == pytest.approx(1.0, abs=0.05)
    assert steps["q8_0"].layer_gemms(16).seconds < 1.01 * steps["q8_0"].layer_gemms(8).seconds


def test_field_case_d7_and_c13_differ_in_sign_by_quantization_type_alone():
    """ggml-org/llama.cpp#22673: the same card and MTP drafts lose with Q8_0 (R = 2.8 and 3.6) and win with Q5_K_M (R = 1.6)."""
    device, engine = find_hardware("r9700"), find_engine("llamacpp")

    def r(weights: str, gamma: int) -> float:
        return built("Qwen/Qwen3.5-27B", "mtp", gamma, device, engine, weights=weights).pricer().round(gamma, 1, 512).r

    assert r("q8_0", 2) > 1 + 2 * 0.819 - 0.2
    assert r("q8_0", 3) > 1 + 3 * 0.713 - 0.2
    assert r("q5_k_m", 3) < 1 + 3 * 0.716


# ---------------------------------------------------------------------------------------------------------- other methods


def test_every_method_has_a_price_and_one_that_drafts_in_one_pass_hardly_grows_with_gamma():
    assert set(DRAFTING) == set(METHODS) - {"none"}
    for method, sequential in (("mtp", True), ("medusa", False), ("hydra", False), ("block", False)):
        target = "deepseek-ai/DeepSeek-V3" if method == "mtp" else "Qwen/Qwen3-8B"
        changes = {"weights": "fp8", "tensor_parallel_size": 8, "draft_tensor_parallel_size": 8} if method == "mtp" else {}
        pricer = built(target, method, 7, **changes).pricer()
        few, many = pricer.round(2, 1, 512).draft_s, pricer.round(7, 1, 512).draft_s
        assert (many > 2.5 * few) is sequential, method


def test_a_draft_by_the_targets_first_layers_costs_their_share_and_no_memory():
    half = replace(eagle3(), method="layer_skip", drafter=self_draft(LLAMA_8B, "layer_skip", 16))
    cost = half.pricer().round(4, 1, 512)
    assert 0.4 < cost.cost_coefficient < 0.65
    assert half.kv_blocks(0.9) == half.plain().kv_blocks(0.9)
    step = half.pricer().price([(700, 0)] * 6, ((512, 0),), 1)
    assert "prefill_draft" not in dict(step.terms)
    assert "draft_cache_upkeep" not in dict(step.terms)


def test_a_sparse_cache_self_draft_pays_off_where_the_cache_is_most_of_a_step():
    """MagicDec (Chen et al. 2024): at long context and a large batch the draft reads a small part of what the target reads."""
    sparse = replace(eagle3(), method="sparse_kv", drafter=LLAMA_8B, draft_kv_tokens=512)
    short, long = (sparse.pricer().round(4, 16, context).cost_coefficient for context in (512, 16384))
    assert long < 0.6 < short


def test_a_tree_verifies_its_nodes_and_drafts_by_its_steps():
    """AngelSlim and SGLang runs (D6, C11): more nodes raise acceptance and R alike."""
    chain = built("Qwen/Qwen3-30B-A3B", "eagle3", 3)
    tree = replace(chain, tree=read_tree("steps=3,topk=4,draft_tokens=16"))
    large = replace(chain, tree=read_tree("steps=7,topk=10,draft_tokens=64"))
    assert chain.pricer().round(3, 1, 512).r < tree.pricer().round(3, 1, 512).r < large.pricer().round(7, 1, 512).r


# ----------------------------------------------------------------------------------------------------------- uncertainty


def test_mlx_pays_once_for_the_second_row_in_16_bit_and_for_each_in_4():
    mlx, apple = find_engine("mlx_0_31"), find_hardware("m5_pro")
    wide, narrow = (mlx.row_law(weights, apple) for weights in ("bf16", "mlx4"))
    assert [wide.weight_reads(rows) for rows in (1, 2, 8, 17)] == pytest.approx([1, 1.6, 1.6, 1.6])
    assert [narrow.weight_reads(rows) for rows in (1, 2, 8, 9)] == pytest.approx([1, 1.33, 3.31, 3.64])


def test_constants_that_cannot_move_r_are_not_tried_and_the_others_are_tried_as_a_whole_pricer_would():
    deployment = replace(eagle3(), tensor_parallel_size=2, draft_tensor_parallel_size=2)
    pricer = UncertainPricer(deployment)
    names = [name for name, _ in pricer.shifted]
    assert not [name for name in names if name.startswith(("expert_", "state_", "tree_", "ngram", "prompt"))]
    assert {"all_reduce", "round_overhead_s", "feature_overhead_s", "memory_bandwidth_fraction"} <= {*names}
    slower = VLLM.round_overhead_s.model_copy(
        update={"value": VLLM.round_overhead_s.value * math.exp(VLLM.round_overhead_s.doubt)}
    )
    whole = replace(deployment, engine=VLLM.model_copy(update={"round_overhead_s": slower})).pricer().round(3, 4, 512).r
    assert dict(pricer.shifted)["round_overhead_s"].round(3, 4, 512).r == whole


def test_r_is_less_sure_with_an_engine_that_nobody_measured():
    known, other = UncertainPricer(eagle3()), UncertainPricer(eagle3(engine=VLLM.model_copy(update={"measured": Measured()})))
    assert known.base.round(3, 1, 512).r == other.base.round(3, 1, 512).r
    r, added = other.base.round(3, 1, 512).r, other.spread(3, 1, 512).up ** 2 - known.spread(3, 1, 512).up ** 2
    high = 1 + (r - 1) * math.exp(Z80 * known.doubts.engine_std)
    assert math.sqrt(added) == pytest.approx(math.log(high / r) / Z80)


def test_interval_is_wider_where_more_is_assumed():
    known = UncertainPricer(eagle3(engine=find_engine("vllm_2025"))).spread(3, 1, 512).up
    unknown = UncertainPricer(eagle3(engine=find_engine("generic"))).spread(3, 1, 512).up
    assert 0.035 < known < unknown < 1.0


@pytest.mark.parametrize("peak", ["memory_bandwidth_bytes_per_s", "peak_flops_per_s.bf16"])
def test_a_datasheet_peak_that_sources_disagree_on_widens_the_interval(peak):
    outer, _, inner = peak.partition(".")
    given = getattr(H100.profile, outer)
    doubted = (given[inner] if inner else given).model_copy(update={"relative_std": 0.25})
    profile = H100.profile.model_copy(update={outer: {**given, inner: doubted} if inner else doubted})
    doubtful = UncertainPricer(eagle3(hardware=replace(H100, profile=profile)))
    certain = UncertainPricer(eagle3())
    # At batch 64 verification is about as much arithmetic as memory traffic, so both peaks speak about R.
    assert doubtful.spread(5, 64, 512).up > 1.05 * certain.spread(5, 64, 512).up
    assert doubtful.base.round(5, 64, 512) == certain.base.round(5, 64, 512)


def test_all_reduce_brings_its_own_doubt():
    names = {
        size: [name for name, _ in UncertainPricer(eagle3(tensor_parallel_size=size, draft_tensor_parallel_size=size)).shifted]
        for size in (1, 4)
    }
    assert "all_reduce" in names[4]
    assert "all_reduce" not in names[1]
    pricer = UncertainPricer(eagle3(hardware=find_hardware("l40s"), tensor_parallel_size=4, draft_tensor_parallel_size=4))
    moved, _ = pricer.sensitivities(3, 8, 512, 1.0)
    by_name = dict(zip((name for name, _ in pricer.shifted), moved, strict=True))
    assert abs(by_name["all_reduce"]) > 0.005


def test_a_measured_plain_step_narrows_the_interval_and_as_predicted_moves_nothing():
    pricer = UncertainPricer(eagle3(engine=find_engine("generic")))
    base = pricer.base.round(3, 1, 512)
    doubt = pricer.given_plain_step(base.plain_step_s, 3, 1, 512)
    r, std = doubt.r, doubt.spread
    assert r == base.r
    assert std.up < pricer.spread(3, 1, 512).up


def test_a_slower_plain_step_than_modelled_lowers_r():
    """The extra time is mostly the plain step's own overhead, against which a round's extra cost weighs less."""
    pricer = UncertainPricer(eagle3(engine=find_engine("generic")))
    base = pricer.base.round(3, 1, 512)
    r = pricer.given_plain_step(1.3 * base.plain_step_s, 3, 1, 512).r
    assert r < base.r


# ---------------------------------------------------------------------------------------------------------------- memory


def test_kv_capacity_of_a_published_log():
    """vllm-project/vllm#19996: 51.63 GiB hold 410,128 tokens of Llama-3.1-8B with an EAGLE layer (16-token blocks)."""
    per_token = eagle3(method="eagle").kv_bytes_per_token()
    assert per_token == 135168
    assert int(51.63 * 2**30 // (16 * per_token)) * 16 == pytest.approx(410128, abs=80)


def test_a_drafter_takes_kv_blocks():
    assert eagle3().kv_blocks(0.9) < eagle3().plain().kv_blocks(0.9)


# ------------------------------------------------------------------------------------------------- one law for each part


def test_rows_beyond_a_tile_pay_for_whole_tiles():
    tile = int(H100.coefficients.gemm_tile_rows.value)
    overhead = H100.coefficients.gemm_overhead_s.value
    full, one_more, next_full = (
        gemm(32 * tile + extra, 16384, 16384, 2.0, H100, "bf16").seconds - overhead for extra in (0, 1, tile)
    )
    assert one_more == pytest.approx(next_full, rel=1e-3)
    assert one_more > full * 1.02


def test_a_prompt_in_the_step_moves_plain_rows_to_the_kernel_without_split_kv():
    """FlashAttention-2 varlen: one sequence with several rows takes the whole call with it."""
    cost = passes(hardware=find_hardware("rtx_4090"))
    alone = cost.price(ForwardPass(4, 4, 65536, 65536, 16384, (), 4))
    mixed = cost.price(ForwardPass(4, 4, 65536, 65536, 16384, ((16, 0),), 5))
    attention = [next(t.seconds for t in priced.terms if t.name == "attention") for priced in (alone, mixed)]
    assert attention[1] > 2 * attention[0]


def test_a_reduced_draft_vocabulary_shrinks_the_heads_lm_head():
    whole = EAGLE3.model_copy(update={"draft_vocab_size": None})
    small, large = (ForwardCost(head, H100, VLLM, 1, "bf16", "bf16").lm_head(1).seconds for head in (EAGLE3, whole))
    assert small < 0.5 * large


def test_fusing_the_targets_states_is_part_of_drafting():
    without = EAGLE3.model_copy(update={"fc_input_size": None})
    fused, bare = (eagle3(drafter=head).pricer().round(3, 1, 512).draft_s for head in (EAGLE3, without))
    assert fused - bare == pytest.approx(ForwardCost(EAGLE3, H100, VLLM, 1, "bf16", "bf16").fusion_s(4), rel=0.01)


def test_verification_is_charged_the_rejection_passes_over_all_its_logits():
    cost = eagle3().pricer().round(3, 8, 512)
    plain, verify = ({t.name: t.seconds for t in terms}["sampling"] for terms in (cost.plain, cost.verify))
    passes_over = VLLM.rejection_passes.value / VLLM.sampler_passes.value
    assert verify == pytest.approx(4 * passes_over * plain)


def test_a_step_drafts_as_many_passes_as_its_longest_draft_needs():
    pricer = eagle3().pricer()
    uneven, even = (
        sum(s for name, s in pricer.price(decode, (), 0).terms if name.startswith("draft"))
        for decode in ([(700, 4), (700, 2)], [(700, 4), (700, 4)])
    )
    assert uneven == pytest.approx(even)


def test_what_a_prompt_adds_does_not_depend_on_the_draft():
    with_draft, without = (
        dict(p.price([(700, 0)] * 6, [(512, 0)], 1).terms)["prefill"] for p in (eagle3().pricer(), eagle3().plain().pricer())
    )
    assert with_draft == pytest.approx(without)


def test_break_even_with_missing_proposals_counts_the_rounds_without_one():
    from simulator.theory import mean_acceptance_length

    pricer = eagle3(method="ngram", drafter=None).pricer()
    rate = pricer.break_even_rate(5, 64, 512, proposal_rate=0.4)
    r = pricer.round(5, 64, 512, 0.4).r
    assert 1 + 0.4 * (mean_acceptance_length(rate, 5) - 1) == pytest.approx(r, rel=1e-4)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    contexts=st.lists(st.integers(1, 40000), min_size=1, max_size=24), which=st.integers(0, 23), more=st.integers(1, 20000),
    drafted=st.integers(0, 5), prompt=st.sampled_from([(), ((64, 0),), ((512, 4096),)]), equal=st.booleans(),
)  # fmt: skip
def test_a_longer_context_never_makes_a_step_cheaper(engine, contexts, which, more, drafted, prompt, equal):
    """Also from equal lengths to nearly equal ones, where a kernel that walks the cache pays for whole waves of blocks."""
    pricer = eagle3(hardware=find_hardware("rtx_4090"), engine=find_engine(engine)).pricer()
    if equal:
        contexts = [contexts[0]] * len(contexts)
    longer = list(contexts)
    longer[which % len(contexts)] += more if not equal else 1
    before, after = (pricer.price([(context, drafted) for context in each], prompt, 0).seconds for each in (contexts, longer))
    assert after >= before * (1 - 1e-9)


def test_serial_walks_of_equal_and_nearly_equal_lengths_cost_the_same():
    units = H100.profile.compute_units
    for blocks in (units + 1, 2 * units, 2 * units + units // 2):
        equal = serial_walk_attention(1e-5, blocks * 1e-5, blocks, H100).seconds
        nearly = serial_walk_attention(1e-5 * (1 + 1e-9), blocks * 1e-5, blocks, H100).seconds
        assert nearly == pytest.approx(equal, rel=1e-6)


def test_no_text_is_searched_while_the_policy_is_off():
    ngram = eagle3(method="ngram", drafter=None).pricer()
    scheduled = replace(ngram, drafts_at=lambda running: 3 if running <= 4 else 0)
    off = [(700, 0)] * 8
    assert "draft_lookup" in dict(ngram.price(off, (), 0).terms)
    assert "draft_lookup" not in dict(scheduled.price(off, (), 0).terms)
    # Where it is on, everyone is searched, whether or not anything is found.
    found = dict(scheduled.price(off[:4], (), 0).terms)["draft_lookup"]
    assert found == pytest.approx(4 * VLLM.ngram_lookup_s.value)


# ---------------------------------------------------------------------------------------- rows and passes of each draft cache


def rows_priced(monkeypatch: pytest.MonkeyPatch, rule: str, gamma: int, full: float = 0.5, tree: str | None = None) -> list[int]:
    """Rows of every pass that drafting for 10 sequences prices, in order."""
    engine = VLLM.model_copy(update={"draft_cache": rule})
    deployment = eagle3(engine=engine, tree=None if tree is None else read_tree(tree))
    drafter = deployment.pricer(full).drafter
    assert drafter is not None
    assert drafter.passes is not None
    asked: list[int] = []
    price = drafter.passes.price
    monkeypatch.setattr(drafter.passes, "price", lambda each: (asked.append(each.rows), price(each))[1])
    drafting_terms(drafter, gamma, 10, 5120.0)
    return asked


@pytest.mark.parametrize(
    ("rule", "full", "first"), [("padded", 0.5, 60), ("catch_up", 0.0, 10), ("catch_up", 0.5, 15), ("catch_up", 1.0, 20), ("extra_pass", 0.5, 10)]
)  # fmt: skip
def test_the_first_draft_pass_takes_in_the_rows_of_the_engines_rule(monkeypatch, rule, full, first):
    """γ = 5, ten sequences: γ+1 rows each padded, one more after full acceptance, or one row and a pass more."""
    assert rows_priced(monkeypatch, rule, 5, full) == [first, 10]


def test_a_tree_pads_its_first_pass_by_its_steps_not_by_its_nodes(monkeypatch):
    tree = "steps=3,topk=4,draft_tokens=16"
    for gamma in (3, 15):  # as a round is asked, and as a step of 15 drafts is
        assert rows_priced(monkeypatch, "padded", gamma, tree=tree) == [40, 40]


def test_an_extra_pass_is_one_pass_more():
    def launches(rule: str) -> float:
        pricer = eagle3(engine=VLLM.model_copy(update={"draft_cache": rule})).pricer()
        return next(term.seconds for term in pricer.round(4, 1, 512).draft if term.name == "draft_launches")

    assert launches("extra_pass") == pytest.approx(5 / 4 * launches("catch_up"))


def test_idle_rounds_and_prompts_fuse_the_targets_states_too():
    without = EAGLE3.model_copy(update={"fc_input_size": None})
    fused, bare = (eagle3(drafter=head).pricer() for head in (EAGLE3, without))
    price = ForwardCost(EAGLE3, H100, VLLM, 1, "bf16", "bf16").fusion_s
    idle = [dict(pricer.price([(700, 0)] * 6, (), 0).terms)["draft_cache_upkeep"] for pricer in (fused, bare)]
    assert idle[0] - idle[1] == pytest.approx(price(6), rel=1e-6)
    prompt = [dict(pricer.price((), [(512, 0), (100, 50)], 0).terms)["prefill_draft"] for pricer in (fused, bare)]
    assert prompt[0] - prompt[1] == pytest.approx(price(612), rel=1e-6)


@pytest.mark.parametrize(("rows", "waves"), [(2, 1), (64, 1), (65, 2), (128, 2), (129, 3)])
def test_a_serial_walk_takes_a_block_for_every_64_rows_of_a_sequence(rows, waves):
    """Four sequences of 32 heads fill the 128 units of an RTX 4090: each further block of rows is a further walk."""
    hardware = find_hardware("rtx_4090")
    assert hardware.profile.compute_units == 128
    cost = passes(hardware=hardware)
    seconds = next(t.seconds for t in cost.price(uniform_pass(4, rows, 8192, None)).terms if t.name == "attention")
    walk = walk_s(8192, 4, 128, hardware)
    assert seconds == pytest.approx(32 * (hardware.coefficients.walk_overhead_s.value + waves * walk))


def test_what_one_fit_gave_is_doubted_together():
    """Two overheads that only ever show as a sum: anticorrelated they cancel in part, correlated they add up."""

    def spread(value: float) -> float:
        engine = VLLM.model_copy(update={"correlations": {"feature_overhead_s": {"round_overhead_s": value}} if value else {}})
        return UncertainPricer(eagle3(engine=engine)).spread(3, 1, 512).up

    assert spread(-0.9) < spread(0.0) < spread(0.9)


def test_a_constant_that_the_device_states_itself_is_not_of_the_fit():
    engine = VLLM.model_copy(update={"correlations": {"expert_overhead_s": {"round_overhead_s": 0.9}}})
    stated = {"expert_overhead_s": Quantity(value=2e-5, source="measured", relative_std=0.31)}
    own = replace(H100, profile=H100.profile.model_copy(update={"coefficients": {**H100.profile.coefficients, **stated}}))
    mixture = find_model(MIXTURE)
    head = built_head(mixture, "eagle3", 3)
    both = [
        UncertainPricer(Deployment(hardware, engine, mixture, method="eagle3", drafter=head)).correlation
        for hardware in (H100, own)
    ]
    assert abs(both[0] - np.eye(len(both[0]))).max() == 0.9
    assert abs(both[1] - np.eye(len(both[1]))).max() == 0.0


@pytest.mark.parametrize("hardware", ["l4", "l40s", "rtx_4090", "a100_sxm_80gb", "rtx_3090"])
@pytest.mark.parametrize("model", ["Qwen/Qwen3-1.7B", "lmsys/vicuna-7b-v1.3", "meta-llama/Llama-3.1-8B-Instruct"])
def test_no_kernel_verifies_faster_than_memory_gives_it_the_cache(hardware, model):
    """Walks were measured where four query heads share a cache; where each has its own, memory and not the walk sets the pace."""
    device = find_hardware(hardware)
    for engine in ("vllm", "vllm_2025", "sglang", "hf_eager"):
        cost = ForwardCost(find_model(model), device, find_engine(engine), 1, "bf16", "bf16")
        for sequences, context in ((1, 500), (8, 4000), (64, 1000), (256, 8000)):
            plain_s = cost.attention.term(uniform_pass(sequences, 1, context, None)).seconds
            several_s = cost.attention.term(uniform_pass(sequences, 3, context, None)).seconds
            kept = (
                sequences
                * context
                * sum(group.count * group.kv_elements_per_token for group in find_model(model).layer_groups(1))
            )
            floor_s = 2 * kept / device.attention_bandwidth_bytes_per_s
            assert several_s >= floor_s * (1 - 1e-9)
            assert plain_s >= floor_s * (1 - 1e-9)
