"""Draft heads in Hugging Face configs: EAGLE and EAGLE-3, Medusa, MLP speculators, block drafters, the speculators format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Config = Mapping[str, Any]
Fields = dict[str, Any]

SPECULATORS = ("eagle", "eagle3", "mtp", "dflash")
# Beside the decoder layers of a drafter that reads its target's cache (Gemma4AssistantConfig).
CACHE_READER_KEYS = ("backbone_hidden_size", "use_ordered_embeddings", "num_centroids", "centroid_intermediate_top_k")


def drafter_method(config: Config) -> str | None:
    """The method a config's model drafts by, or None for a whole model.

    A Llama with a single layer is an EAGLE head: their published configs say no more.
    """
    kind = config.get("speculators_model_type")
    if kind is not None:
        return str(kind)
    if config.get("backbone_hidden_size"):
        return "mtp"
    if config.get("model_type") in ("medusa", "mlp_speculator"):
        return str(config["model_type"])
    names = " ".join(config.get("architectures") or ()).casefold()
    if "dflash" in names or "dflash_config" in config:
        return "dflash"
    if "eagle3" in names or config.get("draft_vocab_size") or "eagle_config" in config:
        return "eagle3"
    one_layer = config.get("model_type", "llama") == "llama" and config.get("num_hidden_layers") == 1
    return "eagle" if config.get("model_type") == "eagle" or "eagle" in names or one_layer else None


def inner_config(config: Config) -> Config:
    """With the keys of the decoder layers, which vLLM's EAGLE wrapper has under `model`, speculators elsewhere."""
    inner = config.get("transformer_layer_config") or config.get("model")
    return {**config, **inner} if isinstance(inner, dict) else config


def drafter_fields(config: Config, method: str, layers: Fields) -> Fields:
    """`layers`, the fields of the decoder layers, with those of a draft head."""
    fields = {**layers, "kind": "draft_head", "family": method, "embedding_source": "target", "tie_word_embeddings": False}
    fields.pop("num_nextn_predict_layers", None)
    hidden = fields.get("hidden_size")
    if method == "eagle3":
        fields |= _eagle3(config, hidden)
    elif config.get("backbone_hidden_size"):
        fields |= _cache_reader(config)
    elif method in ("eagle", "mtp"):
        vocabulary = config.get("truncated_vocab_size")
        if vocabulary and vocabulary != fields.get("vocab_size"):
            fields["draft_vocab_size"] = vocabulary
        else:
            fields["lm_head_source"] = "target"
        fields["fc_input_size"] = 2 * hidden if isinstance(hidden, int) else None
    elif method == "dflash":
        fields |= _dflash(config, hidden)
    return fields


def medusa_fields(config: Config) -> Fields:
    """vLLM's wrapper says num_heads and num_hidden_layers, the original medusa_num_heads and medusa_num_layers."""
    return {
        "kind": "draft_head", "family": "medusa", "embedding_source": "target", "num_hidden_layers": 0,
        "hidden_size": config.get("hidden_size"), "vocab_size": config.get("vocab_size"),
        "draft_vocab_size": config.get("truncated_vocab_size"),
        "num_heads": config.get("num_heads", config.get("medusa_num_heads")),
        "num_head_layers": config.get("num_hidden_layers", config.get("medusa_num_layers", 1)),
    }  # fmt: skip


def mlp_speculator_fields(config: Config) -> Fields:
    """emb_dim is the width of the target; an inner_dim of 0 means the same."""
    width = config.get("emb_dim")
    return {
        "kind": "draft_head", "family": "mlp_speculator", "embedding_source": "target", "num_hidden_layers": 0,
        "hidden_size": width, "vocab_size": config.get("vocab_size"), "n_predict": config.get("n_predict"),
        "inner_dim": config.get("inner_dim") or width, "tie_weights": config.get("tie_weights", False),
    }  # fmt: skip


def _eagle3(config: Config, hidden: Any) -> Fields:
    """Three target states unless the config names others; a head of another width than its target has its own embedding."""
    target = config.get("target_hidden_size") or hidden
    inner = config.get("eagle_config") or {}
    states = inner.get("eagle_aux_hidden_state_layer_ids") or config.get("eagle_aux_hidden_state_layer_ids") or (0, 0, 0)
    if not isinstance(hidden, int) or not isinstance(target, int):
        return {}
    own = {"embedding_source": "own"} if target != hidden else {}
    return {
        "fc_input_size": len(states) * target, "qkv_input_size": 2 * hidden,
        "draft_vocab_size": config.get("draft_vocab_size"), **own,
    }  # fmt: skip


def _cache_reader(config: Config) -> Fields:
    """Reads [embedding, state] of the target, hands its state on in the target's width, and has an LM head of its own.

    With ordered embeddings it scores centroids, then the tokens of the best of them.
    """
    width, vocabulary = config["backbone_hidden_size"], config.get("vocab_size")
    fields: Fields = {"kv_source": "target", "fc_input_size": 2 * width, "fc_output_size": width, "lm_head_source": "own"}
    if config.get("use_ordered_embeddings") and isinstance(vocabulary, int):
        centroids, best = config.get("num_centroids", 2048), config.get("centroid_intermediate_top_k", 32)
        fields["draft_vocab_size"] = centroids + best * vocabulary // centroids
    return fields


def _dflash(config: Config, hidden: Any) -> Fields:
    inner = config.get("dflash_config") or config
    states = inner.get("target_layer_ids") or config.get("aux_hidden_state_layer_ids")
    target = config.get("target_hidden_size") or hidden
    fused = len(states) * target if states and isinstance(target, int) else None
    own = {"draft_vocab_size": config["draft_vocab_size"]} if config.get("draft_vocab_size") else {"lm_head_source": "target"}
    return {"fc_input_size": fused, "block_size": config.get("block_size", inner.get("block_size")), **own}
