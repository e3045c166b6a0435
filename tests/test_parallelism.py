"""Laws of parallelism: pipeline stages, data-parallel ranks, experts on many devices, nodes, a draft on a device of its own."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator import predict
from simulator.architecture import find_model
from simulator.cost.collectives import all_reduce, all_to_all_s
from simulator.cost.deployment import Deployment
from simulator.cost.forward import ForwardCost
from simulator.cost.forward_pass import uniform_pass
from simulator.cost.parallelism import ONE_GROUP, Parallelism, busiest, fullest_prompts
from simulator.cost.remote_draft import RemoteDraft
from simulator.hardware import Hardware, HardwareOverride, find_hardware, override
from simulator.serving_engine import find_engine
from simulator.spec import Document, SpecError

LLAMA_8B = find_model("meta-llama/Llama-3.1-8B-Instruct")
LLAMA_70B = find_model("meta-llama/Llama-3.1-70B-Instruct")
LLAMA_1B = find_model("meta-llama/Llama-3.2-1B-Instruct")
EAGLE3 = find_model("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B")
DEEPSEEK, MTP = find_model("deepseek-ai/DeepSeek-V3"), find_model("deepseek-ai/DeepSeek-V3 MTP")
VLLM, GENERIC = find_engine("vllm"), find_engine("generic")
H100 = find_hardware("h100_sxm")


def changed(base: str, **coefficients: float) -> Hardware:
    return override(find_hardware(base), HardwareOverride(base=base, **coefficients), Document("", {}))


FREE_LINKS = changed("h100_sxm", inter_node_latency_s=0.0, inter_node_bandwidth_bytes_per_s=1e16)
DENSE = Deployment(FREE_LINKS, VLLM, LLAMA_70B, "fp8", method="eagle3", drafter=EAGLE3)
MIXTURE = Deployment(find_hardware("h200_sxm"), VLLM, DEEPSEEK, "fp8", "bf16", 1, "mtp", MTP, "fp8", 1)


def over(deployment: Deployment, tensor: int = 1, **parallelism) -> Deployment:
    beyond = Parallelism(**parallelism)
    return replace(deployment, tensor_parallel_size=tensor, draft_tensor_parallel_size=tensor, parallelism=beyond)


def step_s(deployment: Deployment, batch: int, context: int = 1000) -> float:
    return deployment.pricer().plain(batch, context).seconds


def round_of(deployment: Deployment, batch: int, gamma: int = 3, full: float = 0.5):
    return deployment.pricer(full).round(gamma, batch, 1000)


def terms(deployment: Deployment, batch: int) -> dict[str, float]:
    return {term.name: term.seconds for term in deployment.pricer().plain(batch, 1000).terms}


# ------------------------------------------------------------------------------------------------------------ pipeline


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("each", [1, 16])
def test_full_stages_over_free_links_pass_as_the_slowest_allows(stages, each):
    """p batches in flight: each passes again after max(one pass, p × the slowest stage), the last having LM head and sampling."""
    pipeline = over(DENSE, pipeline_parallel_size=stages, nodes=stages)
    alone = terms(over(DENSE), each)
    last = alone["lm_head"] + alone["sampling"]
    layers = sum(alone.values()) - last - alone["host"]
    slowest = max(layers / stages + last, alone["host"])
    assert step_s(pipeline, stages * each) == pytest.approx(max(sum(alone.values()), stages * slowest), rel=1e-5)


def test_one_sequence_gains_nothing_from_stages_and_pays_every_link():
    alone = step_s(over(DENSE), 1)
    for stages in (2, 4):
        assert step_s(over(DENSE, pipeline_parallel_size=stages, nodes=stages), 1) == pytest.approx(alone, rel=1e-5)
        far = replace(
            over(DENSE, pipeline_parallel_size=stages, nodes=stages), hardware=changed("h100_sxm", inter_node_latency_s=1e-3)
        )
        near = replace(far, parallelism=replace(far.parallelism, nodes=1))
        # One hop a boundary, and one for the sampled token on its way back.
        assert step_s(far, 1) == pytest.approx(alone + stages * 1e-3, rel=0.01)
        assert alone < step_s(near, 1) < step_s(far, 1)


def test_stages_raise_throughput_by_up_to_their_number_once_rows_cost_more_than_weights():
    """Every batch in flight reads all weights, so that a few sequences gain nothing by being cut into four."""
    pairs = [[step_s(over(DENSE, pipeline_parallel_size=p, nodes=p), batch) for p in (1, 4)] for batch in (8, 64, 512, 2048)]
    gains = [one / four for one, four in pairs]
    assert gains == sorted(gains)
    assert gains[0] < 1 < gains[1]
    assert 2 < gains[-1] <= 4.1  # waves of tiles fit 512 rows a little better than 2,048


def test_a_drafter_in_the_last_stage_keeps_the_others_waiting():
    pipeline = over(DENSE, pipeline_parallel_size=4, nodes=4)
    cost = round_of(pipeline, 4)
    bubble = next(term.seconds for term in cost.verify if term.name == "pipeline_bubble")
    assert bubble > 2 * cost.draft_s
    assert cost.r > round_of(over(DENSE), 1).r


def test_an_engine_that_sends_one_batch_through_all_stages_gains_nothing_by_them():
    serial = replace(over(DENSE, pipeline_parallel_size=4, nodes=4), engine=VLLM.model_copy(update={"pipeline_in_flight": False}))
    assert step_s(serial, 64) == pytest.approx(step_s(over(DENSE), 64), rel=1e-4)


def test_over_a_slow_network_the_gain_grows_with_its_latency():
    """Vicuna-13B split over two A100 and an emulated wide-area link: 1.86 × to 2.64 × from 5 ms to 100 ms (ai-decentralized/BloomBee#57)."""
    gains = []
    for latency_s in (0.005, 0.1):
        device = changed("a100_sxm_80gb", inter_node_latency_s=latency_s, inter_node_bandwidth_bytes_per_s=1e8)
        vicuna = find_model("lmsys/vicuna-13b-v1.3")
        split = Deployment(
            device, find_engine("hf_eager"), vicuna, method="draft_model", drafter=find_model("lmsys/vicuna-7b-v1.3")
        )
        gains.append(4.2 / round_of(over(split, pipeline_parallel_size=2, nodes=2), 1, gamma=5).r)
    assert gains[1] > gains[0]


def test_stages_share_weights_and_cache():
    one, two = over(DENSE, 2), over(DENSE, 2, pipeline_parallel_size=2)
    plain_one, plain_two = one.plain(), two.plain()
    assert plain_two.kv_bytes_per_token() == plain_one.kv_bytes_per_token() / 2
    assert plain_one.weight_bytes() / 2 <= plain_two.weight_bytes() < 0.51 * plain_one.weight_bytes()
    assert two.weight_bytes() - plain_two.weight_bytes() == pytest.approx(one.weight_bytes() - plain_one.weight_bytes())
    assert two.kv_blocks(0.9) > 2 * one.kv_blocks(0.9)


def test_stages_hold_more_tokens_than_devices_that_replicate_kv_heads():
    """Eight A100 80 GB: 313k tokens on eight tensor-parallel devices with EAGLE-3, 558k on four in two stages (vllm-project/vllm#48603), as
    that model has four KV heads. Llama-70B has eight: sixteen devices against eight in two stages."""
    wide = Deployment(find_hardware("a100_sxm_80gb"), VLLM, LLAMA_70B)
    assert over(wide, 8, pipeline_parallel_size=2).kv_blocks(0.9) > 1.7 * over(wide, 16).kv_blocks(0.9)


# -------------------------------------------------------------------------------------------------------- data parallel


@given(st.integers(1, 64), st.sampled_from([2, 4, 8]))
def test_replicas_of_a_dense_model_are_each_like_one_with_its_share(each, ranks):
    many, one = over(DENSE, 2, data_parallel_size=ranks), over(DENSE, 2)
    assert step_s(many, ranks * each) == step_s(one, each)
    assert round_of(many, ranks * each).round_s == round_of(one, each).round_s
    assert many.kv_blocks(0.9) == one.kv_blocks(0.9)
    assert many.kv_tokens(0.9) == ranks * one.kv_tokens(0.9)


def test_an_uneven_batch_waits_for_the_fullest_rank():
    ranks = over(DENSE, data_parallel_size=4)
    assert step_s(ranks, 5) == step_s(ranks, 8) > step_s(ranks, 4)


def test_ranks_of_a_mixture_share_experts_and_nothing_else():
    eight, sliced = over(MIXTURE, data_parallel_size=8), over(MIXTURE, 8)
    experts = DEEPSEEK.expert_bytes("fp8")
    assert eight.plain().weight_bytes() == pytest.approx(DEEPSEEK.weight_bytes("fp8") - experts * 7 / 8)
    assert sliced.plain().weight_bytes() == pytest.approx(DEEPSEEK.weight_bytes("fp8") / 8)
    # Latent attention is cached whole on each device of a tensor-parallel group, and once where ranks attend apart.
    assert eight.kv_bytes_per_token() == sliced.kv_bytes_per_token()
    assert eight.kv_tokens(0.9) > 4 * sliced.kv_tokens(0.9)
    assert eight.independent_replicas == 1
    assert over(DENSE, data_parallel_size=8).independent_replicas == 8


def test_tokens_that_a_published_expert_parallel_rank_holds():
    """Sixteen H20, data and expert parallel, 8-bit weights and cache: 571,264 tokens were 0.76 of a rank's cache (antgroup/sglang#4)."""
    rank = Deployment(find_hardware("h20"), find_engine("sglang"), DEEPSEEK, "fp8", "fp8", 1, "mtp", MTP, "fp8", 1)
    rank = replace(rank, parallelism=Parallelism(data_parallel_size=16, expert_parallel=True, nodes=2))
    assert rank.kv_blocks(0.9) * rank.engine.block_tokens == pytest.approx(571264 / 0.76, rel=0.1)


# -------------------------------------------------------------------------------------------------------------- experts


@given(st.floats(1, 256), st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_the_busiest_device_has_at_least_its_share_and_no_more_than_its_experts(touched, devices):
    found = busiest(touched, devices, 256)
    assert touched / devices - 1e-9 <= found <= min(touched, 256 / devices) + 1e-9 or found == pytest.approx(touched / devices)


@pytest.mark.parametrize(("touched", "devices"), [(8, 8), (40, 8), (40, 16), (128, 16), (220, 32)])
def test_the_busiest_device_is_that_of_experts_drawn_at_random(touched, devices):
    draw = np.random.default_rng([1, touched, devices])
    loads = [np.bincount(draw.permutation(256)[:touched] // (256 // devices), minlength=devices).max() for _ in range(400)]
    assert busiest(touched, devices, 256) == pytest.approx(np.mean(loads), rel=0.15)


def test_whole_experts_cost_imbalance_at_small_batches_and_nothing_when_all_are_read():
    def experts(batch: int, **parallelism) -> float:
        return terms(over(MIXTURE, 8, **parallelism), batch)["experts"]

    assert experts(4, expert_parallel=True) > 1.05 * experts(4)
    # Unpopular experts are read only by batches of many thousand tokens.
    assert experts(32768, expert_parallel=True) == pytest.approx(experts(32768), rel=0.02)


def test_dispatch_and_combine_take_what_deepep_publishes():
    """H800 with 400 Gb/s InfiniBand, 128 tokens a rank, 7168 wide, eight experts a token, 8 bit out and 16 back: deepseek-ai/DeepEP,
    low-latency kernels. The latency was fitted on this table."""
    published = {8: (77, 114), 16: (118, 195), 32: (155, 273), 64: (173, 314), 128: (192, 369), 256: (194, 360)}
    for devices, measured_us in published.items():
        for size, us in zip((1 + 4 / 128, 2), measured_us, strict=True):
            assert all_to_all_s(128 * 7168 * size, 8, devices, devices // 8, find_hardware("h800_sxm")) == pytest.approx(
                us * 1e-6, rel=0.12
            )


def test_a_norm_over_all_heads_adds_up_where_they_lie_on_several_devices():
    """MiniMax-M2 (vllm-project/vllm#31493): a small all-reduce in every layer; norms of each head need none."""
    minimax, glm = (find_model(name) for name in ("MiniMaxAI/MiniMax-M2.5", "zai-org/GLM-4.5"))
    passes = {
        (model.name, size): ForwardCost(model, find_hardware("h200_sxm"), VLLM, size, "fp8", "bf16").price(
            uniform_pass(8, 1, 100, None)
        )
        for model in (minimax, glm)
        for size in (1, 4)
    }
    seconds = {key: {term.name: term.seconds for term in cost.terms} for key, cost in passes.items()}
    assert [key for key, terms in seconds.items() if "qk_norm_reduce" in terms] == [(minimax.name, 4)]
    several = seconds[minimax.name, 4]
    assert 0.25 * several["all_reduce"] < several["qk_norm_reduce"] < 0.5 * several["all_reduce"]


def test_ranks_of_a_mixture_exchange_rows_and_slices_gather_them():
    whole, sliced = (over(MIXTURE, data_parallel_size=8, expert_parallel=flag) for flag in (True, False))
    assert "all_to_all" in terms(whole, 64)
    assert "gather_scatter" not in terms(whole, 64)
    assert "gather_scatter" in terms(sliced, 64)
    assert "all_reduce" not in terms(whole, 64)
    assert {"inter_node_gather_scatter", "gather_scatter"} <= terms(over(MIXTURE, data_parallel_size=16, nodes=2), 64).keys()


# ---------------------------------------------------------------------------------------------------------------- nodes


@given(st.sampled_from([1e3, 1e5, 1e7, 1e9]), st.sampled_from([2, 4]))
def test_an_all_reduce_between_nodes_is_dearer_than_inside_one(message, nodes):
    inside = all_reduce(message, 8, 1, H100, VLLM)
    across = all_reduce(message, 8, nodes, H100, VLLM)
    assert inside[1] == 0
    assert sum(across) > sum(inside) or message >= 1e7
    slow = changed("h100_sxm", inter_node_bandwidth_bytes_per_s=1e9)
    assert all_reduce(message, 8, nodes, slow, VLLM)[1] > across[1]


@pytest.mark.parametrize("batch", [1, 64])
def test_a_tensor_parallel_group_over_nodes_is_slower(batch):
    times = [step_s(over(replace(DENSE, hardware=H100), 8, nodes=nodes), batch) for nodes in (1, 2, 4)]
    assert times == sorted(times)
    assert times[0] < times[1]


def test_groups_inside_nodes_do_not_feel_the_others():
    assert step_s(over(DENSE, 8, data_parallel_size=2, nodes=2), 8) == step_s(over(DENSE, 8, data_parallel_size=2), 8)


def test_which_boundaries_leave_a_node():
    assert Parallelism(pipeline_parallel_size=4, nodes=4).inter_node_boundaries(8) == 3
    assert Parallelism(pipeline_parallel_size=4, nodes=2).inter_node_boundaries(8) == 1
    assert Parallelism(pipeline_parallel_size=2, data_parallel_size=2, nodes=2).inter_node_boundaries(4) == 0
    assert Parallelism(pipeline_parallel_size=2, nodes=4).tensor_nodes(16) == 2
    assert Parallelism(data_parallel_size=4, nodes=2, expert_parallel=True).expert_nodes(4) == 2


def test_a_link_that_is_assumed_widens_the_interval():
    point = {"target_model": "meta-llama/Llama-3.1-70B-Instruct", "method": "eagle3", "num_speculative_tokens": 3, "batch": 32}
    # Inside the node a device whose links were measured: of PCIe alone as much is assumed there.
    point |= {"hardware": "h100_sxm", "engine": "vllm", "context_len": 500, "tensor_parallel_size": 8}
    one, two = predict(**point), predict(**point, nodes=2)
    assert math.log(two.r_high / two.r_low) > math.log(one.r_high / one.r_low)


# --------------------------------------------------------------------------------------- shares of a step, and of prompts


@given(st.lists(st.tuples(st.integers(1, 20000), st.integers(0, 5000)), max_size=12), st.integers(1, 8))
def test_prompts_are_spread_evenly_and_none_beyond_a_chunk(prefill, ways):
    share = sum(new for new, _ in fullest_prompts(prefill, ways, 8192))
    total = sum(new for new, _ in prefill)
    assert total / ways <= share <= total / ways + 8192


def test_a_simulated_step_of_equal_sequences_is_the_priced_one():
    for deployment in (over(DENSE, pipeline_parallel_size=4, nodes=4), over(MIXTURE, data_parallel_size=8, expert_parallel=True)):
        pricer, cost = deployment.pricer(), round_of(deployment, 32)
        assert pricer.price([(1000, 0)] * 32, (), 0).seconds >= cost.plain_step_s * (1 - 1e-9)
        assert pricer.price([(1000, 3)] * 32, (), 0).seconds == pytest.approx(cost.round_s)


def test_prompts_on_their_own_may_leave_the_fullest_rank_other_chunks_of_the_draft_than_of_the_target():
    """A long prompt of which the target's cache knew all but the end: the draft computes it whole, and that rank has no other."""
    target, drafter = find_model("Qwen/Qwen3-30B-A3B"), find_model("Qwen/Qwen3-0.6B")
    engine = find_engine("sglang_0_4_3")
    assert engine.drafting_prompts_alone
    ranks = Parallelism(data_parallel_size=2)
    deployment = Deployment(
        find_hardware("h200_sxm"), engine, target, method="draft_model", drafter=drafter, parallelism=ranks
    )  # fmt: skip
    ends, whole = [(10, 490), (10, 0), (10, 0)], [(500, 0), (10, 0), (10, 0)]
    pricer = deployment.pricer()
    found = pricer.price([(100, 3)], ends, 3, whole)
    assert found.seconds == pytest.approx(sum(seconds for _, seconds in found.terms))
    targets = [seconds for name, seconds in found.terms if name == "prefill"]
    drafts = [seconds for name, seconds in found.terms if name == "prefill_draft"]
    assert (len(targets), len(drafts)) == (2, 1)


def test_prompts_fill_all_stages_at_once():
    pipeline, alone = over(DENSE, pipeline_parallel_size=4, nodes=4).pricer(), over(DENSE).pricer()
    one = alone.price((), ((2000, 0),), 1).seconds
    assert pipeline.price((), ((2000, 0),), 1).seconds == pytest.approx(one, rel=0.01)
    assert pipeline.price((), ((2000, 0),) * 4, 4).seconds < 1.2 * one


# ------------------------------------------------------------------------------------------- a draft on another device


def apart(latency_s: float = 1e-4, overlap: bool = False, device: str = "rtx_4090", **changes) -> Deployment:
    where = RemoteDraft(find_hardware(device), 1, latency_s, overlap)
    return Deployment(H100, VLLM, LLAMA_8B, method="draft_model", drafter=LLAMA_1B, remote_draft=where, **changes)


def test_a_draft_elsewhere_takes_no_memory_of_the_target():
    far, near = apart(), replace(apart(), remote_draft=None)
    assert far.kv_blocks(0.9) == far.plain().kv_blocks(0.9) > near.kv_blocks(0.9)
    assert far.weight_bytes() == far.plain().weight_bytes() < near.weight_bytes()
    assert far.kv_bytes_per_token() == far.plain().kv_bytes_per_token()


def test_a_small_draft_device_limits_what_runs():
    small = apart(device="rtx_3060_12gb")
    assert small.draft_device_binds(0.9)
    assert small.kv_blocks(0.9) < small.plain().kv_blocks(0.9)


def test_a_synchronous_round_adds_drafting_the_round_trip_and_verification():
    same = replace(apart(), remote_draft=RemoteDraft(H100, 1, 0.0))
    beside = round_of(replace(apart(), remote_draft=None), 4)
    assert round_of(same, 4).round_s == pytest.approx(beside.round_s)
    assert round_of(apart(latency_s=0.01), 4).round_s - round_of(apart(latency_s=0.0), 4).round_s == pytest.approx(0.02)


@given(st.floats(0, 1), st.floats(0, 0.02), st.integers(1, 8), st.sampled_from(["rtx_4090", "b200_sxm"]))
def test_drafting_ahead_is_never_slower_than_in_turn_nor_faster_than_the_longer_of_both(full, latency_s, gamma, device):
    ahead, turn = (round_of(apart(latency_s, overlap, device), 4, gamma, full) for overlap in (True, False))
    assert max(turn.draft_s, turn.verify_s) * (1 - 1e-12) <= ahead.round_s <= turn.round_s * (1 + 1e-12)


def test_drafting_ahead_hides_all_where_every_draft_is_right_and_nothing_where_none_is():
    turn = round_of(apart(), 4, full=1.0)
    assert round_of(apart(overlap=True), 4, full=1.0).round_s == pytest.approx(max(turn.draft_s, turn.verify_s))
    assert round_of(apart(overlap=True), 4, full=0.0).round_s == pytest.approx(round_of(apart(), 4, full=0.0).round_s)


def test_break_even_of_a_draft_that_works_ahead_falls():
    assert apart(overlap=True, device="h100_sxm").pricer().break_even_rate(4, 1, 500) < apart(
        device="h100_sxm"
    ).pricer().break_even_rate(4, 1, 500)


# ------------------------------------------------------------------------------------------------------------- refusals

POINT = {"hardware": "h100_sxm", "engine": "vllm", "target_model": "meta-llama/Llama-3.1-70B-Instruct", "method": "eagle3"}
POINT |= {"num_speculative_tokens": 3, "batch": 8, "context_len": 500, "tensor_parallel_size": 4}
DRAFT = {**POINT, "method": "draft_model", "draft_model": "meta-llama/Llama-3.2-1B-Instruct"}


@pytest.mark.parametrize(
    ("point", "must"),
    [
        ({**POINT, "pipeline_parallel_size": 64, "target_model": "meta-llama/Llama-3.1-8B-Instruct"}, "must be at most 32, the layers"),
        ({**POINT, "nodes": 3}, "must divide the 4 devices"),
        ({**POINT, "pipeline_parallel_size": 3, "nodes": 2}, "must spread whole tensor-parallel groups evenly"),
        ({**POINT, "expert_parallel": True}, "has no experts"),
        ({**POINT, "engine": "sglang", "pipeline_parallel_size": 2}, "runs no method of speculation over pipeline stages"),
        ({**DRAFT, "pipeline_parallel_size": 2}, "runs only eagle3, block"),
        ({**POINT, "draft_hardware": "rtx_4090", "draft_link_latency_s": 1e-4}, "goes with method draft_model"),
        ({**DRAFT, "draft_hardware": "rtx_4090"}, "must be given with draft_hardware"),
        ({**DRAFT, "draft_overlap": True}, "goes with draft_hardware only"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(point, must):
    with pytest.raises(SpecError, match=must):
        predict(**point)


def test_a_device_that_is_not_known_makes_the_point_unsupported():
    answer = predict(**DRAFT, draft_hardware="rtx_9040", draft_link_latency_s=1e-4)
    assert (answer.status, "rtx_9040" in answer.reason) == ("unsupported", True)


def test_sizes_of_one_change_nothing():
    assert predict(**POINT) == predict(**POINT, pipeline_parallel_size=1, data_parallel_size=1, expert_parallel=False, nodes=1)
    assert Parallelism() == ONE_GROUP
