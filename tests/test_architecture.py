"""Laws of model shapes: published sizes, cached bytes, what a device holds, and names that resolve to one model each."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from simulator import resources
from simulator.architecture import (
    STATE_NUMBER_BYTES,
    LayerGroup,
    ModelArchitecture,
    block_drafter,
    eagle_head,
    find_model,
    hydra_heads,
    medusa_heads,
    model_problems,
    models,
    mtp_head,
    unsupported,
)
from simulator.cost.forward import ForwardCost
from simulator.hardware import find_hardware
from simulator.serving_engine import find_engine
from simulator.spec import Document, SpecError, load_yaml
from simulator.speculation import built_head

SHARED = Path(__file__).parents[2] / "shared"
MODELS = tuple(dict.fromkeys(models().values()))
TARGETS = tuple(model for model in MODELS if model.kind != "draft_head")
MOE = tuple(model for model in MODELS if model.is_moe)
HEADS = tuple(model for model in MODELS if model.kind == "draft_head")
FUSED = ("eagle", "eagle3", "mtp", "dflash")
GIB = 2**30
# Parameters that a published total holds beside the text decoder (or beside the head's own).
COUNTED_ELSEWHERE = {
    "google/gemma-3-4b-it": 0.42e9,  # vision encoder
    "google/gemma-3-12b-it": 0.42e9,
    "google/gemma-3-27b-it": 0.42e9,
    "zai-org/GLM-4.5 MTP": 2 * 151552 * 5120,  # own copies of embedding and LM head
    "zai-org/GLM-4.5-Air MTP": 2 * 151552 * 4096,
}
# Published as one digit, so that 2 % cannot be asked.
ONE_DIGIT = {"Qwen/Qwen3.5-4B": 0.06, "z-lab/Qwen3-4B-DFlash-b16": 0.08, "z-lab/Qwen3-8B-DFlash-b16": 0.05}
ONE_DIGIT_ACTIVE = {"zai-org/GLM-4.7-Flash": 0.09}


def name_of(model: ModelArchitecture) -> str:
    return model.name


def weights_on(group: LayerGroup) -> float:
    return group.count * group.parameters


# ---------------------------------------------------------------------------------------------------------- parameters


@pytest.mark.parametrize("model", [model for model in MODELS if model.total_params], ids=name_of)
def test_counted_parameters_match_the_published_total(model: ModelArchitecture) -> None:
    assert model.total_params
    published = model.total_params - COUNTED_ELSEWHERE.get(model.name, 0.0)
    assert model.parameter_count == pytest.approx(published, rel=ONE_DIGIT.get(model.name, 0.02))


@pytest.mark.parametrize("model", [model for model in MODELS if model.active_params], ids=name_of)
def test_active_parameters_match_the_published_count_by_one_of_the_usual_conventions(model: ModelArchitecture) -> None:
    assert model.active_params
    embedding = model.vocab_size * model.hidden_size
    counts = [model.active_parameter_count - copies * embedding for copies in (0, 1, 2)]
    nearest = min(counts, key=lambda count: abs(count - (model.active_params or 0)))
    assert nearest == pytest.approx(model.active_params, rel=ONE_DIGIT_ACTIVE.get(model.name, 0.05))


@pytest.mark.parametrize("model", MODELS, ids=name_of)
def test_parameters_of_the_layer_groups_are_those_of_the_layers(model: ModelArchitecture) -> None:
    groups = model.layer_groups(1)
    assert sum(group.count for group in groups) == model.num_hidden_layers
    assert sum(map(weights_on, groups)) == pytest.approx(model.layer_parameters, abs=1)
    outside = model.parameter_count - model.layer_parameters
    vocabulary = (model.output_vocab_size + model.vocab_size) * model.hidden_size
    fusion = sum(n * k for n, k in model.fusion_shapes(1))
    heads = sum(n * k for n, k in model.head_shapes(1)) + (model.n_predict or 0) * model.vocab_size * (model.inner_dim or 0)
    assert 0 <= outside <= (vocabulary + fusion + heads) * 1.01 + 0.01 * model.layer_parameters


@pytest.mark.parametrize("model", MOE, ids=name_of)
def test_routed_parameters_are_those_of_one_expert_times_their_number(model: ModelArchitecture) -> None:
    width = model.moe_latent_size or model.hidden_size
    one = model.mlp_matrices * width * (model.moe_intermediate_size or 0)
    layers = [group for group in model.layer_groups(1) if group.experts]
    assert sum(group.count for group in layers) == model.moe_layers > 0
    for group in layers:
        assert group.experts
        assert group.experts.parameters_per_expert == one
        assert group.parameters - sum(n * k for n, k in group.matrices) == one * (model.num_experts or 0)
    idle = ((model.num_experts or 0) - (model.num_experts_per_tok or 0)) * one * model.moe_layers
    assert model.parameter_count - model.active_parameter_count == idle


def test_a_dense_model_uses_all_its_parameters() -> None:
    for model in MODELS:
        assert (model.active_parameter_count < model.parameter_count) == model.is_moe


# --------------------------------------------------------------------------------------------------- tensor parallelism


@pytest.mark.parametrize("model", TARGETS, ids=name_of)
def test_devices_together_hold_at_least_the_model(model: ModelArchitecture) -> None:
    whole = sum(map(weights_on, model.layer_groups(1)))
    for size in (2, 4, 8, 16):
        held = size * sum(map(weights_on, model.layer_groups(size)))
        assert held >= whole * (1 - 1e-12)
    n, k = model.lm_head_shape(8)
    assert 8 * n * k == model.lm_head_parameters


@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-70B", "Qwen/Qwen3-32B", "google/gemma-2-27b", "microsoft/phi-4"])
def test_devices_split_a_dense_model_without_rest_while_heads_divide(name: str) -> None:
    model = find_model(name)
    whole = sum(map(weights_on, model.layer_groups(1)))
    assert 2 * sum(map(weights_on, model.layer_groups(2))) == whole
    assert 8 * sum(map(weights_on, find_model("Qwen/Qwen3-32B").layer_groups(8))) == find_model("Qwen/Qwen3-32B").layer_parameters


@pytest.mark.parametrize("model", MOE, ids=name_of)
def test_experts_are_split_over_devices_without_rest(model: ModelArchitecture) -> None:
    for one, eighth in zip(model.layer_groups(1), model.layer_groups(8), strict=True):
        if one.experts and eighth.experts:
            assert 8 * eighth.experts.parameters_per_expert == one.experts.parameters_per_expert
            assert eighth.experts.num_experts == one.experts.num_experts


def test_what_stays_whole_on_each_device_is_the_router_and_the_latent_inputs() -> None:
    model = find_model("DeepSeek-V3")
    moe = model.layer_groups(8)[1]
    assert {(256, 7168), (1536, 7168), (576, 7168)} <= set(moe.matrices)
    assert 8 * moe.parameters - model.layer_groups(1)[1].parameters == 7 * 7168 * (256 + 1536 + 576)


# --------------------------------------------------------------------------------------------------------------- cache


@pytest.mark.parametrize(
    ("name", "per_token"),
    [
        ("Llama-3.1-8B", 131072), ("Llama-2-7b", 524288), ("Qwen2.5-7B", 57344), ("Llama-3.1-70B", 327680),
        ("Qwen3-30B-A3B", 98304), ("openai/gpt-oss-20b", 24 * 2 * 8 * 64 * 2), ("openai/gpt-oss-120b", 36 * 2 * 8 * 64 * 2),
        ("deepseek-ai/DeepSeek-V3", 61 * 576 * 2), ("DeepSeek-V2-Lite", 27 * 576 * 2), ("moonshotai/Kimi-K2-Instruct", 61 * 576 * 2),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 12 * 2 * 2 * 256 * 2), ("Nemotron-H-8B-Base-8K", 4 * 2 * 8 * 128 * 2),
    ],
)  # fmt: skip
def test_cached_bytes_per_token_are_the_known_ones(name: str, per_token: int) -> None:
    assert find_model(name).kv_bytes_per_token("bf16") == per_token
    assert find_model(name).kv_bytes_per_token("fp8") == per_token / 2


def test_an_eagle_head_adds_one_layer_of_cache() -> None:
    target, head = find_model("Llama-3.1-8B"), find_model("yuhuili/EAGLE-LLaMA3.1-Instruct-8B")
    per_token = target.kv_bytes_per_token("bf16") + head.kv_bytes_per_token("bf16")
    assert per_token == 135168
    # The KV cache size that vLLM logs for this pair on an 80 GB device: blocks of 16 tokens.
    assert int(51.63 * GIB / (16 * per_token)) * 16 == 410128


def test_kv_heads_are_replicated_once_devices_outnumber_them() -> None:
    model = find_model("Llama-3.1-8B")
    assert model.kv_bytes_per_token("bf16", 8) == model.kv_bytes_per_token("bf16", 16) == model.kv_bytes_per_token("bf16") / 8


def test_a_latent_cache_is_whole_on_each_device() -> None:
    model = find_model("DeepSeek-R1")
    assert model.kv_bytes_per_token("bf16", 8) == model.kv_bytes_per_token("bf16", 1)


def test_latent_attention_costs_as_many_flops_as_its_absorbed_form() -> None:
    group = find_model("DeepSeek-V3").layer_groups(8)[0]
    assert group.attention_flops_per_row_and_token == 2 * (128 / 8) * (2 * 512 + 64)
    dense = find_model("Llama-3.1-8B").layer_groups(1)[0]
    assert dense.attention_flops_per_row_and_token == 4 * 32 * 128


def test_an_indexer_limits_what_is_read_and_adds_to_the_cache() -> None:
    plain, sparse = find_model("DeepSeek-V3"), find_model("DeepSeek-V3.2")
    assert sparse.kv_bytes_per_token("bf16") - plain.kv_bytes_per_token("bf16") == 61 * 128 * 2
    assert {group.window for group in plain.layer_groups(1)} == {None}
    assert {group.window for group in sparse.layer_groups(1)} == {2048}
    shared = sum(group.count for group in find_model("GLM-5.2").layer_groups(1) if group.index_elements_per_token)
    assert shared == 21


def test_a_compressed_cache_holds_one_entry_for_many_tokens() -> None:
    model = find_model("DeepSeek-V4-Flash")
    ratios = {group.attention: group for group in model.layer_groups(1)}
    assert sum(group.count for group in model.layer_groups(1) if group.attention == "compressed") == 41
    assert ratios["sliding"].window == 128
    assert model.kv_bytes_per_token("bf16") < 0.15 * find_model("DeepSeek-V3.2").kv_bytes_per_token("bf16")


@pytest.mark.parametrize("model", TARGETS, ids=name_of)
def test_only_recurrent_layers_keep_a_state_and_they_cache_nothing(model: ModelArchitecture) -> None:
    recurrent = [group for group in model.layer_groups(1) if group.attention in ("linear", "mamba")]
    assert bool(recurrent) == model.has_recurrent_state
    assert all(group.state_elements > 0 and group.kv_elements_per_token == 0 for group in recurrent)
    others = [group for group in model.layer_groups(1) if group.attention not in ("linear", "mamba", "compressed")]
    assert not any(group.state_elements for group in others)
    assert (model.state_bytes("bf16") > 0) == any(group.state_elements for group in model.layer_groups(1))


def test_a_recurrent_state_is_that_of_its_heads_and_the_last_inputs_of_its_convolution() -> None:
    gated = next(group for group in find_model("Qwen3-Next-80B-A3B").layer_groups(1) if group.attention == "linear")
    assert gated.state_elements == 32 * 128 * 128 + (2 * 16 * 128 + 32 * 128) * 3
    mamba = next(group for group in find_model("Nemotron-H-8B-Base-8K").layer_groups(1) if group.attention == "mamba")
    assert mamba.state_elements == 128 * 64 * 128 + (128 * 64 + 2 * 8 * 128) * 3
    assert find_model("Qwen3-Next-80B-A3B").state_bytes("bf16", 2) == find_model("Qwen3-Next-80B-A3B").state_bytes("bf16") / 2


def test_a_recurrent_state_has_the_bytes_that_engines_log() -> None:
    """vLLM makes a block of attention as large as a state, in whole multiples of 16 tokens: 1,568 of an 8-bit cache for the shape
    of Qwen3.5-27B on two devices (mitchross/talos-argocd-proxmox#1995). Without the last inputs of its convolution a state of
    Qwen3.5-35B-A3B on eight has 262,144 bytes (vllm-project/vllm-ascend#7393)."""
    on_two = find_model("Qwen/Qwen3.5-27B").layer_groups(2)
    state = next(group.state_elements for group in on_two if group.attention == "linear") * STATE_NUMBER_BYTES
    token = next(group.kv_elements_per_token for group in on_two if group.attention == "full")
    assert state / token == pytest.approx(1568, rel=0.03)
    wide = find_model("Qwen/Qwen3.5-35B-A3B")
    inputs = (2 * 16 * 128 + 32 * 128) * 3 / 8
    on_eight = next(group.state_elements for group in wide.layer_groups(8) if group.attention == "linear")
    assert (on_eight - inputs) * STATE_NUMBER_BYTES == 262144


def test_quantized_layers_leave_embedding_head_and_router_in_16_bit() -> None:
    for name in ("Llama-3.1-8B", "Qwen3-30B-A3B"):
        model = find_model(name)
        routers = model.moe_layers * (model.num_experts or 0) * model.hidden_size
        assert model.weight_bytes("bf16") - model.weight_bytes("fp8") == model.layer_parameters - routers
        assert model.weight_bytes("bf16") == 2 * model.parameter_count


# Bytes as published: model cards of gpt-oss (12.8 and 60.8 GiB); what an engine loads of nvidia's Gemma 4 in NVFP4, 18.7 GiB, less a
# vision encoder of 1.1 GB in 16 bit (a model card beside it that quantizes all says 20.07 GB); the GGUF file of ggml-org.
MIXED = {
    ("openai/gpt-oss-20b", "mxfp4"): 12.8 * GIB, ("openai/gpt-oss-120b", "mxfp4"): 60.8 * GIB,
    ("openai/gpt-oss-120b", "mxfp4_moe"): 63.4e9,
    ("google/gemma-4-26B-A4B-it", "nvfp4"): 20.07e9 - 1.1e9,
}  # fmt: skip


@pytest.mark.parametrize(("name", "weights"), MIXED)
def test_a_mixed_checkpoint_has_its_published_size(name: str, weights: str) -> None:
    assert find_model(name).weight_bytes(weights) == pytest.approx(MIXED[name, weights], rel=0.075 if "gemma" in name else 0.01)


@pytest.mark.parametrize("model", [model for model in TARGETS if model.mixed_weights], ids=name_of)
def test_parts_kept_wide_cost_their_bytes_in_memory_and_in_a_pass(model: ModelArchitecture) -> None:
    hardware, engine = find_hardware("rtx_3090"), find_engine("sglang")
    plain = model.model_copy(update={"mixed_weights": ()})
    for mixed in model.mixed_weights:
        more = model.weight_bytes(mixed.weights) - plain.weight_bytes(mixed.weights)
        assert more > 0 or mixed.head is not None
        costs = [ForwardCost(shape, hardware, engine, 1, mixed.weights, "bf16") for shape in (model, plain)]
        kept, quantized = (cost.layer_gemms(1).seconds for cost in costs)
        layers = more + (plain.head_bytes(mixed.weights) - model.head_bytes(mixed.weights)) * model.lm_head_parameters
        assert kept - quantized == pytest.approx(layers / hardware.bandwidth_bytes_per_s, rel=0.05)


def windowed(model: ModelArchitecture) -> int:
    return sum(group.count for group in model.layer_groups(1) if group.window is not None)


def test_windows_come_from_the_pattern() -> None:
    assert windowed(find_model("google/gemma-3-4b-it")) == 29
    assert windowed(find_model("google/gemma-2-9b")) == 21
    assert windowed(find_model("mistralai/Mistral-7B-v0.1")) == 32
    assert windowed(find_model("Phi-3-mini-128k-instruct")) == 0
    assert {(group.attention, group.window) for group in find_model("Llama-4-Scout").layer_groups(1)} == {
        ("chunked", 8192),
        ("full", None),
    }


@pytest.mark.parametrize(
    ("name", "billions", "cached"),
    [
        ("google/gemma-4-31B-it", 30.7, 11_576_279_040),  # bytes at 131072 tokens as public index file 58797461640 counts them
        ("google/gemma-4-26B-A4B-it", 25.2, None),
        ("google/gemma-4-12B-it", 11.9, None),
    ],
)
def test_full_layers_of_gemma_4_have_heads_of_their_own(name: str, billions: float, cached: int | None) -> None:
    model = find_model(name)
    full, sliding = sorted(model.layer_groups(1), key=lambda group: group.count)
    assert (full.head_dim, sliding.head_dim, full.heads) == (512, 256, sliding.heads)
    assert full.kv_elements_per_token == 2 * 512 * (model.num_global_key_value_heads or 0) < sliding.kv_elements_per_token
    assert model.parameter_count / 1e9 == pytest.approx(billions, abs=0.05)
    numbers = full.count * full.kv_elements_per_token * 131072 + sliding.count * sliding.kv_elements_per_token * 1024
    assert cached is None or 2 * numbers == cached
    head = eagle_head(model, "eagle3").layer_groups(1)[0]
    assert (head.head_dim, head.kv_heads) == (256, sliding.kv_heads)


# ------------------------------------------------------------------------------------------------------ entries, names


@pytest.mark.parametrize("model", MODELS, ids=name_of)
def test_fields_of_a_model_agree_with_each_other(model: ModelArchitecture) -> None:
    assert not model_problems(model, Document("", {}))
    assert model.sources
    assert bool(model.total_params) == bool(model.total_params_source)
    assert (model.kind == "draft_head" and model.family in FUSED) == (model.fc_input_size is not None)


@pytest.mark.parametrize("head", HEADS, ids=name_of)
def test_a_draft_head_belongs_to_a_known_target_of_its_vocabulary(head: ModelArchitecture) -> None:
    assert head.base_model
    target = find_model(head.base_model)
    assert head.vocab_size == target.vocab_size
    states = {"eagle": (2,), "mtp": (2,), "eagle3": (3,), "dflash": (5, 8)}.get(head.family)
    assert head.fc_input_size in ([count * target.hidden_size for count in states] if states else [None])


@pytest.mark.parametrize("head", [model for model in HEADS if model.num_heads or model.n_predict], ids=name_of)
def test_one_drafting_pass_runs_an_lm_head_for_each_token(head: ModelArchitecture) -> None:
    heads = [shape for shape in head.head_shapes(4) if shape[0] == head.vocab_size / 4]
    assert len(heads) == (head.num_heads or head.n_predict)


def test_a_name_means_one_model() -> None:
    owner: dict[str, str] = {}
    for model in MODELS:
        for name in (model.name, *model.aliases):
            assert owner.setdefault(resources.normalised(name), model.name) == model.name
    assert not owner.keys() & unsupported().keys()


@pytest.mark.parametrize("head", [h for h in HEADS if h.family != "mlp_speculator" and h.kv_source == "own"], ids=name_of)
def test_a_head_built_from_its_target_has_the_size_of_the_published_one(head: ModelArchitecture) -> None:
    """Heads for targets with experts have dense layers of very different widths, hence the room there."""
    assert head.base_model
    target = find_model(head.base_model)
    built = {
        "eagle": lambda: eagle_head(target, "eagle"), "eagle3": lambda: eagle_head(target, "eagle3"), "mtp": lambda: mtp_head(target),
        "medusa": lambda: medusa_heads(target, head.num_heads or 0), "hydra": lambda: hydra_heads(target, head.num_heads or 0),
        "dflash": lambda: block_drafter(target, head.block_size or 0),
    }[head.family]()  # fmt: skip
    assert not model_problems(built, Document("", {}))
    same = (head.hidden_size, head.num_key_value_heads) == (target.hidden_size, target.num_key_value_heads)
    loose = target.is_moe or target.has_recurrent_state or not same
    exact = head.family in ("mtp", "medusa", "hydra")
    assert built.parameter_count == pytest.approx(head.parameter_count, rel=1e-3 if exact else 0.55 if loose else 0.02)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("gemma-4-12B-it-assistant", 0.42), ("gemma-4-26B-A4B-it-assistant", 0.42), ("gemma-4-31B-it-assistant", 0.465)],
)
def test_an_assistant_has_its_published_size_and_caches_nothing(name: str, billions: float) -> None:
    """Sizes as model cards and a checkpoint of 930 MB in 16 bit give them."""
    assistant = find_model(f"google/{name}")
    target = find_model(assistant.base_model or "")
    assert assistant.parameter_count == pytest.approx(billions * 1e9, rel=0.015)
    assert assistant.kv_bytes_per_token("bf16") == 0
    assert built_head(target, "mtp", 4) == assistant
    wide = max(group.kv_heads * group.head_dim for group in target.layer_groups(1))
    assert max(group.kv_elements_per_token for group in assistant.layer_groups(1)) == 2 * wide


