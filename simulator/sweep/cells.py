"""The grid of a sweep: every combination of its axes, each a scenario of its own with a name that says what it depends on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from simulator import resources
from simulator.spec import Document, Location, Problem, SpecError
from simulator.sweep.axes import Axis
from simulator.sweep.keys import QUESTION_KEYS, key_problem, with_value

# More cells than this are taken for a slip.
MOST_CELLS = 1_000_000


@dataclass(frozen=True)
class CellDocument(Document):
    """A scenario with the values of one cell. set_at: key that varies → the flag or line that varies it; a mistake in such a
    value is told there, and not where the scenario holds another one."""

    set_at: Mapping[str, str] = field(default_factory=dict)

    def where(self, location: Location) -> str:
        for end in range(len(location), 0, -1):
            found = self.set_at.get(".".join(str(item) for item in location[:end]))
            if found is not None:
                return found
        return super().where(location)


@dataclass(frozen=True, slots=True)
class Cell:
    """One point. settings: key → value of what varies; document: the scenario; asked_at: what the question is asked at;
    name: a digest of all that the answer depends on."""

    index: int
    settings: dict[str, Any]
    document: CellDocument
    asked_at: dict[str, Any]
    name: str


@dataclass(frozen=True)
class Grid:
    """The axes of a sweep over a scenario; the last varies fastest."""

    document: Document
    question: str
    axes: tuple[Axis, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(key for axis in self.axes for key in axis.keys)

    def __len__(self) -> int:
        return prod(len(axis.values) for axis in self.axes)

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(self._cells())

    def _cells(self) -> Iterator[Cell]:
        base = {key: value for key, value in self.document.data.items() if key != "sweep"}
        seal = [program_digest(), self.question]
        set_at = {key: axis.where for axis in self.axes for key in axis.keys}
        for index, chosen in enumerate(product(*(tuple(axis.settings()) for axis in self.axes))):
            settings: dict[str, Any] = {key: value for part in chosen for key, value in part.items()}
            data, asked_at = base, {}
            for key, value in settings.items():
                if key in QUESTION_KEYS:
                    asked_at[key] = value
                else:
                    data = with_value(data, key, value)
            document = CellDocument(self.document.source, data, self.document.lines, set_at)
            named = _files_named(data, Path(self.document.source).parent)
            content = json.dumps([seal, data, asked_at, named], sort_keys=True, default=str, ensure_ascii=False)
            yield Cell(index, settings, document, asked_at, hashlib.sha256(content.encode()).hexdigest()[:24])


def grid_of(document: Document, question: str, axes: Sequence[Axis], question_keys: tuple[str, ...] = ()) -> Grid:
    """The grid; raises `SpecError` for keys that no scenario has, a key set twice, and a grid beyond all measure."""
    problems = []
    seen: dict[str, str] = {}
    for axis in axes:
        for key in axis.keys:
            found = key_problem(key, axis.where, question_keys) or _list_above(document, key, axis.where)
            problems += [found] if found else []
            if key in seen:
                problems.append(Problem(axis.where, key, "must be set once"))
            seen[key] = axis.where
    grid = Grid(document, question, tuple(axes))
    if not axes:
        problems.append(document.problem(("sweep",), "must be given, or --set: nothing varies"))
    elif len(grid) > MOST_CELLS:
        problems.append(document.problem(("sweep",), f"must have at most {MOST_CELLS:,} cells", len(grid)))
    if problems:
        raise SpecError(problems)
    return grid


def _list_above(document: Document, key: str, where: str) -> Problem | None:
    """That what holds the key is a list in the scenario: which of its entries is meant?"""
    held: object = document.data
    parts = key.split(".")
    for end, part in enumerate(parts[:-1], start=1):
        held = held.get(part) if isinstance(held, Mapping) else None
        if isinstance(held, (list, tuple)):
            above = ".".join(parts[:end])
            return Problem(where, key, f"must be set as a whole, {above}=…: the scenario holds a list there")
    return None


@cache
def program_digest() -> str:
    """Digest of this program's code and data: an answer of another version is not taken for one of this."""
    digest = hashlib.sha256()
    package = Path(__file__).resolve().parents[1]
    folders = {package, *(resources.folder(kind) for kind in resources.KINDS if kind != "scenario")}
    for folder in sorted(folders):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix in (".py", ".yaml", ".csv", ".npz", ".parquet"):
                digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _files_named(data: object, folder: Path) -> list[tuple[str, str]]:
    """(name, digest) of each file that a text of the scenario names, as seen from here or from the scenario's folder."""
    found = []
    for text in dict.fromkeys(_texts(data)):
        for path in (Path(text), folder / text, Path(text) / "config.json"):
            if resources.is_file(path):
                status = path.stat()
                found.append((text, _file_digest(str(path), status.st_mtime_ns, status.st_size)))
                break
    return found


@cache
def _file_digest(path: str, modified_ns: int, size: int) -> str:  # noqa: ARG001  a file that changes is read again
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _texts(data: object) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, Mapping):
        for value in data.values():
            yield from _texts(value)
    elif isinstance(data, (list, tuple)):
        for value in data:
            yield from _texts(value)
