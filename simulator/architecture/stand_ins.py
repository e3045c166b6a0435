"""Stand-ins: drafters built from their target where no published one is named, with the shapes that published ones have."""

from __future__ import annotations

from typing import Any

from simulator.architecture.layers import pattern
from simulator.architecture.shape import ModelArchitecture

# Median of the published EAGLE-3 heads for targets with experts, in widths of the target.
_WIDTHS_OF_DENSE_MLP = 6
_ABSENT: dict[str, Any] = {
    name: ModelArchitecture.model_fields[name].get_default()
    for name in (
        "aliases", "intermediate_sizes", "tie_word_embeddings", "attn_output_gate", "sliding_window", "attention_chunk_size",
        "layer_pattern", "num_experts", "num_experts_per_tok", "moe_intermediate_size", "moe_latent_size", "n_shared_experts",
        "shared_expert_intermediate_size", "first_k_dense_replace", "decoder_sparse_step", "n_group", "q_lora_rank",
        "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "o_lora_rank", "o_groups", "index_n_heads",
        "index_head_dim", "index_topk", "index_layers", "compress_ratios", "linear_num_key_heads", "linear_num_value_heads",
        "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim", "linear_gate_rank", "mamba_num_heads",
        "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel", "num_nextn_predict_layers", "total_params",
        "active_params", "total_params_source", "sources", "global_head_dim", "num_global_key_value_heads", "attention_k_eq_v",
        "mixed_weights",
    )
}  # fmt: skip


_NOT_OF_HEADS = ("aliases", "tie_word_embeddings", "total_params", "active_params", "sources", "mixed_weights")


def eagle_head(target: ModelArchitecture, method: str) -> ModelArchitecture:
    """An EAGLE or EAGLE-3 head built from its target: one dense layer of the target's width, the usual vocabulary.

    EAGLE-3 concatenates three target states, feeds q, k and v twice the width, and keeps its own reduced LM head (32,000
    rows, as in the published heads); EAGLE-1 fuses two vectors and shares the target's head (Li et al. 2024, 2025).
    """
    eagle3 = method == "eagle3"
    return _head(
        target, method, _dense_layers(target, 1), lm_head_source="own" if eagle3 else "target",
        fc_input_size=(3 if eagle3 else 2) * target.hidden_size,
        qkv_input_size=2 * target.hidden_size if eagle3 else None,
        draft_vocab_size=min(32000, target.vocab_size) if eagle3 else None,
    )  # fmt: skip


def mtp_head(target: ModelArchitecture) -> ModelArchitecture:
    """A multi-token-prediction module: one layer as the target's, experts included, behind a projection of embedding and state.

    Its attention is the target's over all tokens, without the linear or state-space layers of a hybrid; where layers hold one
    block, it has one of attention and one of experts or an MLP. After compressed attention it is the window alone (DeepSeek-V3,
    2024, section 2.2; configs of Qwen3.5, Nemotron-3, DeepSeek-V4).
    """
    letters = pattern(target)
    one_block = "FE" if "E" in letters else "FD"
    layer_pattern = one_block if "M" in letters else "S" if target.o_lora_rank is not None else "F"
    return _head(
        target, "mtp", {"num_hidden_layers": len(layer_pattern), "layer_pattern": layer_pattern},
        fc_input_size=2 * target.hidden_size, attention_chunk_size=None, first_k_dense_replace=0, decoder_sparse_step=1,
        intermediate_sizes=None, intermediate_size=target.intermediate_size or max(target.intermediate_sizes or (0,)),
        index_layers=None, compress_ratios=None,
    )  # fmt: skip


def medusa_heads(target: ModelArchitecture, num_heads: int) -> ModelArchitecture:
    """Medusa heads on the target's last state: each one residual block and an LM head of its own (Cai et al. 2024)."""
    layers = _dense_layers(target, 0)
    return _head(target, "medusa", layers, num_heads=num_heads, num_head_layers=1, lm_head_source="own")


def hydra_heads(target: ModelArchitecture, num_heads: int) -> ModelArchitecture:
    """Hydra++ heads: a prefix layer with an embedding of its own, then heads of four blocks (Ankner et al. 2024)."""
    fields = {"embedding_source": "own", "lm_head_source": "own", "num_heads": num_heads, "num_head_layers": 4}
    return _head(target, "hydra", _dense_layers(target, 1), **fields)


def block_drafter(target: ModelArchitecture, block_size: int) -> ModelArchitecture:
    """A DFlash drafter: five dense layers of the target's width on five fused target states, as the published ones have."""
    return _head(target, "dflash", _dense_layers(target, 5), fc_input_size=5 * target.hidden_size, block_size=block_size)


def stand_in_draft(parameters: float, target: ModelArchitecture) -> ModelArchitecture:
    """A dense decoder of about `parameters` weights with the target's vocabulary, for a draft of which only the size is known.

    Width and depth keep the proportions of published small decoders (about 90 of width per layer, gated MLP of 3.5 widths,
    tied embeddings): 2·h² + 2·h²/4 for attention and 10.5·h² for the MLP, in h/90 layers, and V·h for the vocabulary.
    """
    per_layer = 2.5 + 10.5
    hidden = 64
    while hidden * target.vocab_size + max(hidden / 90, 2) * per_layer * hidden**2 < parameters and hidden < 65536:
        hidden += 64
    heads = max(hidden // 64, 1)
    return ModelArchitecture(
        name=f"dense draft of {parameters:.3g} parameters", kind="draft", family="llama", tokenizer=target.tokenizer,
        hidden_size=hidden, num_hidden_layers=max(round(hidden / 90), 2), num_attention_heads=heads,
        num_key_value_heads=max(heads // 4, 1) if heads % 4 == 0 else heads, head_dim=64, intermediate_size=int(3.5 * hidden),
        vocab_size=target.vocab_size, tie_word_embeddings=True,
    )  # fmt: skip


def _head(target: ModelArchitecture, method: str, layers: dict[str, Any], **fields: Any) -> ModelArchitecture:
    """`target` as a draft head of it, embedding and LM head shared unless `fields` say otherwise."""
    given = {name: _ABSENT[name] for name in _NOT_OF_HEADS}
    given |= {
        "name": f"{method} head for {target.name}", "kind": "draft_head", "family": method, "base_model": target.name,
        "embedding_source": "target", "lm_head_source": "target", "total_params_source": "", "num_nextn_predict_layers": 0,
    }  # fmt: skip
    return target.model_copy(update=given | layers | fields)


def _dense_layers(target: ModelArchitecture, count: int) -> dict[str, Any]:
    """`count` layers of plain attention and a dense MLP at the target's width.

    Heads are the target's where it has grouped-query attention, else heads of 128 with 8 of keys and values.
    """
    grouped = target.kv_lora_rank is None and target.o_lora_rank is None
    heads = target.num_attention_heads if grouped else target.hidden_size // 128
    kv_heads, dim = (target.num_key_value_heads, target.head_dim) if grouped else (_at_most(8, heads), 128)
    width = target.intermediate_size or max(target.intermediate_sizes or (0,))
    mlp_type = target.mlp_type
    if target.is_moe or mlp_type == "relu2":
        width, mlp_type = _WIDTHS_OF_DENSE_MLP * target.hidden_size, "gated"
    return _ABSENT | {
        "num_hidden_layers": count, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": dim,
        "intermediate_size": width, "mlp_type": mlp_type,
    }  # fmt: skip


def _at_most(wanted: int, heads: int) -> int:
    """The largest number of KV heads up to `wanted` that divides `heads`."""
    return max(count for count in range(1, wanted + 1) if heads % count == 0)
