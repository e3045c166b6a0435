"""Where profiles, shapes and scenarios live (repository or wheel), and finding one by id, path, name or alias."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from functools import cache, lru_cache, wraps
from pathlib import Path
from typing import TypeVar

from simulator.spec import Problem, SpecError, nearest, shown

KINDS = {
    "hardware": "hardware_profiles",
    "engine": "engine_profiles",
    "model": "model_shapes",
    "acceptance": "acceptance_profiles",
    "workload": "workload_profiles",
    "scenario": "scenarios",
}
T = TypeVar("T")
# Files of one kind that are remembered at a time.
_REMEMBERED = 256
_PACKAGE = Path(__file__).resolve().parent
_SUFFIXES = ("-hf", "-instruct", "-chat", "-it", "-pt", "-2507")


def folder(kind: str) -> Path:
    """The folder of one kind of data, or of a name: beside the package in a checkout, inside it in an installed wheel."""
    name = KINDS.get(kind, kind)
    installed = _PACKAGE / "_data" / name
    return installed if installed.is_dir() else _PACKAGE.parent / name


@cache
def ids(kind: str) -> tuple[str, ...]:
    """Ids of all shipped files of a kind, sorted."""
    return tuple(sorted(path.stem for path in folder(kind).glob("*.yaml")))


def file_of(kind: str, name: str) -> Path | None:
    """The file that `name` means: a path that exists, or the id of a shipped file (case and ``-``/``_`` are ignored)."""
    if name.endswith((".yaml", ".yml")) or "/" in name:
        path = Path(name)
        if is_file(path):
            return path
    wanted = name.casefold().replace("-", "_").removesuffix(".yaml")
    for known in ids(kind):
        if known.casefold() == wanted:
            return folder(kind) / f"{known}.yaml"
    return None


def is_file(path: Path) -> bool:
    """Whether the path is a file; False for names longer than the file system allows."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def once_per_file(read: Callable[[str | Path], T]) -> Callable[[str | Path], T]:
    """A reader that reads a file again only after it has changed. What it returns must not be changed by anyone."""

    @lru_cache(_REMEMBERED)
    def remembered(path: str, modified_ns: int, size: int) -> T:  # noqa: ARG001
        return read(path)

    @wraps(read)
    def reading(path: str | Path) -> T:
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            return read(path)  # which says what is wrong
        return remembered(str(path), status.st_mtime_ns, status.st_size)

    return reading


def normalised(name: str) -> str:
    """A name as it is compared: no case, owner, remark in brackets, nor the suffixes -hf, -Instruct, -chat, -it, -pt, -2507.

    >>> normalised("meta-llama/Llama-3.1-8B-Instruct") == normalised("llama-3.1-8b")
    True
    """
    text = re.sub(r"[(\[].*?[)\]]", "", name).strip().casefold().rsplit("/", 1)[-1]
    text = re.sub(r"[\s_]+", "-", text).strip("-")
    while text.endswith(_SUFFIXES):
        text = text[: text.rindex("-")]
    return text


def unknown(where: str, key: str, noun: str, name: str, names: Iterable[str]) -> SpecError:
    """The error for a name that is not known, with the nearest one that is, as names are compared."""
    names = list(names)
    like = {normalised(known): known for known in reversed(names)}
    closest = like.get(nearest(normalised(name), like)) or nearest(name, names)
    listed = f"; known: {', '.join(sorted(names))}" if len(names) <= 16 else ""
    return SpecError(
        [Problem(where, key, f"must be a known {noun} or the path of a file{listed}", shown(name) or repr(name), closest)]
    )
