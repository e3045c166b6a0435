"""Reading: a scenario's document, its sections as far as they are sound, and what was found in it so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from simulator.spec import Document, Problem, SpecError

T = TypeVar("T")


@dataclass(frozen=True)
class Reading:
    """A section that is wrong is missing from `sections`, and its mistakes are in `problems` already."""

    document: Document
    sections: dict[str, Any]
    problems: list[Problem]
    warnings: list[str] = field(default_factory=list)

    def attempt(self, resolve: Callable[[], T]) -> T | None:
        """What `resolve` finds; None where it finds mistakes, or looks for a section that is missing."""
        try:
            return resolve()
        except SpecError as error:
            self.collect(error.problems)
        except KeyError:  # the section itself is missing or wrong, and already reported
            pass
        return None

    def collect(self, problems: Iterable[Problem]) -> None:
        self.problems.extend(problems)
