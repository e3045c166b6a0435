"""Whole forward passes of real Hugging Face decoder models: batch × rows × context, eager, as a CUDA graph, or compiled.

Models are built from a config with random weights, since time does not depend on their values, or loaded from a local
folder. A cell's pass gets `rows` new tokens for each of `batch` sequences behind `context` cached ones and computes the logits of
all rows, as verification does.
"""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, StaticCache
from transformers.cache_utils import DynamicLayer
from transformers.utils import logging

from calibration.device import DTYPES, Device, UnsupportedError, Work, linear
from calibration.measurement import Cell


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A Hugging Face config; `path`: the folder of its weights, None for random ones."""

    config: Mapping[str, Any]
    path: Path | None = None


class Forwards:
    """Builds the `Work` of forward cells; keeps models loaded, KV caches and graphs while memory allows."""

    def __init__(self, device: Device, sources: Mapping[str, ModelSource]):
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        self.device, self.sources = device, sources
        self._models: dict[tuple[str, str], Any] = {}
        self._caches: OrderedDict[tuple[object, ...], DynamicCache] = OrderedDict()
        self._graphs: OrderedDict[str, tuple[Work, int]] = OrderedDict()

    def work(self, cell: Cell) -> Work:
        """What a forward cell runs. Raises UnsupportedError where device, type or mode is out of reach."""
        inputs = cell.inputs
        name, dtype, mode = str(inputs["model"]), str(inputs["dtype"]), str(inputs["mode"])
        batch, rows, context = int(inputs["batch"]), int(inputs["rows"]), int(inputs["context"])
        model = self.model(name, dtype)
        tokens = torch.zeros(batch, rows, dtype=torch.long, device=self.device.torch_device)
        if mode == "eager":
            return self._eager_work(model, tokens, self._cache(name, dtype, batch, context), context)
        if cell.key not in self._graphs:
            self._graphs[cell.key] = self._static_work(model, tokens, context, compiled=mode == "compile")
            while len(self._graphs) > 1 and sum(size for _, size in self._graphs.values()) > self.device.facts.memory_bytes // 4:
                self._graphs.popitem(last=False)
        self._graphs.move_to_end(cell.key)
        return self._graphs[cell.key][0]

    def model(self, name: str, dtype: str) -> Any:
        """The model, built or loaded on first use."""
        found = self._models.get((name, dtype))
        if found is None:
            found = self._models[name, dtype] = self._built(self.sources[name], dtype)
        return found

    def drop_all(self) -> None:
        """Frees models, KV caches and graphs, after a cell that ran out of memory."""
        self._models.clear()
        self._caches.clear()
        self._graphs.clear()
        self.device.free_memory()

    def _built(self, source: ModelSource, dtype: str) -> Any:
        stored = torch.bfloat16 if dtype == "fp8" else DTYPES[dtype]
        if source.path is not None:
            model = AutoModelForCausalLM.from_pretrained(source.path, dtype=stored, local_files_only=True)
            model = model.to(self.device.torch_device)
        else:
            config = AutoConfig.for_model(**source.config)
            with init_empty_weights(include_buffers=False):
                model = AutoModelForCausalLM.from_config(config, dtype=stored)
            model.tie_weights()
            _fill(model, self.device, "bf16" if dtype == "fp8" else dtype)
            model = model.to(self.device.torch_device)
        return (_in_fp8(model, self.device) if dtype == "fp8" else model).eval()

    # -------------------------------------------------------------------------------------------------------- KV caches

    def _cache(self, name: str, dtype: str, batch: int, context: int) -> DynamicCache:
        """A cache of `context` tokens a sequence; the least recently used are dropped beyond a quarter of the memory."""
        key = (name, dtype, batch, context)
        if key not in self._caches:
            self._caches[key] = self._filled(self.model(name, dtype), batch, context)
            while len(self._caches) > 1 and sum(map(_cache_bytes, self._caches.values())) > self.device.facts.memory_bytes // 4:
                self._caches.popitem(last=False)
        self._caches.move_to_end(key)
        return self._caches[key]

    def _filled(self, model: Any, batch: int, context: int) -> DynamicCache:
        """Plain layers are filled with random keys and values; layers with windows or states by a real prefill."""
        cache = DynamicCache(config=model.config)
        tokens = torch.zeros(batch, max(context, 1), dtype=torch.long, device=self.device.torch_device)
        if context == 0:
            return cache
        _run(model, tokens[:, :1], cache, logits_to_keep=1)
        if _is_plain(cache):
            for layer in cache.layers:
                layer.keys, layer.values = self._like(layer.keys, context), self._like(layer.values, context)
        elif context > 1:
            _run(model, tokens[:, 1:], cache, logits_to_keep=1)
        return cache

    def _like(self, states: torch.Tensor, tokens: int) -> torch.Tensor:
        batch, heads, _, width = states.shape
        return torch.empty(batch, heads, tokens, width, dtype=states.dtype, device=states.device).normal_(0.0, 0.02)

    def _eager_work(self, model: Any, tokens: torch.Tensor, cache: DynamicCache, context: int) -> Work:
        """Each pass lengthens the cache, which is cropped again as a decoding loop does; windows and states are restored."""
        if _is_plain(cache):
            return Work([_pass(model, tokens, lambda: cache)], prepare=lambda: _cut_to(cache, context), capture=False)
        held = [cache]

        def restore() -> None:
            held[0] = copy.deepcopy(cache)

        return Work([_pass(model, tokens, lambda: held[0])], prepare=restore, capture=False)

    def _static_work(self, model: Any, tokens: torch.Tensor, context: int, compiled: bool) -> tuple[Work, int]:
        """A cache of fixed size in a captured graph, and its bytes; without graphs the same calls run one by one.

        Mask and positions are given, since transformers reads a number back to the host to build them, which no graph can hold.
        """
        (batch, rows), total = tokens.shape, context + tokens.shape[1]
        cache = StaticCache(config=model.config, max_cache_len=total)
        _run(model, tokens[:, :1], cache, logits_to_keep=1)
        if any(not hasattr(layer, "cumulative_length") or layer.is_sliding for layer in cache.layers):
            raise UnsupportedError(
                "graphs need layers of full attention and a transformers whose static cache counts on the device"
            )
        for layer in cache.layers:
            layer.keys.normal_(0.0, 0.02)
            layer.values.normal_(0.0, 0.02)

        def rewind() -> None:
            for layer in cache.layers:
                layer.cumulative_length.fill_(context)

        called = model
        if compiled:
            # One graph a shape: a new shape would otherwise be compiled with sizes left open.
            torch._dynamo.reset()
            called = torch.compile(model, dynamic=False)
        seen = torch.ones(rows, total, dtype=torch.bool, device=tokens.device).tril(context).expand(batch, 1, rows, total)
        positions = torch.arange(context, total, device=tokens.device)[None]
        run = _pass(called, tokens, lambda: cache, model, attention_mask=seen, position_ids=positions)
        rewind()
        run()
        rewind()
        return Work([self.device.captured(run)], prepare=rewind, capture=False), _cache_bytes(cache)


def _pass(
    called: Any, tokens: torch.Tensor, cache: Callable[[], Any], model: Any = None, **given: torch.Tensor
) -> Callable[[], object]:
    keyword = _cache_keyword(model if model is not None else called)
    return lambda: called(tokens, use_cache=True, logits_to_keep=0, **given, **{keyword: cache()})


def _run(model: Any, tokens: torch.Tensor, cache: Any, logits_to_keep: int) -> None:
    model(tokens, use_cache=True, logits_to_keep=logits_to_keep, **{_cache_keyword(model): cache})


def _cache_keyword(model: Any) -> str:
    """`cache` in newer transformers, `past_key_values` in older ones."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def _is_plain(cache: DynamicCache) -> bool:
    """Whether every layer keeps the keys and values of all tokens and nothing else."""
    return all(type(layer) is DynamicLayer for layer in cache.layers)


