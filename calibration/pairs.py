"""A target and who drafts for it, loaded by what a user calls them.

Target: the name of a shipped pair (`byte_pair`), `smollm2`, a Hugging Face folder, a GGUF file, or a hub name. Draft: any
of these; or `self`; `ngram` or `ngram:3-1`, look-up of the last 3 down to 1 tokens; `exit:25`, the target's first 25
layers; `skip:12-17` or `skip:10,13,16`, the target without these layers; `medusa` or `eagle`, the heads shipped for a target, or
with `:FILE` heads of one's own, or with `:random`. A shipped pair named as draft gives its draft.
"""

from __future__ import annotations

import os
import re
import socket
import urllib.parse
import urllib.request
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from calibration.decoding import (
    CausalModel,
    Drafter,
    HuggingFaceModel,
    LayerSkipDrafter,
    ModelDrafter,
    PromptLookupDrafter,
    SelfDrafter,
)
from calibration.head_files import KINDS as HEAD_KINDS
from calibration.head_files import head_drafter
from calibration.model_files import ModelFileError, fingerprint, model_source

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


class PairError(ValueError):
    """A target and a draft that cannot work together, or a draft that means nothing."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A loaded target, its tokenizer and its drafter; fingerprints tell which files they came from."""

    target: CausalModel
    drafter: Drafter
    tokenizer: Any
    eos_ids: frozenset[int]
    context_limit: int | None
    target_fingerprint: str
    draft_fingerprint: str

    def encode(self, prompt: str) -> list[int]:
        """Token ids of a prompt, in the target's chat template where it has one."""
        if getattr(self.tokenizer, "chat_template", None):
            messages = [{"role": "user", "content": prompt}]
            prompt = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            return list(self.tokenizer(prompt, add_special_tokens=False)["input_ids"])
        return list(self.tokenizer(prompt)["input_ids"])


def load_pair(target: str, draft: str, dtype: str = "fp32", device: str = "cpu") -> Pair:
    """Loads both onto a device as torch names it. Raises PairError or ModelFileError."""
    if dtype not in DTYPES:
        raise PairError(f"dtype: must be one of {', '.join(DTYPES)} (got {dtype!r})")
    _check_device(device)
    source = model_source(target, "target")
    module, tokenizer = _load(source, target, dtype, device)
    model = HuggingFaceModel(module, target)
    drafter, draft_fingerprint = _drafter(draft, model, tokenizer, dtype, device)
    return Pair(
        target=model,
        drafter=drafter,
        tokenizer=tokenizer,
        eos_ids=_eos_ids(module, tokenizer),
        context_limit=getattr(model.config, "max_position_embeddings", None),
        target_fingerprint=fingerprint(source),
        draft_fingerprint=draft_fingerprint,
    )


def with_draft(pair: Pair, draft: str, dtype: str = "fp32", device: str = "cpu") -> Pair:
    """The same target with another drafter. Raises PairError or ModelFileError."""
    assert isinstance(pair.target, HuggingFaceModel)
    drafter, draft_fingerprint = _drafter(draft, pair.target, pair.tokenizer, dtype, device)
    return replace(pair, drafter=drafter, draft_fingerprint=draft_fingerprint)


def _drafter(draft: str, target: HuggingFaceModel, tokenizer: Any, dtype: str, device: str) -> tuple[Drafter, str]:
    """The drafter and the fingerprint of its files; without files of its own that is its name."""
    kind, _, detail = draft.partition(":")
    layers = target.config.num_hidden_layers
    if draft == "self":
        return SelfDrafter(target), draft
    if kind == "ngram":
        longest, shortest = _ngram_sizes(detail)
        return PromptLookupDrafter(longest, shortest, name=draft), draft
    if kind == "exit":
        if not detail.isdigit() or not 1 <= int(detail) < layers:
            raise PairError(f"draft: exit must name how many layers run, 1 to {layers - 1} (got {draft!r})")
        return LayerSkipDrafter(target, range(int(detail)), name=draft), draft
    if kind == "skip":
        left_out = _layer_numbers(detail, layers)
        kept = [layer for layer in range(layers) if layer not in left_out]
        return LayerSkipDrafter(target, kept, name=draft, share_cache=False), draft
    if kind in HEAD_KINDS:
        return head_drafter(draft, target)
    source = model_source(draft, "draft")
    module, own_tokenizer = _load(source, draft, dtype, device)
    _same_vocabulary(tokenizer, own_tokenizer, target.name, draft)
    return ModelDrafter(HuggingFaceModel(module, draft), name=draft, same_tokenizer=True), fingerprint(source)


