"""Number formats: bits a stored weight takes, scales included, and the types in which a device may compute with it.

Sizes follow from each format's block layout: values, scales and zero points per block. Mixtures (``_K_M``) are the averages
that llama.cpp's quantize prints for Llama-3.1-8B.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from pydantic import BeforeValidator

from simulator.spec import Problem, SpecError, nearest


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """One way to store weights.

    bits: per weight of a layer. head_bits: per weight of embeddings and LM head, which most engines keep in 16 bit.
    computes_in: types of a device's peaks that take it as it is, best first; a device with none of them expands it to 16 bit.
    """

    name: str
    bits: float
    head_bits: float = 16.0
    computes_in: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()

    @property
    def bytes(self) -> float:
        return self.bits / 8

    @property
    def head_bytes(self) -> float:
        return self.head_bits / 8

    @property
    def quantized(self) -> bool:
        return self.bits < 16


_ALL = (
    NumberFormat("fp32", 32, 32, ("fp32",), ("float32",)),
    NumberFormat("bf16", 16, 16, ("bf16", "fp16"), ("bfloat16",)),
    NumberFormat("fp16", 16, 16, ("fp16", "bf16"), ("float16", "half", "f16")),
    NumberFormat("fp8", 8, 16, ("fp8",), ("w8a8fp8", "fp8e4m3", "fp8e5m2", "float8", "fbgemmfp8")),
    NumberFormat("int8", 8, 16, ("int8",), ("w8a8", "w8a8int8")),
    # Weight-only: expanded to 16 bit in the kernel.
    NumberFormat("w8a16", 8.125, 16, (), ("8bit", "w8", "bnb8bit")),
    # 4-bit values, a 16-bit scale and a 4-bit zero point per 128.
    NumberFormat(
        "int4", 4.16, 16, (),
        ("4bit", "awq", "gptq", "w4a16",
         "awq4bit", "gptq4bit", "awqint4", "awqmarlin", "gptqmarlin",
         "onlineint4", "int4online", "exl34bit", "bnb4bit"),
    ),
    NumberFormat("nvfp4", 4.5, 16, ("fp4",), ("fp4", "w4a4", "modeloptfp4")),
    NumberFormat("mxfp4", 4.25, 16, ("fp4",), ()),
    # GGUF files of mixtures in MXFP4: what is not an expert in 8 bit.
    NumberFormat("mxfp4_moe", 4.25, 8.5, ("fp4",), ("mxfp4moe", "ggufmxfp4")),
    # MLX: groups of 64 with a 16-bit scale and bias, embeddings and head too.
    NumberFormat("mlx4", 4.5, 4.5, (), ("mlx4bit",)),
    NumberFormat("mlx6", 6.5, 6.5, (), ("mlx6bit",)),
    NumberFormat("mlx8", 8.5, 8.5, (), ("mlx8bit",)),
    # GGUF blocks: the output matrix is kept in q6_k below 6 bits, else as the rest. Mixtures _L and _XL keep a few more
    # tensors in 8 bit than _M, which makes them some percent larger.
    NumberFormat("q8_0", 8.5, 8.5, (), ("q80", "gguf8bit", "q8", "q8kxl")),
    NumberFormat("q6_k", 6.5625, 6.5625, (), ("q6k",)),
    NumberFormat("q5_k_m", 5.70, 6.5625, (), ("q5km", "q5k", "q5", "q5kl", "q5kxl")),
    NumberFormat("q4_k_m", 4.89, 6.5625, (), ("q4km", "q4k", "q4", "q4kl", "q4kxl")),
    NumberFormat("q4_0", 4.5, 6.5625, (), ("q40",)),
    NumberFormat("q3_k_m", 4.0, 6.5625, (), ("q3km", "q3", "q3kl", "q3kxl")),
    NumberFormat("iq4_xs", 4.25, 6.5625, (), ("iq4xs",)),
)  # fmt: skip
FORMATS: dict[str, NumberFormat] = {each.name: each for each in _ALL}
WeightFormat = Literal[
    "bf16", "fp16", "fp8", "fp32", "int8", "w8a16", "int4", "nvfp4", "mxfp4", "mxfp4_moe", "mlx4", "mlx6", "mlx8",
    "q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_0", "q3_k_m", "iq4_xs",
]  # fmt: skip
CacheFormat = Literal["bf16", "fp16", "fp8", "fp32", "int8", "q8_0"]
_NAMES = {re.sub(r"[^a-z0-9]", "", name): each.name for each in _ALL for name in (each.name, *each.aliases)}


def find_format(text: str) -> str | None:
    """The name of a format as people write it, or None.

    >>> [find_format(text) for text in ("BF16", "UD-Q4_K_XL", "AWQ 4-bit", "float16", "MXFP4")]
    ['bf16', 'q4_k_m', 'int4', 'fp16', 'mxfp4']
    """
    plain = re.sub(r"[^a-z0-9]", "", text.casefold())
    return _NAMES.get(plain, _NAMES.get(plain.removeprefix("ud")))  # UD-: a quantizer's name for its own mixtures


def _by_name(value: object) -> object:
    found = find_format(value) if isinstance(value, str) and value not in FORMATS else None
    if found is not None:
        raise ValueError(f"must be written as {found} (got {value!r})")
    return value


# Of a format in a file: people's other spellings of it are told the one that is taken.
BY_NAME = BeforeValidator(_by_name)


def nearest_format(text: str) -> str:
    """The name of the format whose name or alias is nearest to what was written, "" for none.

    >>> nearest_format("fp9"), nearest_format("gptq-marlinn"), nearest_format("quite another thing")
    ('fp8', 'int4', '')
    """
    return _NAMES.get(nearest(re.sub(r"[^a-z0-9]", "", text.casefold()), _NAMES), "")


def known_format(text: str, where: str) -> str:
    """The name of a format as people write it. Raises `SpecError` naming the nearest."""
    found = find_format(text)
    if found is None:
        must = f"must be one of {', '.join(FORMATS)}"
        raise SpecError([Problem(where, "", must, repr(text), nearest_format(text))])
    return found


def format_in_name(name: str) -> tuple[str, str | None]:
    """(the name without it, format) of a checkpoint whose name ends in the type of its weights.

    >>> format_in_name("Qwen/Qwen3-32B-FP8"), format_in_name("Qwen2.5-7B-Instruct-GPTQ-Int8"), format_in_name("gemma-3-4b-it")
    (('Qwen/Qwen3-32B', 'fp8'), ('Qwen2.5-7B-Instruct', 'int8'), ('gemma-3-4b-it', None))
    """
    words = re.split(r"[-.](?=[^-.]*[A-Za-z])", name)
    if words[-1].casefold() in ("dynamic", "block", "gguf"):
        words.pop()
    found = find_format(words[-1]) if len(words) > 1 else None
    if found is None:
        return name, None
    words.pop()
    if len(words) > 1 and words[-1].casefold() in ("awq", "bnb", "gptq", "quantized"):
        words.pop()
    return name[: len("-".join(words))], found


def read_precision(text: str) -> tuple[str | None, str | None]:
    """(weights, KV cache) from what people write; None where a side is not said. Raises ValueError for unknown words.

    >>> read_precision("native (fp8)"), read_precision("mxfp4 weights, fp8 KV"), read_precision("bf16 (assumed)")
    (('fp8', None), ('mxfp4', 'fp8'), ('bf16', None))
    """
    weights = kv_cache = None
    native = re.fullmatch(r"\s*native\s*\((.*)\)\s*", text, re.IGNORECASE)
    said = native[1] if native else re.sub(r"\(.*?\)", "", text)
    for part in re.split(r"[,;+/]", said):
        words = [word for word in part.casefold().split() if not re.fullmatch(r"weights?|dtype|experts|with|g\d+", word)]
        is_kv = any(word in ("kv", "cache", "kvcache") for word in words)
        name = " ".join(word for word in words if word not in ("kv", "cache", "kvcache"))
        found = find_format(name)
        if found is None:
            raise ValueError(name or part)
        if (kv_cache if is_kv else weights) not in (None, found):
            raise ValueError(f"{part.strip()} (a second type of the {'KV cache' if is_kv else 'weights'})")
        if is_kv:
            kv_cache = found
        else:
            weights = found
    return weights, kv_cache
