"""Fields of a decoder from the keys of a Hugging Face config, whose names differ by family and by generation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simulator.architecture.hf_layers import expert_layers, layer_pattern

Config = Mapping[str, Any]
Fields = dict[str, Any]


@dataclass(frozen=True)
class Family:
    """How configs of one `model_type` are read: our name, fixed fields, and the keys that transformers fills in.

    experts_in_intermediate_size: the width of an expert may stand under `intermediate_size`.
    """

    name: str
    fixed: Fields = field(default_factory=dict)
    defaults: Fields = field(default_factory=dict)
    experts_in_intermediate_size: bool = False


_PER_HEAD = {"qk_norm": "per_head"}
_TIED = {"tie_word_embeddings": True}
_GEMMA3 = {**_TIED, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208}
_GATED = {**_PER_HEAD, "attn_output_gate": True}
_FAMILIES = (
    Family("llama"), Family("mistral"), Family("qwen2", {"attention_bias": "qkv"}), Family("qwen3", _PER_HEAD),
    Family("qwen3_moe", _PER_HEAD), Family("qwen3_next", _GATED), Family("qwen3_5", _GATED),
    Family("qwen3_5_moe", _GATED), Family("mixtral", experts_in_intermediate_size=True),
    Family("deepseek_v2"), Family("deepseek_v3"), Family("deepseek_v32"), Family("deepseek_v4"), Family("kimi_k2"),
    Family("kimi_linear"), Family("gemma2", {}, _TIED), Family("gemma3", _PER_HEAD, _GEMMA3),
    Family("gemma4", _PER_HEAD, _TIED),
    Family("gpt_oss", experts_in_intermediate_size=True),
    Family("llama4", {"n_shared_experts": 1}, experts_in_intermediate_size=True),
    Family("phi", {"mlp_type": "gelu", "attention_bias": "all"}), Family("phi3"), Family("glm4_moe"), Family("glm4_moe_lite"),
    Family("glm_moe_dsa"), Family("minimax_m2", experts_in_intermediate_size=True),
    Family("minimax_m3", experts_in_intermediate_size=True),
    Family("bailing_moe_v2", _PER_HEAD), Family("hy_v3", _PER_HEAD), Family("nemotron_h", {"mlp_type": "relu2"}),
    Family("nemotron_nas"), Family("starcoder2", {"mlp_type": "gelu"}, {**_TIED, "attention_bias": True}),
    Family("gpt_neox", {"mlp_type": "gelu"}, {"attention_bias": True}),
    Family("gpt2", {"mlp_type": "gelu"}, {**_TIED, "attention_bias": True}),
    Family("opt", {"mlp_type": "relu"}, {**_TIED, "attention_bias": True}),
)  # fmt: skip
FAMILIES = {family.name: family for family in _FAMILIES}
# Language models inside multimodal ones, and other spellings.
_SAME = {
    "qwen3_vl": "qwen3", "qwen3_vl_moe": "qwen3_moe", "qwen2_5_vl": "qwen2", "qwen2_vl": "qwen2", "nemotron-nas": "nemotron_nas",
    "deepseek_ref": "deepseek_v4", "kimi_k25": "kimi_k2", "minimax_m3_vl": "minimax_m3", "bailing_moe": "bailing_moe_v2",
    "mistral3": "mistral", "mimo": "qwen2", "gemma4_unified": "gemma4",
}  # fmt: skip
# Field → keys it may stand under, the first one that is given counts.
_KEYS: dict[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer"),
    "num_attention_heads": ("num_attention_heads", "n_head"),
    "num_key_value_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim", "attention_head_dim"),
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_dim"),
    "vocab_size": ("vocab_size",),
    "sliding_window": ("sliding_window",),
    "attention_chunk_size": ("attention_chunk_size",),
    "max_position_embeddings": ("max_position_embeddings", "n_positions"),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts"),
    "num_experts_per_tok": ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "top_k_experts"),
    "moe_intermediate_size": ("moe_intermediate_size",),
    "moe_latent_size": ("moe_latent_size", "routed_expert_hidden_size"),
    "n_shared_experts": ("n_shared_experts", "num_shared_experts"),
    "shared_expert_intermediate_size": (
        "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size",
    ),
    "first_k_dense_replace": ("first_k_dense_replace",),
    "decoder_sparse_step": ("decoder_sparse_step", "interleave_moe_layer_step"),
    "n_group": ("n_group", "num_expert_group"),
    "num_nextn_predict_layers": ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers", "num_mtp_modules"),
}  # fmt: skip
_SAME_NAME = (
    "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "o_lora_rank", "o_groups",
    "index_n_heads", "index_head_dim", "index_topk", "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
    "linear_value_head_dim", "linear_conv_kernel_dim", "mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups",
    "conv_kernel",
)  # fmt: skip


def family_of(config: Config) -> Family | None:
    """The family of a config by its `model_type`, or None where it is not known."""
    name = str(config.get("model_type", "")).removesuffix("_text")
    return FAMILIES.get(_SAME.get(name, name))


def decoder_fields(config: Config, family: Family) -> tuple[Fields, list[tuple[str, str]]]:
    """(fields of `ModelArchitecture`, faults as (key, what it must be)). Fields that are not given stay out."""
    config = {**family.defaults, **{key: value for key, value in config.items() if value is not None}}
    keys = {**_KEYS, **{name: (name,) for name in _SAME_NAME}}
    found = {name: value for name, names in keys.items() if (value := _first(config, names)) is not None}
    fields = {"family": family.name, **found, **_attention(config, family), **family.fixed}
    fields["tie_word_embeddings"] = config.get("tie_word_embeddings", False)
    if family.name in _NESTED:
        fields |= _NESTED[family.name](config)
    _widths(fields, config, family)
    faults = []
    for read in (layer_pattern, expert_layers):
        more, fault = read(config, family.name, fields)
        fields |= more
        faults += [fault] if fault else []
    if config.get("hidden_size_per_layer_input"):
        faults.append(("hidden_size_per_layer_input", "must be 0: embeddings of every layer's own are not priced"))
    if config.get("word_embed_proj_dim") not in (None, fields.get("hidden_size")):
        faults.append(("word_embed_proj_dim", "must be the hidden_size: embeddings of a width of their own are not priced"))
    _drop_unused(fields)
    return fields, faults


def _first(config: Config, names: tuple[str, ...]) -> Any:
    return next((config[name] for name in names if config.get(name) is not None), None)


def _attention(config: Config, family: Family) -> Fields:
    """Biases and norms of queries and keys, where the config says."""
    fields: Fields = {}
    bias = config.get("attention_bias", config.get("use_bias", False))
    if bias:
        fields["attention_bias"] = "qkv" if family.name in ("glm4_moe", "qwen3_5", "qwen3_next") else "all"
    if config.get("use_qk_norm") and family.name in ("glm4_moe", "minimax_m2", "minimax_m3"):
        fields["qk_norm"] = "full" if config.get("qk_norm_type") == "per_layer" else "per_head"
    return fields


def _widths(fields: Fields, config: Config, family: Family) -> None:
    """Widths that the config leaves to be worked out."""
    hidden, heads = fields.get("hidden_size"), fields.get("num_attention_heads")
    if family.experts_in_intermediate_size and "num_experts" in fields and "moe_intermediate_size" not in fields:
        fields["moe_intermediate_size"] = fields.pop("intermediate_size", None)
        if config.get("intermediate_size_mlp"):
            fields["intermediate_size"] = config["intermediate_size_mlp"]
    if config.get("dense_intermediate_size"):
        fields["intermediate_size"] = config["dense_intermediate_size"]
    if family.name == "gpt2" and hidden:
        fields.setdefault("intermediate_size", 4 * hidden)
    if "kv_lora_rank" in fields:
        fields.pop("num_key_value_heads", None)
        fields.pop("head_dim", None)
    elif isinstance(heads, int) and heads > 0:
        fields.setdefault("num_key_value_heads", heads)
        if isinstance(hidden, int):
            fields.setdefault("head_dim", hidden // heads)


def _drop_unused(fields: Fields) -> None:
    """Zeros and keys of parts that the model does not have."""
    if not fields.get("num_experts"):
        for name in ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "moe_latent_size", "n_shared_experts",
                     "shared_expert_intermediate_size", "first_k_dense_replace", "decoder_sparse_step", "n_group"):  # fmt: skip
            fields.pop(name, None)
    elif not fields.get("shared_expert_intermediate_size"):
        fields.pop("shared_expert_intermediate_size", None)
    for name in ("sliding_window", "q_lora_rank"):
        if fields.get(name) == 0:
            del fields[name]


def _kimi_linear(config: Config) -> Fields:
    """Kimi delta attention keeps its sizes in `linear_attn_config`; its decay gate has the rank of a head."""
    inner = config.get("linear_attn_config") or {}
    heads, dim = inner.get("num_heads"), inner.get("head_dim")
    return {
        "linear_num_key_heads": heads, "linear_num_value_heads": heads, "linear_key_head_dim": dim, "linear_value_head_dim": dim,
        "linear_conv_kernel_dim": inner.get("short_conv_kernel_size"), "linear_gate_rank": dim,
        "attn_output_gate": bool(config.get("mla_use_output_gate")),
    }  # fmt: skip


def _minimax_m3(config: Config) -> Fields:
    """Block-sparse attention: the best blocks and the local ones are read, picked by a few index heads."""
    inner = config.get("sparse_attention_config") or {}
    if not inner.get("use_sparse_attention"):
        return {}
    blocks = inner["sparse_topk_blocks"] + inner.get("sparse_local_block", 0) + inner.get("sparse_init_block", 0)
    return {
        "index_topk": blocks * inner["sparse_block_size"], "index_n_heads": inner["sparse_num_index_heads"],
        "index_head_dim": inner["sparse_index_dim"],
    }  # fmt: skip


def _nemotron_nas(config: Config) -> Fields:
    """Widths by layer from `block_configs`: a multiple of the hidden size by two thirds, rounded up to 256."""
    blocks = config.get("block_configs") or ()
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    groups = {block["attention"].get("n_heads_in_group") for block in blocks} - {None}
    widths = tuple(-(-int(2 * block["ffn"]["ffn_mult"] * (hidden or 0) / 3) // 256) * 256 for block in blocks)
    fields: Fields = {"intermediate_sizes": widths}
    if heads and len(groups) == 1:
        fields["num_key_value_heads"] = heads // groups.pop()
    return fields


def _gemma4(config: Config) -> Fields:
    """Full layers have heads of their own, and values that are their keys; a dense MLP stands beside the experts."""
    fields: Fields = {
        "global_head_dim": config.get("global_head_dim"), "num_global_key_value_heads": config.get("num_global_key_value_heads"),
        "attention_k_eq_v": bool(config.get("attention_k_eq_v")),
    }  # fmt: skip
    if config.get("num_experts"):
        fields |= {"shared_expert_intermediate_size": config.get("intermediate_size"), "intermediate_size": 0}
    return fields


def _deepseek_v4(config: Config) -> Fields:
    """The list of ratios goes on with those of the multi-token-prediction layers."""
    return {"compress_ratios": tuple(config.get("compress_ratios") or ())[: config.get("num_hidden_layers")] or None}


def _glm_moe_dsa(config: Config) -> Fields:
    """Layers of type `shared` follow the indexer of an earlier one."""
    return {"index_layers": list(config.get("indexer_types") or ()).count("full") or None}


_NESTED = {
    "deepseek_v4": _deepseek_v4, "gemma4": _gemma4, "glm_moe_dsa": _glm_moe_dsa, "kimi_linear": _kimi_linear,
    "minimax_m3": _minimax_m3, "nemotron_nas": _nemotron_nas,
}  # fmt: skip
