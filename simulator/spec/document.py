"""Document: parsed input with the place of every key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulator.spec.problem import Problem, nearest, shown

Location = tuple[str | int, ...]


@dataclass(frozen=True)
class Document:
    """Parsed input with the place of every key. `source` is a path, or "" where the keys are command-line flags."""

    source: str
    data: Any
    lines: Mapping[Location, int] = field(default_factory=dict)

    def where(self, location: Location) -> str:
        """``file:line`` of the nearest enclosing key that has a line, or the flag."""
        if not self.source:
            return "--" + str(location[0]).replace("_", "-") if location else ""
        for end in range(len(location), -1, -1):
            if location[:end] in self.lines:
                return f"{self.source}:{self.lines[location[:end]]}"
        return self.source

    def beside(self, name: str) -> str:
        """The file, or folder with a config.json, that a path in the document means: from the document's folder where it is
        there, else as it stands. A name that is no path stays as it is."""
        if not self.source or not ("/" in name or name.endswith((".yaml", ".yml", ".json"))):
            return name
        path = Path(self.source).parent / name
        try:
            return str(path) if path.is_file() or (path / "config.json").is_file() else name
        except (OSError, ValueError):  # such as a name longer than the file system takes
            return name

    def problem(self, location: Location, must: str, got: object = "", names: Iterable[str] = ()) -> Problem:
        """A problem at `location`; the nearest of `names` to `got` is suggested."""
        return Problem(self.where(location), dotted(location) if self.source else "", must, shown(got), nearest(got, names))


def dotted(location: Location) -> str:
    """``("a", "b", 0)`` → ``a.b[0]``."""
    text = ""
    for item in location:
        text += f"[{item}]" if isinstance(item, int) else f".{item}" if text else str(item)
    return text