def _cut_to(cache: DynamicCache, context: int) -> None:
    extra = cache.get_seq_length() - context
    if extra > 0:
        # Only a negative count of tokens to remove means the same in all versions.
        cache.crop(-extra)


def _cache_bytes(cache: Any) -> int:
    return sum(
        tensor.numel() * tensor.element_size()
        for layer in cache.layers
        for tensor in (getattr(layer, "keys", None), getattr(layer, "values", None))
        if tensor is not None
    )


def _fill(model: Any, device: Device, dtype: str) -> None:
    """Random weights where there are none, shared ones shared again: drawing every number would take a tenth of a short run."""
    made: dict[int, torch.nn.Parameter] = {}
    for module in model.modules():
        for name, empty in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if id(empty) not in made:
                # Norms keep their scale, so that states neither grow nor vanish from layer to layer.
                weights = device.random(*empty.shape, dtype=dtype) if empty.ndim > 1 else torch.ones(empty.shape)
                weights = weights.to(device.torch_device, DTYPES[dtype])
                made[id(empty)] = torch.nn.Parameter(weights, requires_grad=False)
            setattr(module, name, made[id(empty)])


class _Fp8Linear(torch.nn.Module):
    """Weights and activations in 8 bit with unit scales, output in 16: the time of a quantized layer, not its accuracy."""

    def __init__(self, weights: torch.Tensor, scale: torch.Tensor):
        super().__init__()
        self.register_buffer("weights", weights.to(torch.float8_e4m3fn))
        self.register_buffer("scale", scale)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        rows = states.reshape(-1, states.shape[-1]).to(torch.float8_e4m3fn)
        return linear(rows, self.weights, self.scale).reshape(*states.shape[:-1], -1)


def _in_fp8(model: Any, device: Device) -> Any:
    """All matrices but the LM head in 8 bit."""
    reason = device.refusal("fp8")
    if reason:
        raise UnsupportedError(f"fp8: {reason}")
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, torch.nn.Linear) and child is not model.get_output_embeddings():
                setattr(parent, name, _Fp8Linear(child.weight.data, device.unit_scale()))
    return model
