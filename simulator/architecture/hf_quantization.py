"""How a Hugging Face checkpoint stores its weights: their type, and the parts that are kept in another."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from simulator.architecture.mixed_weights import MixedWeights

Config = Mapping[str, Any]

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_ALGORITHMS = {
    "FP8": "fp8", "MXFP8": "fp8", "NVFP4": "nvfp4", "W4A16_NVFP4": "nvfp4", "W4A16_AWQ": "int4", "W4A16": "int4", "W8A16": "int8",
}  # fmt: skip
_METHODS = {"fp8": "fp8", "fbgemm_fp8": "fp8", "mxfp4": "mxfp4", "awq": "int4", "gptq": "int4", "auto-round": "int4"}
_TYPE_KEYS = ("quant_method", "quant_algo", "fmt", "bits")
# Modules of each part, below the number of a layer, as families name them.
_EXPERTS = ("mlp.experts.0.down_proj", "mlp.experts", "ffn.experts", "block_sparse_moe.experts.0.w2", "mixer.experts.0.down_proj")
_MODULES: dict[str, tuple[str, ...]] = {
    "attention": (
        "self_attn.q_proj", "self_attn.q_a_proj", "self_attn.q_b_proj", "linear_attn.in_proj_qkv", "linear_attn.in_proj_qkvz",
        "mixer.q_proj", "mixer.in_proj", "attn.q_proj",
    ),
    "attention_output": ("self_attn.o_proj", "linear_attn.out_proj", "mixer.o_proj", "mixer.out_proj", "attn.o_proj"),
    "mlp": (
        "mlp.gate_proj", "mlp.gate_up_proj", "mlp.up_proj", "mlp.shared_expert.gate_proj", "mlp.shared_experts.gate_proj",
        "mixer.shared_experts.up_proj", "block_sparse_moe.shared_experts.gate_proj", "ffn.shared_experts.gate_proj",
    ),
}  # fmt: skip
_IGNORED = ("exclude_modules", "ignore", "modules_to_not_convert", "ignored_layers")
_IN_LAYER = re.compile(r"^.*?layers\.(\d+|\*)\.?(.*)$")
# As many layers, spread evenly, tell what most of them are like.
_LAYERS_LOOKED_AT = 9


@dataclass(frozen=True)
class StoredType:
    """weights: their type, None where it is unclear; mixed: parts kept in another. unread: what the config says of the type that
    is not understood, in its own words; "" where all is."""

    weights: str | None
    mixed: tuple[MixedWeights, ...] = ()
    unread: str = ""


def stored_type(config: Config, text: Config, beside: Config | None) -> StoredType:
    """By `quantization_config`, the hf_quant_config.json beside it, or the dtype."""
    quantization = config.get("quantization_config") or text.get("quantization_config") or config.get("quantization")
    more = (beside or {}).get("quantization")
    if isinstance(more, dict) and (quantization is None or more.get("quantized_layers")):
        quantization = more
    if not isinstance(quantization, dict):
        dtype = _first_text(text, config, "dtype") or _first_text(text, config, "torch_dtype") or "auto"
        weights = _DTYPES.get(dtype.removeprefix("torch."))
        return StoredType(weights, unread="" if weights or dtype == "auto" else f"dtype {dtype}")
    layers = text.get("num_hidden_layers")
    types = _types(quantization, layers if isinstance(layers, int) else 0)
    said = _quantized(quantization)
    weights = said or types.get("experts") or types.get("mlp")
    # That some modules are left alone says nothing of the others.
    if weights is None or (said is None and weights == "bf16"):
        return StoredType(None, unread=_words(quantization))
    mixed = {part: types[part] for part in ("attention", "attention_output", "mlp") if types.get(part, weights) != weights}
    if "attention" in mixed:
        mixed["attention_output"] = types.get("attention_output", weights)
    if "head" in types:
        mixed["head"] = types["head"]
    return StoredType(weights, (MixedWeights.model_validate({"weights": weights, **mixed}),) if mixed else ())


def _words(quantization: Config) -> str:
    """The keys that would name the type, as they stand there."""
    told = [f"{key} {quantization[key]}" for key in _TYPE_KEYS if isinstance(quantization.get(key), (str, int))]
    groups = quantization.get("config_groups")
    if isinstance(groups, dict):
        told += [
            " ".join(str(each[key]) for key in ("type", "num_bits") if key in each) for each in map(_weights_of, groups.values())
        ]
    return ", ".join(dict.fromkeys(text[:60] for text in told if text)) or "a quantization without a method"


def _first_text(text: Config, config: Config, key: str) -> str | None:
    value = text.get(key) or config.get(key)
    return value if isinstance(value, str) else None


def _quantized(quantization: Config) -> str | None:
    algorithm = quantization.get("quant_algo")
    if algorithm is not None:
        return _ALGORITHMS.get(str(algorithm).upper())
    groups = quantization.get("config_groups")
    if isinstance(groups, dict) and groups:
        found = {_group_type(_weights_of(group)) for group in groups.values()}
        return found.pop() if len(found) == 1 else None
    if quantization.get("load_in_4bit"):
        return "int4"
    if quantization.get("load_in_8bit"):
        return "w8a16"
    bits = quantization.get("bits")
    if quantization.get("group_size") and quantization.get("quant_method") is None:  # MLX writes no method
        return {4: "mlx4", 6: "mlx6", 8: "mlx8"}.get(bits) if isinstance(bits, int) else None
    if bits == 8:
        return "int8"
    if bits not in (None, 4) and _METHODS.get(str(quantization.get("quant_method"))) == "int4":
        return None
    return _METHODS.get(str(quantization.get("quant_method")))


def _weights_of(group: object) -> Config:
    """What a compressed-tensors group says of its weights; nothing where it is not written as one."""
    weights = group.get("weights") if isinstance(group, dict) else None
    return weights if isinstance(weights, dict) else {}


def _group_type(weights: Config) -> str | None:
    """Of a compressed-tensors group: 4-bit floats come with a scale per 16 (NVFP4) or 32 (MXFP4) numbers."""
    bits, kind = weights.get("num_bits"), weights.get("type")
    if kind == "float" and bits == 4:
        size = weights.get("group_size")
        return {16: "nvfp4", 32: "mxfp4"}.get(size) if isinstance(size, int) else None
    return {"float 8": "fp8", "int 8": "int8", "int 4": "int4"}.get(f"{kind} {bits}")


def _types(quantization: Config, layers: int) -> dict[str, str]:
    """Type of each part of which the config says something: of the modules it leaves alone, and of those it names one by one."""
    kept = [names for key in _IGNORED if isinstance(names := quantization.get(key), list)]
    ignored = [name for names in kept for name in names if isinstance(name, str)]
    named = quantization.get("quantized_layers")
    algorithms = {_in_layer(str(name)): _algorithm(entry) for name, entry in named.items()} if isinstance(named, dict) else {}
    looked_at = sorted({layers * index // _LAYERS_LOOKED_AT for index in range(_LAYERS_LOOKED_AT)} if layers else ())
    found: dict[str, str] = {}
    for part, modules in {**_MODULES, "experts": _EXPERTS}.items():
        types = [_said(modules, layer, ignored, algorithms) for layer in looked_at]
        most = max(types, key=types.count, default=None)  # of as many, the first layers'
        # Checkpoints that leave a few layers alone keep the rest of the part quantized.
        if most is not None:
            found[part] = most
    head = algorithms.get((None, "lm_head"))
    if head is not None:
        found["head"] = head
    return found


def _in_layer(name: str) -> tuple[str | None, str]:
    """(number of the layer, module below it) of a module's full name; of one outside layers (None, its last part)."""
    located = _IN_LAYER.match(name)
    return (None, name.rsplit(".", 1)[-1]) if located is None else (located[1], located[2])


def _algorithm(entry: object) -> str | None:
    return _ALGORITHMS.get(str(entry.get("quant_algo")).upper()) if isinstance(entry, dict) else None


def _said(
    modules: tuple[str, ...], layer: int, ignored: list[str], algorithms: Mapping[tuple[str | None, str], str | None]
) -> str | None:
    """What the config says of a part of one layer, None for nothing."""
    if any(_means(pattern, module, layer) for pattern in ignored for module in modules):
        return "bf16"
    return next((kind for module in modules if (kind := algorithms.get((str(layer), module))) is not None), None)


def _means(pattern: str, module: str, layer: int) -> bool:
    """Whether a pattern of names, by wildcards or (``re:``) a regular expression, covers this module."""
    full = f"model.layers.{layer}.{module}"
    if pattern.startswith("re:"):
        try:
            return re.fullmatch(pattern[3:], full) is not None
        except re.error:
            return False
    located = _IN_LAYER.match(pattern)
    if located is None:
        return fnmatchcase(full, pattern)
    number, tail = located[1], located[2]
    if number not in ("*", str(layer)):
        return False
    return fnmatchcase(module, tail) or (bool(tail) and module.startswith(f"{tail}."))
