"""Laws of reading Hugging Face configs: the shape is that of the known model, and what is not understood is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simulator import predict
from simulator.architecture import find_model, read_config, tower_note
from simulator.scenario import load_scenario
from simulator.spec import SpecError


def dense(hidden: int, layers: int, heads: int, kv_heads: int, width: int, vocabulary: int, **more: Any) -> dict[str, Any]:
    return {
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "intermediate_size": width, "vocab_size": vocabulary, **more,
    }  # fmt: skip


MLA = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
GATED_DELTA = {"linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_conv_kernel_dim": 4}
LLAMA_8B = dense(4096, 32, 32, 8, 14336, 128256, model_type="llama", torch_dtype="bfloat16")
QWEN3_MOE = {
    "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "head_dim": 128, "model_type": "qwen3_moe",
}  # fmt: skip
QWEN3_8B_LAYER = dense(4096, 1, 32, 8, 12288, 151936, head_dim=128, model_type="llama")
GEMMA4 = {
    "model_type": "gemma4_text", "head_dim": 256, "global_head_dim": 512, "attention_k_eq_v": True, "sliding_window": 1024,
    "hidden_size_per_layer_input": 0,
}  # fmt: skip
KNOWN: dict[str, dict[str, Any]] = {
    "meta-llama/Llama-3.1-8B": LLAMA_8B,
    "meta-llama/Llama-3.2-1B": dense(2048, 16, 32, 8, 8192, 128256, model_type="llama", head_dim=64, tie_word_embeddings=True),
    "meta-llama/Llama-2-7b-hf": dense(4096, 32, 32, 32, 11008, 32000, model_type="llama") | {"num_key_value_heads": None},
    "mistralai/Mistral-7B-v0.1": dense(4096, 32, 32, 8, 14336, 32000, model_type="mistral", sliding_window=4096),
    "Qwen/Qwen2.5-7B": dense(3584, 28, 28, 4, 18944, 152064, model_type="qwen2", use_sliding_window=False, sliding_window=131072),
    "Qwen/Qwen3-8B": dense(4096, 36, 32, 8, 12288, 151936, model_type="qwen3", head_dim=128, layer_types=["full_attention"] * 36),
    "Qwen/Qwen3-30B-A3B": dense(2048, 48, 32, 4, 6144, 151936, **QWEN3_MOE),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": dense(
        2048, 48, 16, 2, 5120, 151936, model_type="qwen3_next", head_dim=256, num_experts=512, num_experts_per_tok=10,
        moe_intermediate_size=512, shared_expert_intermediate_size=512, linear_num_value_heads=32, full_attention_interval=4,
        **GATED_DELTA,
    ),
    "Qwen/Qwen3.5-27B": {
        "model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"], "tie_word_embeddings": False, "text_config": dense(
            5120, 64, 24, 4, 17408, 248320, model_type="qwen3_5_text", head_dim=256, linear_num_value_heads=48, dtype="bfloat16",
            layer_types=(["linear_attention"] * 3 + ["full_attention"]) * 16, mtp_num_hidden_layers=1, **GATED_DELTA,
        ),
    },
    "mistralai/Mixtral-8x7B-v0.1": dense(
        4096, 32, 32, 8, 14336, 32000, model_type="mixtral", num_local_experts=8, num_experts_per_tok=2, sliding_window=None
    ),
    "deepseek-ai/DeepSeek-V2-Lite": dense(
        2048, 27, 16, 16, 10944, 102400, model_type="deepseek_v2", q_lora_rank=None, n_routed_experts=64, n_shared_experts=2,
        num_experts_per_tok=6, moe_intermediate_size=1408, first_k_dense_replace=1, moe_layer_freq=1, **MLA,
    ),
    "deepseek-ai/DeepSeek-V3": dense(
        7168, 61, 128, 128, 18432, 129280, model_type="deepseek_v3", q_lora_rank=1536, n_routed_experts=256, n_shared_experts=1,
        num_experts_per_tok=8, moe_intermediate_size=2048, first_k_dense_replace=3, moe_layer_freq=1, n_group=8, topk_group=4,
        num_nextn_predict_layers=1, quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]}, **MLA,
    ),
    "moonshotai/Kimi-K2.5": {
        "model_type": "kimi_k25", "text_config": dense(
            7168, 61, 64, 64, 18432, 163840, model_type="kimi_k2", q_lora_rank=1536, n_routed_experts=384, n_shared_experts=1,
            num_experts_per_tok=8, moe_intermediate_size=2048, first_k_dense_replace=1, moe_layer_freq=1, **MLA,
        ),
    },
    "google/gemma-2-9b": dense(3584, 42, 16, 8, 14336, 256000, model_type="gemma2", head_dim=256, sliding_window=4096),
    "google/gemma-3-4b-it": {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
            "sliding_window": 1024, "sliding_window_pattern": 6,
        },
    },
    "google/gemma-4-26B-A4B-it": {
        "model_type": "gemma4", "text_config": dense(2816, 30, 16, 8, 2112, 262144, **GEMMA4) | {
            "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5, "num_global_key_value_heads": 2,
            "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704,
        },
    },
    "google/gemma-4-31B-it": {
        "model_type": "gemma4", "text_config": dense(5376, 60, 32, 16, 21504, 262144, **GEMMA4) | {
            "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 10, "num_global_key_value_heads": 4,
            "num_experts": None, "top_k_experts": None,
        },
    },
    "google/gemma-4-31B-it-assistant": {
        "model_type": "gemma4_assistant", "backbone_hidden_size": 5376, "use_ordered_embeddings": False,
        "text_config": dense(1024, 4, 32, 16, 8192, 262144, **GEMMA4) | {
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"], "num_global_key_value_heads": 4,
            "num_kv_shared_layers": 4,
        },
    },
    "openai/gpt-oss-20b": dense(
        2880, 24, 64, 8, 2880, 201088, model_type="gpt_oss", head_dim=64, num_local_experts=32, num_experts_per_tok=4,
        sliding_window=128, layer_types=["sliding_attention", "full_attention"] * 12, attention_bias=True,
        quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
    ),
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": {
        "model_type": "llama4", "text_config": dense(
            5120, 48, 40, 8, 8192, 202048, model_type="llama4_text", head_dim=128, num_local_experts=128, num_experts_per_tok=1,
            intermediate_size_mlp=16384, interleave_moe_layer_step=2, attention_chunk_size=8192,
        ),
    },
    "microsoft/Phi-3-mini-4k-instruct": dense(3072, 32, 32, 32, 8192, 32064, model_type="phi3", sliding_window=2047),
    "microsoft/phi-4": dense(5120, 40, 40, 10, 17920, 100352, model_type="phi3", sliding_window=None),
    "zai-org/GLM-4.5": dense(
        5120, 92, 96, 8, 12288, 151552, model_type="glm4_moe", head_dim=128, n_routed_experts=160, n_shared_experts=1,
        num_experts_per_tok=8, moe_intermediate_size=1536, first_k_dense_replace=3, attention_bias=True, use_qk_norm=True,
        num_nextn_predict_layers=1,
    ),
    "inclusionAI/Ling-flash-2.0": dense(
        4096, 32, 32, 4, 9216, 157184, model_type="bailing_moe_v2", head_dim=128, num_experts=256, num_shared_experts=1,
        num_experts_per_tok=8, moe_intermediate_size=1024, first_k_dense_replace=1, n_group=8, use_sliding_window=False,
        sliding_window=4096,
    ),
    "nvidia/Nemotron-H-8B-Base-8K": dense(
        4096, 52, 32, 8, 21504, 131072, model_type="nemotron_h", attention_head_dim=128, mamba_num_heads=128, mamba_head_dim=64,
        ssm_state_size=128, n_groups=8, conv_kernel=4, sliding_window=None,
        hybrid_override_pattern="M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    ),
    "bigcode/starcoder2-3b": dense(3072, 30, 24, 2, 12288, 49152, model_type="starcoder2", sliding_window=4096, use_bias=True),
    "EleutherAI/pythia-1b": dense(2048, 16, 8, 8, 8192, 50304, model_type="gpt_neox"),
    "openai-community/gpt2": {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257},
    "facebook/opt-1.3b": {
        "model_type": "opt", "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32, "ffn_dim": 8192, "vocab_size": 50272,
    },
    # Drafters: as on the hub, as vLLM wraps them, as speculators writes them.
    "yuhuili/EAGLE-LLaMA3.1-Instruct-8B": LLAMA_8B | {"num_hidden_layers": 1},
    "yuhuili/EAGLE-LLaMA3-Instruct-8B": {"model_type": "eagle", "model": LLAMA_8B | {"num_hidden_layers": 1}, "truncated_vocab_size": 128256},
    "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B": LLAMA_8B
    | {"num_hidden_layers": 1, "draft_vocab_size": 32000, "architectures": ["LlamaForCausalLMEagle3"]},
    "Tengyunw/qwen3_8b_eagle3": {
        "speculators_model_type": "eagle3", "transformer_layer_config": QWEN3_8B_LAYER, "draft_vocab_size": 32000,
        "eagle_aux_hidden_state_layer_ids": [2, 18, 33], "architectures": ["Eagle3Speculator"],
    },
    "FasterDecoding/medusa-vicuna-7b-v1.3": {
        "model_type": "medusa", "num_heads": 5, "num_hidden_layers": 1, "hidden_size": 4096, "vocab_size": 32000,
    },
    "ibm-ai-platform/llama3-70b-accelerator": {
        "model_type": "mlp_speculator", "n_predict": 4, "inner_dim": 8192, "emb_dim": 8192, "vocab_size": 128256, "tie_weights": True,
    },
    "z-lab/Qwen3-8B-DFlash-b16": dense(
        4096, 5, 32, 8, 12288, 151936, model_type="qwen3", head_dim=128, architectures=["DFlashDraftModel"], block_size=16,
        dflash_config={"target_layer_ids": [1, 9, 17, 25, 33], "mask_token_id": 151669},
    ),
    "Qwen/Qwen3.5-27B MTP": {
        "speculators_model_type": "mtp", "num_nextn_predict_layers": 1, "transformer_layer_config": dense(
            5120, 1, 24, 4, 17408, 248320, model_type="qwen3_5_text", head_dim=256, layer_types=["full_attention"]
        ),
    },
}  # fmt: skip


def written(folder: Path, config: object, name: str = "some-model") -> Path:
    path = folder / name / "config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("name", KNOWN)
def test_a_config_gives_the_shape_of_the_known_model(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, KNOWN[name])
    read, known = find_model(str(path)), find_model(name)
    assert read.parameter_count == known.parameter_count
    assert read.active_parameter_count == known.active_parameter_count
    assert read.layer_groups(4) == known.layer_groups(4)
    assert read.lm_head_shape(2) == known.lm_head_shape(2)
    assert read.fusion_shapes(1) == known.fusion_shapes(1)
    assert read.head_shapes(2) == known.head_shapes(2)
    assert (read.kind == "draft_head") == (known.kind == "draft_head")


@pytest.mark.parametrize("name", ["deepseek-ai/DeepSeek-V3", "zai-org/GLM-4.5", "Qwen/Qwen3.5-27B"])
def test_the_depth_of_multi_token_prediction_is_read(name: str, tmp_path: Path) -> None:
    assert (
        find_model(str(written(tmp_path, KNOWN[name]))).num_nextn_predict_layers == find_model(name).num_nextn_predict_layers == 1
    )


def test_a_directory_means_the_config_in_it(tmp_path: Path) -> None:
    path = written(tmp_path, LLAMA_8B, "my-llama")
    assert find_model(str(path.parent)) == find_model(str(path))
    assert find_model(str(path.parent)).name == "my-llama"


def test_new_names_of_keys_mean_the_same_as_old_ones(tmp_path: Path) -> None:
    old = KNOWN["Qwen/Qwen3-30B-A3B"]
    new = {key: value for key, value in old.items() if key != "num_experts"} | {"num_local_experts": 128}
    renamed = read_config(written(tmp_path, new, "same"))
    assert renamed.architecture.layer_groups(1) == find_model("Qwen3-30B-A3B").layer_groups(1)
    depth = read_config(written(tmp_path, LLAMA_8B | {"num_mtp_layers": 2}, "deep"))
    assert depth.architecture.num_nextn_predict_layers == 2


@pytest.mark.parametrize(
    ("quantization", "stored"),
    [
        (None, "bf16"), ({"quant_method": "fp8"}, "fp8"), ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "int4"), ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4"), ({"quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "w8a16"),
        ({"quant_algo": "MIXED_PRECISION"}, None), ({"quant_method": "gptq", "bits": 3, "group_size": 128}, None),
        ({"config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}}}, "nvfp4"),
        ({"config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}}}, "int4"),
        ({"config_groups": {"a": {"weights": {"num_bits": 8, "type": "float"}}, "b": {"weights": {"num_bits": 4, "type": "int"}}}}, None),
    ],
)  # fmt: skip
def test_the_stored_type_is_read_from_the_quantization(quantization: object, stored: str | None, tmp_path: Path) -> None:
    config = LLAMA_8B if quantization is None else LLAMA_8B | {"quantization_config": quantization}
    assert read_config(written(tmp_path, config)).weights == stored


def test_a_quantization_beside_the_config_counts(tmp_path: Path) -> None:
    path = written(tmp_path, LLAMA_8B)
    (path.parent / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    assert read_config(path).weights == "fp8"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LLAMA_8B | {"model_type": "gemma5"}, r"model_type: must be a family that is priced; .* \(got 'gemma5'\); did you mean gemma\d"),
        ({"architectures": ["NewForCausalLM"]}, "got 'NewForCausalLM'"),
        ({key: value for key, value in LLAMA_8B.items() if key != "vocab_size"}, r"config\.json: vocab_size: must be given"),
        ({key: value for key, value in KNOWN["Qwen/Qwen3-30B-A3B"].items() if key != "moe_intermediate_size"}, "moe_intermediate_size: must be given"),
        (KNOWN["Qwen/Qwen3-30B-A3B"] | {"mlp_only_layers": [5]}, "mlp_only_layers: must name the first layers"),
        (KNOWN["deepseek-ai/DeepSeek-V3"] | {"moe_layer_freq": 2}, "moe_layer_freq: must be 1 or a list"),
        (KNOWN["Qwen/Qwen3-8B"] | {"layer_types": ["spiral_attention"] * 36}, "layer_types: must consist of .* not spiral_attention"),
        (LLAMA_8B | {"model_type": "opt", "word_embed_proj_dim": 512}, "word_embed_proj_dim: must be the hidden_size"),
        (KNOWN["google/gemma-4-31B-it"]["text_config"] | {"hidden_size_per_layer_input": 256}, "hidden_size_per_layer_input: must be 0"),
        (LLAMA_8B | {"hidden_size": "4096"}, "hidden_size: must be a whole number"),
        (LLAMA_8B | {"layer_types": 3}, "layer_types: must be a list of names, one a layer .got 3"),
        (LLAMA_8B | {"num_hidden_layers": 10**12}, "num_hidden_layers: must be a whole number from 0 to 10000 .got 1000000000000"),
        (LLAMA_8B | {"architectures": -1}, "architectures: must be a list of names"),
        (LLAMA_8B | {"eagle_config": 2}, "eagle_config: must be a mapping"),
        (LLAMA_8B | {"quantization_config": "fp8"}, "quantization_config: must be a mapping"),
        (KNOWN["Qwen/Qwen3-Next-80B-A3B-Instruct"] | {"full_attention_interval": "x"}, "full_attention_interval: must be a whole number"),
        (KNOWN["Qwen/Qwen3-Next-80B-A3B-Instruct"] | {"full_attention_interval": float("inf")}, "full_attention_interval: must be a whole number"),
        (KNOWN["Qwen/Qwen3-30B-A3B"] | {"mlp_only_layers": [[1]]}, "mlp_only_layers: must be a list of numbers of layers"),
        ({"speculators_model_type": "peagle", "transformer_layer_config": QWEN3_8B_LAYER}, "speculators_model_type: must be a kind that is priced"),
        ({"model_type": "medusa", "medusa_num_heads": 2, "vocab_size": 32000}, "hidden_size: must be given"),
        ({"model_type": "mlp_speculator", "n_predict": 3, "vocab_size": 32000}, "emb_dim: must be given"),
        (["not", "a", "config"], "must hold a Hugging Face config"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)  # fmt: skip
def test_what_is_not_understood_is_refused_by_name(config: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=message):
        find_model(str(written(tmp_path, config)))


def test_a_key_that_is_null_means_what_the_family_has(tmp_path: Path) -> None:
    gemma = dense(2304, 26, 8, 4, 9216, 256000, model_type="gemma2", head_dim=256, sliding_window=4096)
    tied = find_model(str(written(tmp_path, gemma | {"tie_word_embeddings": None})))
    assert tied.tie_word_embeddings
    assert tied.parameter_count == pytest.approx(2.614e9, rel=0.001)  # as published


def test_a_file_that_is_no_json_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, {})
    path.write_text("{")
    with pytest.raises(SpecError, match=r"config\.json: must be JSON"):
        find_model(str(path))


def layers_of(names: str, layers: int) -> list[str]:
    return [names.format(layer) for layer in range(layers)]


MIXED: dict[str, tuple[str, dict[str, Any], dict[str, Any] | None]] = {
    # (known model, quantization_config, hf_quant_config.json beside it), as published.
    "gpt-oss": (
        "openai/gpt-oss-20b",
        {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"]}, None,
    ),
    "wildcards by layer": (
        "google/gemma-4-26B-A4B-it",
        {"quant_algo": "NVFP4", "ignore": [
            "lm_head", "model.vision_tower*", *layers_of("model.language_model.layers.{}.mlp*", 30),
            *layers_of("model.language_model.layers.{}.router*", 30), *layers_of("model.language_model.layers.{}.self_attn*", 30),
        ]}, None,
    ),
    "regular expressions": (
        "moonshotai/Kimi-K2.5",
        {"config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}},
         "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]}, None,
    ),
    "module by module": (
        "Qwen/Qwen3.5-27B", {"quant_algo": "MIXED_PRECISION"},
        {"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": {
            **{name: {"quant_algo": "FP8"} for name in layers_of("model.language_model.layers.{}.linear_attn.in_proj_qkv", 64)},
            **{name: {"quant_algo": "FP8"} for name in layers_of("model.language_model.layers.{}.linear_attn.out_proj", 64)},
            **{name: {"quant_algo": "W4A16_NVFP4"} for name in layers_of("model.language_model.layers.{}.mlp.gate_proj", 64)},
        }}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", MIXED)
def test_parts_that_a_quantizer_left_alone_are_read(form: str, tmp_path: Path) -> None:
    name, quantization, beside = MIXED[form]
    path = written(tmp_path, KNOWN[name] | {"quantization_config": quantization})
    if beside is not None:
        (path.parent / "hf_quant_config.json").write_text(json.dumps(beside))
    read, known = read_config(path), find_model(name)
    weights = read.weights or ""
    assert weights in [mixed.weights for mixed in known.mixed_weights]
    for part in ("attention", "attention_output", "mlp"):
        assert read.architecture.format_of(part, weights) == known.format_of(part, weights)  # type: ignore[arg-type]


def test_a_quantizer_that_left_nothing_alone_mixes_nothing(tmp_path: Path) -> None:
    read = read_config(written(tmp_path, KNOWN["google/gemma-4-31B-it"] | {"quantization_config": {"quant_algo": "NVFP4"}}))
    assert (read.weights, read.architecture.mixed_weights) == ("nvfp4", ())


@pytest.mark.parametrize(("left_alone", "attention"), [(0, "bf16"), (1, None)])
def test_of_as_many_layers_of_two_types_the_first_tell(left_alone: int, attention: str | None, tmp_path: Path) -> None:
    """Whatever the order of a set, which differs between processes."""
    quantization = {"quant_method": "fp8", "ignored_layers": [f"model.layers.{left_alone}.self_attn.q_proj"]}
    two = LLAMA_8B | {"num_hidden_layers": 2, "quantization_config": quantization}
    mixed = read_config(written(tmp_path, two)).architecture.mixed_weights
    assert [each.attention for each in mixed] == ([] if attention is None else [attention])


def test_an_encoder_is_told_of_where_the_config_lies_beside_the_scenario(tmp_path: Path) -> None:
    mixed = {"quant_algo": "NVFP4", "ignore": ["re:.*self_attn.*"]}
    written(tmp_path, LLAMA_8B | {"vision_config": {"depth": 2}, "quantization_config": mixed}, "seeing")
    (path,) = tmp_path.rglob("config.json")
    text = {
        "hardware": "h100_sxm", "engine": "vllm", "target": {"model": str(path.relative_to(tmp_path))},
        "workload": {
            "arrivals": {"process": "poisson", "rate_per_s": 1}, "lengths": {"prompt": 9, "output": 9}, "num_requests": 2,
        },
    }  # fmt: skip
    (tmp_path / "mine.yaml").write_text(json.dumps(text), encoding="utf-8")
    remarks = " ".join(load_scenario(tmp_path / "mine.yaml").remarks)
    assert "vision_config" in remarks
    assert "as most checkpoints have it" not in remarks  # this one's config says what it keeps in 16 bit


def test_patterns_that_are_no_patterns_match_nothing(tmp_path: Path) -> None:
    wrong = {"quant_algo": "NVFP4", "ignore": ["re:(", 3, "", "layers."]}
    assert read_config(written(tmp_path, LLAMA_8B | {"quantization_config": wrong})).architecture.mixed_weights == ()


def test_encoders_of_images_are_told_of_as_left_out(tmp_path: Path) -> None:
    """Qwen3.5's: 27 layers, 1152 wide, 0.4B parameters with their MLPs of 4304."""
    text = KNOWN["Qwen/Qwen3.5-27B"]
    tower = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304}
    seeing, blind = (
        str(written(tmp_path, config, name)) for name, config in (("a", text | {"vision_config": tower}), ("b", text))
    )
    point: dict[str, Any] = {"hardware": "h100_sxm", "engine": "vllm", "method": "mtp", "num_speculative_tokens": 3, "batch": 1}
    told, untold = (predict(**point, context_len=4000, target_model=model).warnings for model in (seeing, blind))
    note = ["an image counts as the prompt tokens it becomes; the encoder of vision_config (about 0.4B parameters) is left out of "
            "memory and time"]  # fmt: skip
    assert [warning for warning in told if warning not in untold] == note
    assert tower_note(str(written(tmp_path, text | {"audio_config": {}}, "c")))[0].startswith("a sound counts as")
    assert tower_note("Qwen/Qwen3.5-27B") == []
