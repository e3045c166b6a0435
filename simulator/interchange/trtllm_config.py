"""TensorRT-LLM's YAML of a server read: speculation, limits, parallelism and cache, as sections of a scenario."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulator.interchange.engine_flags import ServerSettings, put_format
from simulator.spec import Document, SpecError, load_yaml

_METHODS = {"MTP": "mtp", "EAGLE3": "eagle3", "EAGLE": "eagle3", "NGRAM": "ngram", "DRAFTTARGET": "draft_model",
                   "DFLASH": "block", "MEDUSA": "medusa"}  # fmt: skip
_LIMITS = {"max_batch_size": "max_num_seqs", "max_num_tokens": "max_num_batched_tokens", "max_seq_len": "max_model_len"}


def read(path: str | Path) -> ServerSettings:
    """The `speculative_config` and limits of a TensorRT-LLM YAML. Raises `SpecError`. The model is not in such a file."""
    document = load_yaml(path)
    if not isinstance(document.data, dict):
        raise SpecError([document.problem((), "must be a mapping with speculative_config", document.data)])
    found = ServerSettings("trtllm")
    known = (*_LIMITS, "tensor_parallel_size", "speculative_config")
    if not {*known} & {*map(str, document.data)}:
        must = f"must be measured runs of this program, or a TensorRT-LLM configuration with one of {', '.join(known)}"
        raise SpecError([document.problem((), must)])
    _sizes(document.data, found)
    config = document.data.get("speculative_config")
    if isinstance(config, Mapping):
        _speculation(config, document, found)
    return found


def _sizes(data: Mapping[Any, Any], found: ServerSettings) -> None:
    """Limits, devices that share the model, and the type of the cache."""
    for key, ours in _LIMITS.items():
        if isinstance(value := data.get(key), int):
            found.put("limits", ours, value)
    for key in ("tensor_parallel_size", "pipeline_parallel_size"):
        if isinstance(size := data.get(key), int) and size > 1:
            found.put("parallel", key, size)
    if isinstance(size := data.get("moe_expert_parallel_size"), int) and size > 1:
        found.put("parallel", "expert_parallel", True)
    cache = data.get("kv_cache_config")
    put_format(
        found, "kv_cache_config.dtype", str(cache.get("dtype", "auto")) if isinstance(cache, Mapping) else "auto", "kv_cache"
    )


def _speculation(config: Mapping[Any, Any], document: Document, found: ServerSettings) -> None:
    """Method, drafter and γ. Raises `SpecError` for a type that is not priced."""
    kind = str(config.get("decoding_type", ""))
    if kind.upper() not in _METHODS:
        location = ("speculative_config", "decoding_type")
        raise SpecError([document.problem(location, "must be a type priced here", kind, _METHODS)])
    method = _METHODS[kind.upper()]
    found.put("speculation", "method", method)
    drafter = config.get("speculative_model") or config.get("speculative_model_dir")
    if isinstance(drafter, str):
        found.put("speculation", "drafter", drafter)
    tokens = config.get("num_nextn_predict_layers") if method == "mtp" else config.get("max_draft_len")
    if not isinstance(tokens, int):
        tokens = config.get("max_draft_len")
    limit = config.get("max_concurrency")
    if isinstance(tokens, int) and isinstance(limit, int):
        found.put("speculation", "by_batch", [[1, limit, tokens]])
    elif isinstance(tokens, int):
        found.put("speculation", "num_speculative_tokens", tokens)