@pytest.mark.parametrize("target", TARGETS, ids=name_of)
def test_every_target_has_a_drafter_of_every_kind(target: ModelArchitecture) -> None:
    for built in (
        eagle_head(target, "eagle"), eagle_head(target, "eagle3"), mtp_head(target), medusa_heads(target, 4),
        hydra_heads(target, 4), block_drafter(target, 8),
    ):  # fmt: skip
        assert not model_problems(built, Document("", {}))
        assert built.kind == "draft_head"
        assert built.parameter_count > 0
        assert built.base_model == target.name
        assert not built.has_recurrent_state


@pytest.mark.parametrize(
    ("draft", "target"),
    [
        ("Llama-3.2-1B-Instruct", "Llama-3.3-70B-Instruct"), ("Llama-3.2-3B", "Llama-3.1-8B"), ("Qwen2.5-0.5B", "Qwen2.5-72B"),
        ("Qwen3-0.6B", "Qwen3-32B"), ("double7/vicuna-68m", "vicuna-7b-v1.3"), ("turboderp/Qwama-0.5B-Instruct", "Llama-3-70B"),
        ("Qwen3-0.6B", "Qwen3-235B-A22B"), ("Qwen3.5-4B", "Qwen3.5-397B-A17B"), ("gpt-oss-20b", "gpt-oss-120b"),
    ],
)  # fmt: skip
def test_customary_drafts_share_their_targets_tokenizer(draft: str, target: str) -> None:
    assert find_model(draft).tokenizer == find_model(target).tokenizer is not None