def _ngram_sizes(detail: str) -> tuple[int, int]:
    sizes = re.fullmatch(r"(\d+)(?:-(\d+))?", detail or "3-1")
    longest, shortest = (int(sizes[1]), int(sizes[2] or 1)) if sizes else (0, 0)
    if not 1 <= shortest <= longest:
        raise PairError(f"draft: ngram must name the longest and shortest match, such as ngram:3-1 (got {detail!r})")
    return longest, shortest


def _layer_numbers(detail: str, layers: int) -> set[int]:
    numbers: set[int] = set()
    for part in detail.split(","):
        bounds = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        first, last = (int(bounds[1]), int(bounds[2] or bounds[1])) if bounds else (1, 0)
        if not first <= last < layers:
            raise PairError(f"draft: skip must name layers from 0 to {layers - 1}, such as skip:2-3,5 (got {detail!r})")
        numbers |= set(range(first, last + 1))
    if len(numbers) == layers:
        raise PairError(f"draft: skip must leave at least one of the {layers} layers (got {detail!r})")
    return numbers


def _same_vocabulary(target: Any, draft: Any, target_name: str, draft_name: str) -> None:
    """Verification compares tokens by number: every number must mean the same text to both. Padding may differ."""
    ours, theirs = target.get_vocab(), draft.get_vocab()
    if ours != theirs:
        shared = sum(theirs.get(token) == number for token, number in ours.items())
        raise PairError(
            f"draft {draft_name} has another vocabulary ({len(theirs)} tokens) than target {target_name} ({len(ours)} tokens,"
            f" {shared} with the same number): both must use one tokenizer; choose a draft of the target's family, ngram, exit,"
            " skip, medusa, eagle or self"
        )


# ------------------------------------------------------------------------------------------------------------- loading


def _load(source: str, name: str, dtype: str, device: str) -> tuple[Any, Any]:
    """(model, tokenizer) of a folder or hub name; no code that comes with a model is run."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    offline = Path(source).is_dir() or not _hub_in_reach()
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=offline)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, DTYPES[dtype]), local_files_only=offline)
    except (ImportError, KeyError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        if offline and not Path(source).is_dir():
            raise ModelFileError(
                f"{name}: is not on this machine and the hub cannot be reached; give a Hugging Face folder or a GGUF file"
            ) from None
        raise ModelFileError(f"{name}: cannot be loaded as a causal language model: {reason}") from None
    return model.to(device), tokenizer


def _check_device(device: str) -> None:
    import torch

    try:
        torch.empty(1, device=device)
    except (AssertionError, NotImplementedError, RuntimeError):
        raise PairError(f"device: must be one that torch can use here, such as cpu (got {device!r})") from None


def _hub_in_reach() -> bool:
    """Whether the hub's name resolves; the library itself would try for half a minute. A proxy resolves names itself."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or os.environ.get("TRANSFORMERS_OFFLINE") == "1":
        return False
    if urllib.request.getproxies():
        return True
    try:
        socket.getaddrinfo(urllib.parse.urlsplit(constants.ENDPOINT).hostname, 443)
    except OSError:
        return False
    return True


def _eos_ids(module: Any, tokenizer: Any) -> frozenset[int]:
    """Every token that ends a text, by the model's generation settings, else by its tokenizer."""
    ids = getattr(getattr(module, "generation_config", None), "eos_token_id", None)
    ids = tokenizer.eos_token_id if ids is None else ids
    return frozenset([] if ids is None else [ids] if isinstance(ids, int) else ids)
