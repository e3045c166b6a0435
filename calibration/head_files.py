"""Drafting heads by name: shipped beside a pair, in a safetensors file, or random, which shows what they cost and no more.

A file holds the tensors of `MedusaHeads` or `EagleHead` under their own names. Of Medusa heads also as published ones name
them: `0.0.linear.weight` is the residual layer of the first head, `0.1.weight` its projection.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from calibration.decoding import GREEDY, EagleHead, HeadDrafter, HuggingFaceModel, MedusaHeads
from calibration.model_files import MODELS, ModelFileError, file_sha256, shipped_pairs

KINDS = ("medusa", "eagle")
RANDOM_HEADS = 4
_SEED = 7
_PUBLISHED = {r"(\d+)\.0\.linear\.(weight|bias)": r"residual.\1.\2", r"(\d+)\.1\.weight": r"output.\1.weight"}
Head = MedusaHeads | EagleHead


def head_drafter(draft: str, target: HuggingFaceModel) -> tuple[HeadDrafter, str]:
    """The drafter that `medusa`, `eagle`, `KIND:FILE` or `KIND:random` names, and the fingerprint of its weights.

    Heads draft greedily whatever the target's sampler, as serving engines have them do. Raises ModelFileError, DecodingError.
    """
    kind, _, detail = draft.partition(":")
    if re.fullmatch(r"random(-[1-9]\d?)?", detail) and (kind == "medusa" or detail == "random"):
        count = int(detail.partition("-")[2] or RANDOM_HEADS)
        head, mark = _random(kind, target, count), draft
    else:
        path = _file(kind, detail, target)
        head, mark = read_head(path, kind, target), file_sha256(path)[:16]
    weights = target.module.get_output_embeddings().weight
    drafter = HeadDrafter(head.to(device=weights.device, dtype=weights.dtype), name=draft, sampling=GREEDY)
    drafter.check(target)
    return drafter, mark


def read_head(path: Path, kind: str, target: HuggingFaceModel) -> Head:
    """The head in a file. Raises ModelFileError where the file holds another thing."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            tensors = {_own_name(name): file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118  no mapping
            attention_heads = (file.metadata() or {}).get("num_attention_heads")
    except FileNotFoundError:
        raise ModelFileError(f"draft {kind}: {path}: no such file") from None
    except (OSError, SafetensorError) as error:
        raise ModelFileError(f"draft {kind}: {path}: must be a safetensors file: {' '.join(str(error).split())}") from None
    head = _shaped(kind, tensors, int(attention_heads or target.config.num_attention_heads), path)
    try:
        head.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split("\n", 1)[-1].split())
        raise ModelFileError(f"draft {kind}: {path}: must hold the tensors of one head each: {reason}") from None
    return head


def write_head(path: Path, head: Head) -> None:
    """Writes a head as `read_head` reads it, in half the precision."""
    from safetensors.torch import save_file

    metadata = {"num_attention_heads": str(head.block.num_heads)} if isinstance(head, EagleHead) else {}
    tensors = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in head.state_dict().items()}
    save_file(tensors, path, metadata=metadata)


def _file(kind: str, detail: str, target: HuggingFaceModel) -> Path:
    if detail:
        return Path(detail).expanduser()
    shipped = MODELS / target.name / f"{kind}.safetensors"
    if target.name not in shipped_pairs() or not shipped.is_file():
        owners = " or ".join(name for name in shipped_pairs() if (MODELS / name / f"{kind}.safetensors").is_file())
        alone = f"; {kind} alone goes with target {owners}" if owners else ""
        raise ModelFileError(
            f"draft {kind}: must name a file of weights for target {target.name}, {kind}:FILE.safetensors,"
            f" or {kind}:random{alone}"
        )
    return shipped


def _own_name(name: str) -> str:
    for pattern, own in _PUBLISHED.items():
        if re.fullmatch(pattern, name):
            return re.sub(pattern, own, name)
    return name


def _shaped(kind: str, tensors: dict[str, torch.Tensor], attention_heads: int, path: Path) -> Head:
    """An empty head of the size of these tensors."""
    first = "output.0.weight" if kind == "medusa" else "join.weight"
    if first not in tensors or tensors[first].ndim != 2:
        found = ", ".join(sorted(tensors)[:3]) or "none"
        raise ModelFileError(f"draft {kind}: {path}: must hold the tensor {first} of {kind}-style heads (its tensors: {found} …)")
    if kind == "medusa":
        vocabulary, width = tensors[first].shape
        return MedusaHeads(width, vocabulary, sum(name.startswith("output.") for name in tensors))
    width = tensors[first].shape[0]
    if width % (2 * attention_heads):
        raise ModelFileError(f"draft eagle: {path}: must have a width that {attention_heads} attention heads share (got {width})")
    return EagleHead(width, attention_heads)


def _random(kind: str, target: HuggingFaceModel, count: int) -> Head:
    """Weights as before any training, from one seed. Medusa heads start as the target's own output head, as its authors' do."""
    width = int(target.embed(torch.zeros(1, dtype=torch.long)).shape[-1])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        if kind == "eagle":
            return EagleHead(width, target.config.num_attention_heads)
        heads: Any = MedusaHeads(width, target.vocab_size, count)
    for residual, output in zip(heads.residual, heads.output, strict=True):
        torch.nn.init.zeros_(residual.weight)
        torch.nn.init.zeros_(residual.bias)
        output.weight.data.copy_(target.module.get_output_embeddings().weight.data[: target.vocab_size])
    return heads