def test_an_unsupported_model_is_refused_with_its_reason() -> None:
    with pytest.raises(SpecError, match="t5-small has encoder-decoder layers"):
        find_model("google-t5/t5-small", "cases.csv:2", "target_model")


def test_an_unknown_model_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(SpecError, match=r"did you mean meta-llama/Llama-3\.1-8B\?"):
        find_model("meta-llama/Llama-3.1-9B")


def test_a_model_file_is_checked_for_faults_between_fields(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    shape = load_yaml(resources.folder("model") / "dense.yaml").data["models"][0] | {"aliases": [], "sources": []}
    path.write_text(json.dumps(shape | {"num_key_value_heads": 5, "num_experts": 4, "num_experts_per_tok": 8}))
    with pytest.raises(SpecError) as caught:
        find_model(str(path))
    text = str(caught.value)
    assert "num_key_value_heads: must divide num_attention_heads (32) (got 5)" in text
    assert "moe_intermediate_size: must be given with num_experts" in text
    assert "num_experts_per_tok: must be at most num_experts (4) (got 8)" in text
    path.write_text(json.dumps(shape | {"layer_pattern": "FS"}))
    with pytest.raises(SpecError, match=r"layer_pattern: must have one letter per layer \(32\) \(got 2\)"):
        find_model(str(path))
    path.write_text(json.dumps(shape | {"layer_pattern": "M" * 32}))
    with pytest.raises(SpecError, match="ssm_state_size: must be given with letter M"):
        find_model(str(path))
    path.write_text(json.dumps(shape))
    assert find_model(str(path)).hidden_size == 4096


def test_every_collected_model_and_drafter_is_known() -> None:
    path = SHARED / "data" / "model_shapes.json"
    if not path.is_file():
        pytest.skip("no collected shapes")
    for entry in json.loads(path.read_text())["models"]:
        name = resources.normalised(entry["name"])
        assert (name in unsupported()) == (entry["family"] in ("t5", "chinchilla")), entry["name"]
        if name in models():
            model = models()[name]
            if model.family == "dflash" and model.layer_pattern == "SSSSSF":
                continue  # releases that came later, with one layer and three states more
            assert model.parameter_count == pytest.approx(entry["computed_params"], rel=0.02)
            if "computed_active_params" in entry:
                assert model.active_parameter_count == pytest.approx(entry["computed_active_params"], rel=0.02)


def test_models_of_the_prediction_cases_are_known() -> None:
    path = SHARED / "data" / "prediction_cases.csv"
    if not path.is_file():
        pytest.skip("no prediction cases")
    with path.open() as lines:
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    for name in {row[key] for row in rows for key in ("target_model", "draft_model")} - {""}:
        assert resources.normalised(name) in models() | unsupported(), name
