"""A smaller model made of some of a model's layers, sharing its weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from calibration.decoding.errors import DecodingError
from calibration.decoding.models import CausalModel, HuggingFaceModel


def layer_subset(model: CausalModel, layers: Sequence[int]) -> CausalModel:
    """`model` with only the given layers, ascending and counted from 0; no weight is copied. Raises DecodingError."""
    _check_separable(model)
    base, attribute, blocks = _blocks(model)
    if not layers or list(layers) != sorted(set(layers)) or not 0 <= layers[0] <= layers[-1] < len(blocks):
        raise DecodingError(
            f"layers: must be some of the layers 0 to {len(blocks) - 1} of {model.name}, ascending (got {list(layers)})"
        )
    subset = torch.nn.ModuleList([_renumbered(blocks[layer], position) for position, layer in enumerate(layers)])
    name = f"{model.name} layers {','.join(map(str, layers))}"
    if not isinstance(model, HuggingFaceModel):
        clone: Any = _shallow(model.module)
        clone._modules[attribute] = subset
        clone.name = name
        return clone
    config = _subset_config(model.module.config, layers)
    clone, inner = _shallow(model.module), _shallow(base)
    inner._modules[attribute] = subset
    clone._modules[model.module.base_model_prefix] = inner
    clone.config = inner.config = config
    return HuggingFaceModel(clone, name)


def _check_separable(model: CausalModel) -> None:
    """Raises DecodingError where layers lean on others by number, or run through hooks that know the whole model only."""
    config = getattr(model, "config", None)
    if getattr(config, "num_kv_shared_layers", 0) or getattr(config, "hidden_size_per_layer_input", 0):
        raise DecodingError(f"{model.name}: its layers share keys and values or inputs by number, so none can be left out")
    if any(hasattr(part, "_hf_hook") for part in model.module.modules()):
        raise DecodingError(f"{model.name}: is spread over devices; to leave layers out it must be loaded on one")


def _blocks(model: CausalModel) -> tuple[Any, str, torch.nn.ModuleList]:
    """(owner, attribute, the list of layers)."""
    base: Any = model.module.base_model if isinstance(model, HuggingFaceModel) else model.module
    expected = model.config.num_hidden_layers if isinstance(model, HuggingFaceModel) else None
    for attribute, child in base.named_children():
        if isinstance(child, torch.nn.ModuleList) and expected in (None, len(child)):
            return base, attribute, child
    raise DecodingError(f"{model.name}: its layers cannot be told from its other modules, so none can be left out")


def _shallow(module: torch.nn.Module) -> Any:
    """A second module over the same weights, whose children can be exchanged."""
    clone = copy.copy(module)
    for table in ("_modules", "_parameters", "_buffers", "_forward_hooks", "_forward_pre_hooks"):
        clone.__dict__[table] = copy.copy(module.__dict__[table])
    return clone


def _renumbered(module: torch.nn.Module, position: int) -> Any:
    """The layer at another position: attention finds its part of the cache by its number."""
    clone = _shallow(module)
    if hasattr(clone, "layer_idx"):
        clone.layer_idx = position
    for name, child in module.named_children():
        if any(hasattr(part, "layer_idx") for part in child.modules()):
            clone._modules[name] = _renumbered(child, position)
    return clone


def _subset_config(config: Any, layers: Sequence[int]) -> Any:
    config = copy.deepcopy(config)
    kinds = getattr(config, "layer_types", None)
    if kinds:
        config.layer_types = [kinds[layer] for layer in layers]
    config.num_hidden_layers = len(layers)
    return config
