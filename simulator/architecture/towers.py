"""Encoders of images and sounds beside a language model, which no price holds: only what to tell of them."""

from __future__ import annotations

import json
from typing import Any

from simulator.architecture.hf_config import config_path

# By the key of a Hugging Face config.json: what such an encoder reads.
_TOWERS = {"vision_config": "an image", "audio_config": "a sound"}


def tower_note(name: str) -> list[str]:
    """What of a model that reads images or sounds is left out, where its config.json says that it has an encoder for them."""
    path = config_path(name)
    if path is None:
        return []
    config = json.loads(path.read_text(encoding="utf-8"))
    inner = config.get("thinker_config")
    config = inner if isinstance(inner, dict) else config
    return [
        f"{what} counts as the prompt tokens it becomes; the encoder of {key}{_size(config[key])} is left out of memory and time"
        for key, what in _TOWERS.items()
        if isinstance(config.get(key), dict)
    ]


def _size(tower: dict[str, Any]) -> str:
    """About how many parameters an encoder of usual layers has: four square matrices and two of its MLP in each."""
    depth, width, inner = (
        next((tower[key] for key in keys if isinstance(tower.get(key), int)), None)
        for keys in (("depth", "num_hidden_layers"), ("hidden_size", "embed_dim", "d_model"), ("intermediate_size",))
    )
    if depth is None or width is None:
        return ""
    return f" (about {depth * (4 * width**2 + 2 * width * (inner or 4 * width)) / 1e9:.1f}B parameters)"
