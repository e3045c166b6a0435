"""What each layer of a Hugging Face config is: one letter a layer, and which layers have experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Config = Mapping[str, Any]
Fields = dict[str, Any]
Fault = tuple[str, str] | None

_LAYER_TYPES = {
    "full_attention": "F", "sliding_attention": "S", "chunked_attention": "S", "linear_attention": "L",
    "deepseek_sparse_attention": "F",
    "mamba": "M", "attention": "F", "moe": "E", "mlp": "D",
}  # fmt: skip
_HYBRID_LETTERS = {"M": "M", "*": "F", "E": "E", "-": "D"}


def layer_pattern(config: Config, family: str, fields: Fields) -> tuple[Fields, Fault]:
    """`layer_pattern` and what goes with it; a sliding window that the config switches off is dropped."""
    layers = fields.get("num_hidden_layers")
    if family == "nemotron_h":
        return _nemotron_h(config)
    types = config.get("layer_types")
    if types is not None:
        unknown = sorted(set(types) - set(_LAYER_TYPES))
        if unknown:
            return {}, ("layer_types", f"must consist of {', '.join(_LAYER_TYPES)}, not {unknown[0]}")
        return _windowed("".join(_LAYER_TYPES[name] for name in types[:layers]), fields), None
    if not isinstance(layers, int):
        return {}, None
    return _windowed(_BY_FAMILY.get(family, _full)(config, layers), fields), None


def expert_layers(config: Config, _family: str, fields: Fields) -> tuple[Fields, Fault]:
    """`first_k_dense_replace` where the config lists dense layers one by one."""
    layers = fields.get("num_hidden_layers")
    if not fields.get("num_experts") or not isinstance(layers, int):
        return {}, None
    dense = set(config.get("mlp_only_layers") or ())
    key = "mlp_only_layers"
    frequency = config.get("moe_layer_freq")
    if isinstance(frequency, (list, tuple)):
        key, dense = "moe_layer_freq", {index for index, routed in enumerate(frequency) if not routed}
    elif frequency not in (None, 1):
        return {}, ("moe_layer_freq", "must be 1 or a list with one number a layer")
    if not dense:
        return {}, None
    first = max(dense) + 1
    if dense != set(range(first)):
        return {}, (key, "must name the first layers as the dense ones")
    return {"first_k_dense_replace": first}, None


def _windowed(letters: str, fields: Fields) -> Fields:
    """The pattern, left out where all layers are alike; without a sliding layer there is no window."""
    if not {"S", "C"} & set(letters):
        fields.pop("sliding_window", None)
        fields.pop("attention_chunk_size", None)
    if set(letters) == {"F"} or (set(letters) == {"S"} and fields.get("sliding_window")):
        return {}
    return {"layer_pattern": letters}


def _nemotron_h(config: Config) -> tuple[Fields, Fault]:
    pattern, types = config.get("hybrid_override_pattern"), config.get("layers_block_type")
    if pattern is None and types is None:
        return {}, ("hybrid_override_pattern", "must be given")
    if types is not None:
        letters = "".join(_LAYER_TYPES.get(name, "?") for name in types)
    else:
        letters = "".join(_HYBRID_LETTERS.get(letter, "?") for letter in str(pattern))
    return {"layer_pattern": letters, "num_hidden_layers": len(letters)}, None


def _full(_config: Config, layers: int) -> str:
    return "F" * layers


def _qwen(config: Config, layers: int) -> str:
    """Layers from max_window_layers on slide, where use_sliding_window is on."""
    if not config.get("use_sliding_window"):
        return "F" * layers
    first = min(int(config.get("max_window_layers", layers)), layers)
    return "F" * first + "S" * (layers - first)


def _every(interval_key: str, interval: int, usual: str) -> Callable[[Config, int], str]:
    """Layers whose number, from 1, is a multiple of an interval have full attention."""

    def letters(config: Config, layers: int) -> str:
        step = int(config.get(interval_key) or interval)
        return "".join("F" if (index + 1) % step == 0 else usual for index in range(layers))

    return letters


def _window_everywhere(config: Config, layers: int) -> str:
    letter = "S" if config.get("sliding_window") else "F"
    return letter * layers


def _llama4(config: Config, layers: int) -> str:
    """Layers with rotary embedding read chunks, those without read all."""
    rotary = config.get("no_rope_layers")
    if rotary:
        return "".join("S" if flag else "F" for flag in rotary)
    return _every("no_rope_layer_interval", 4, "S")(config, layers)


def _kimi_linear(config: Config, layers: int) -> str:
    full = set((config.get("linear_attn_config") or {}).get("full_attn_layers") or ())
    return "".join("F" if index + 1 in full else "L" for index in range(layers))


def _deepseek_v4(config: Config, layers: int) -> str:
    return "".join("C" if ratio else "S" for ratio in (config.get("compress_ratios") or ())[:layers])


def _minimax_m3(config: Config, layers: int) -> str:
    sparse = (config.get("sparse_attention_config") or {}).get("sparse_attention_freq") or (0,) * layers
    return "".join("C" if flag else "F" for flag in sparse)


def _nemotron_nas(config: Config, _layers: int) -> str:
    return "".join("N" if block["attention"].get("no_op") else "F" for block in config.get("block_configs") or ())


_BY_FAMILY: dict[str, Callable[[Config, int], str]] = {
    "qwen2": _qwen, "qwen3": _qwen, "qwen3_moe": _qwen, "bailing_moe_v2": _qwen,
    "qwen3_next": _every("full_attention_interval", 4, "L"), "qwen3_5": _every("full_attention_interval", 4, "L"),
    "qwen3_5_moe": _every("full_attention_interval", 4, "L"), "mistral": _window_everywhere, "mixtral": _window_everywhere,
    "phi3": _window_everywhere, "starcoder2": _window_everywhere, "gemma2": _every("sliding_window_pattern", 2, "S"),
    "gemma3": _every("sliding_window_pattern", 6, "S"), "gpt_oss": _every("sliding_window_pattern", 2, "S"), "llama4": _llama4,
    "kimi_linear": _kimi_linear, "deepseek_v4": _deepseek_v4, "minimax_m3": _minimax_m3, "nemotron_nas": _nemotron_nas,
}  # fmt: skip
