"""Problem and SpecError: what is wrong with a user's input, and where."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: where it stands, which key, what it must be, what was found, and the nearest valid name."""

    where: str
    key: str
    must: str
    got: str = ""
    nearest: str = ""

    def __str__(self) -> str:
        text = ": ".join(part for part in (self.where, self.key, self.must) if part)
        if self.got:
            text += f" (got {self.got})"
        if self.nearest:
            text += f"; did you mean {self.nearest}?"
        return text


class SpecError(ValueError):
    """A user's input is wrong. Holds every problem found; its text is one line a problem."""

    def __init__(self, problems: Iterable[Problem]):
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


def shown(value: object) -> str:
    """A value as an error message prints it: short, text in quotes."""
    if isinstance(value, str) and value == "":
        return ""
    if isinstance(value, dict):
        text = "a mapping" if value else "an empty mapping"
    elif isinstance(value, (list, tuple)):
        text = "a list" if value else "an empty list"
    elif value is None:
        text = "nothing"
    elif isinstance(value, bool):
        text = str(value).lower()
    else:
        text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def why_unreadable(error: Exception) -> str:
    """Why a file could not be read, without codes and paths."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not text in UTF-8"
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)


def nearest(value: object, names: Iterable[str]) -> str:
    """The valid name most like `value`, or ""."""
    known = {name.casefold(): name for name in names}
    matches = difflib.get_close_matches(str(value).casefold(), known, n=1, cutoff=0.6)
    return known[matches[0]] if matches else ""
