"""Which kind of value stands under a key of a Hugging Face config, for the keys that are read before a model is checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Config = Mapping[str, Any]
Fault = tuple[str, str]  # key, what it must be

# More layers than any decoder has: a number beyond is a slip, and would be spelt out one letter a layer.
MOST_LAYERS = 10_000
_LAYERS = ("num_hidden_layers", "n_layer")
_INTERVALS = ("sliding_window_pattern", "full_attention_interval", "no_rope_layer_interval")
_COUNTS = ("hidden_size", "n_embd", "num_attention_heads", "n_head", "max_window_layers")
_LISTS: dict[str, tuple[type, str]] = {
    "architectures": (str, "names"), "layer_types": (str, "names, one a layer"), "layers_block_type": (str, "names, one a layer"),
    "indexer_types": (str, "names, one a layer"), "mlp_only_layers": (int, "numbers of layers"),
    "no_rope_layers": (int, "numbers, one a layer"), "compress_ratios": (int, "numbers, one a layer"),
    "target_layer_ids": (int, "numbers of layers"), "aux_hidden_state_layer_ids": (int, "numbers of layers"),
    "eagle_aux_hidden_state_layer_ids": (int, "numbers of layers"), "block_configs": (dict, "mappings, one a layer"),
}  # fmt: skip
_MAPPINGS = (
    "text_config", "llm_config", "thinker_config", "transformer_layer_config", "eagle_config", "dflash_config",
    "linear_attn_config", "sparse_attention_config", "quantization_config",
)  # fmt: skip


def wrong_kinds(config: Config) -> Iterator[Fault]:
    """Every key whose value is of a kind that cannot be meant; null counts as not given.

    >>> list(wrong_kinds({"num_hidden_layers": "32", "layer_types": None}))
    [('num_hidden_layers', 'must be a whole number from 0 to 10000')]
    """
    for keys, least, most in ((_LAYERS, 0, MOST_LAYERS), (_INTERVALS, 1, MOST_LAYERS), (_COUNTS, 0, None)):
        for key in keys:
            if (value := config.get(key)) is not None and not _is_whole(value, least, most):
                yield key, "must be a whole number" + ("" if most is None else f" from {least} to {most}")
    for key, (kind, of) in _LISTS.items():
        value = config.get(key)
        if value is not None and not (isinstance(value, list | tuple) and all(isinstance(item, kind) for item in value)):
            yield key, f"must be a list of {of}"
    for key in _MAPPINGS:
        if config.get(key) is not None and not isinstance(config[key], Mapping):
            yield key, "must be a mapping"
    tied = config.get("tie_word_embeddings")
    if tied is not None and not isinstance(tied, bool):
        yield "tie_word_embeddings", "must be true or false"


def _is_whole(value: Any, least: int, most: int | None) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value and (most is None or value <= most)
