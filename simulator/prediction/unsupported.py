"""Sound questions that are not priced, and names that are not known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from simulator.spec import Problem, SpecError


class UnsupportedError(Exception):
    """A sound question that this version cannot price; its text says why."""


class UnknownNameError(UnsupportedError):
    """A hardware, engine or model that is not known; `error` holds the problem as a user's mistake."""

    def __init__(self, error: SpecError):
        super().__init__("; ".join(str(replace(problem, where="")) for problem in error.problems))
        self.error = error


def found_or_unsupported(*finds: Callable[[], Any]) -> list[Any]:
    """What each finds. Names that are not known make a question unsupported; all of them are reported."""
    found: list[Any] = []
    problems: list[Problem] = []
    for find in finds:
        try:
            found.append(find())
        except SpecError as error:
            problems += error.problems
    if problems:
        raise UnknownNameError(SpecError(problems))
    return found
