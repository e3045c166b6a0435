"""The models whose whole passes are measured: Hugging Face configs of common decoder shapes, by size of the device.

The first is the main one: its passes are fitted. The last judges: none of its passes is ever given to the fit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.architecture import ModelArchitecture, find_model
from simulator.architecture.hf_config import config_path, read_config
from simulator.spec import Problem, SpecError

Config = Mapping[str, Any]
# An 8B model in 16 bit takes 16 GB before any cache, and is measured beside a 3B one; that and a 1B one take 9 GB.
_LARGE_MEMORY_BYTES, _MEDIUM_MEMORY_BYTES = 40e9, 14e9


@dataclass(frozen=True, slots=True)
class Dimensions:
    """What a decoder's time follows from; read from a Hugging Face config.

    >>> Dimensions.of(SHAPES["llama-135m"]).parameters
    134479872
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool

    @classmethod
    def of(cls, config: Config) -> Dimensions:
        text = config.get("text_config") or config
        hidden, heads = int(text["hidden_size"]), int(text["num_attention_heads"])
        return cls(
            layers=int(text["num_hidden_layers"]),
            hidden=hidden,
            heads=heads,
            kv_heads=int(text.get("num_key_value_heads") or heads),
            head_dim=int(text.get("head_dim") or hidden // heads),
            intermediate=int(text.get("intermediate_size") or 4 * hidden),
            vocabulary=int(text["vocab_size"]),
            tied=bool(text.get("tie_word_embeddings", False)),
        )

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """(n, k) of the matrices as Hugging Face modules run them, each projection on its own."""
        return {
            "q": (self.heads * self.head_dim, self.hidden),
            "k": (self.kv_heads * self.head_dim, self.hidden),
            "o": (self.hidden, self.heads * self.head_dim),
            "up": (self.intermediate, self.hidden),
            "down": (self.hidden, self.intermediate),
            "head": (self.vocabulary, self.hidden),
        }

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer's matrices: q, k, v, o, and a gated MLP."""
        each = {name: n * k for name, (n, k) in self.matrices.items()}
        return each["q"] + 2 * each["k"] + each["o"] + 2 * each["up"] + each["down"]

    @property
    def parameters(self) -> int:
        """All matrices, without norms."""
        return self.layers * self.layer_parameters + self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def kv_elements_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim


def _llama(layers: int, hidden: int, heads: int, kv_heads: int, intermediate: int, vocabulary: int, tied: bool) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": hidden // heads,
        "intermediate_size": intermediate,
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied,
        "max_position_embeddings": 131072,
    }


SHAPES: Mapping[str, dict[str, Any]] = {
    "llama-135m": _llama(30, 576, 9, 3, 1536, 49152, True),  # SmolLM2-135M
    "llama-135m-2-layers": _llama(2, 576, 9, 3, 1536, 49152, True),
    "llama-31m": _llama(12, 384, 6, 2, 1024, 32000, True),
    "llama-8b": _llama(32, 4096, 32, 8, 14336, 128256, False),  # Llama-3.1-8B
    "llama-1b": _llama(16, 2048, 32, 8, 8192, 128256, True),  # Llama-3.2-1B
    "llama-3b": _llama(28, 3072, 24, 8, 8192, 128256, True),  # Llama-3.2-3B
}
_SMALL = ("llama-135m", "llama-135m-2-layers", "llama-31m")
_MEDIUM = ("llama-1b", "llama-135m", "llama-3b")
_LARGE = ("llama-8b", "llama-1b", "llama-3b")


def default_models(device: str, memory_bytes: float) -> dict[str, Config]:
    """Main, second and judging model for a device of this memory."""
    names = _SMALL
    if device != "cpu" and memory_bytes >= _MEDIUM_MEMORY_BYTES:
        names = _LARGE if memory_bytes >= _LARGE_MEMORY_BYTES else _MEDIUM
    return {name: SHAPES[name] for name in names}


def chosen_models(asked: Sequence[str], device: str, memory_bytes: float) -> tuple[dict[str, Config], dict[str, Path]]:
    """Configs by name, and the folders of those that are local models. Raises `SpecError` for a name that is not known.

    One model alone is measured beside the usual second and judging ones, which keep overhead and weights apart.
    """
    usual = default_models(device, memory_bytes)
    configs: dict[str, Config] = {}
    folders: dict[str, Path] = {}
    for name in asked:
        path = config_path(name)
        if name in SHAPES:
            configs[name] = SHAPES[name]
        elif path is not None:
            configs[path.parent.name] = _read(path)
            folders[path.parent.name] = path.parent
        else:
            configs[name] = config_of(find_model(name, key="--model"))
    if not asked:
        return usual, {}
    beside = [name for name in list(usual)[1:] if name not in configs][: 2 if len(configs) == 1 else 0]
    return configs | {name: usual[name] for name in beside}, folders


def _read(path: Path) -> Config:
    """A local config, known to be one that the cost model prices."""
    read_config(path)
    found: Config = json.loads(path.read_text(encoding="utf-8"))
    return found


def config_of(model: ModelArchitecture) -> dict[str, Any]:
    """A Hugging Face config of a dense shape. Raises `SpecError` for shapes that no plain decoder class has."""
    plain = model.layer_pattern is None and model.num_experts is None and model.kv_lora_rank is None
    if model.kind == "draft_head" or not plain or model.mlp_type != "gated" or model.sliding_window is not None:
        must = "must be a dense decoder whose layers are all alike, or a local folder with a Hugging Face model"
        raise SpecError([Problem("--model", "", must, repr(model.name))])
    config = _llama(
        model.num_hidden_layers,
        model.hidden_size,
        model.num_attention_heads,
        model.num_key_value_heads,
        model.intermediate_size,
        model.vocab_size,
        model.tie_word_embeddings,
    )
    return {**config, "head_dim": model.head_dim or config["head_dim"]}
