"""Alternatives: other ways to draft for the same service, beside the scenario's own; and names that tell them apart.

Each is the scenario with its `speculation`, `acceptance` and `parallel.draft_tensor_parallel_size` replaced, so that requests,
devices, limits and random streams are the same.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from simulator.cost.deployment import Deployment
from simulator.spec import Document, Location, Problem

SECTION = "alternatives"
DRAFT_SIZE = "draft_tensor_parallel_size"
_REPLACED = ("speculation", "acceptance")


def alternative_document(document: Document, index: int) -> Document:
    """The scenario as alternative `index` has it, with the lines of what it replaces."""
    entry = document.data[SECTION][index]
    kept = {key: value for key, value in document.data.items() if key not in (SECTION, *_REPLACED)}
    data: dict[Any, Any] = kept | {key: entry[key] for key in _REPLACED if key in entry}
    parallel = {key: value for key, value in data.get("parallel", {}).items() if key != DRAFT_SIZE}
    data["parallel"] = parallel | ({DRAFT_SIZE: entry[DRAFT_SIZE]} if DRAFT_SIZE in entry else {})
    lines = {place: line for place, line in document.lines.items() if not place or place[0] not in (SECTION, *_REPLACED)}
    for place, line in document.lines.items():
        if place[:2] == (SECTION, index):
            lines[_as_own(place[2:])] = line
    return Document(document.source, data, lines)


def _as_own(place: Location) -> Location:
    return ("parallel", *place) if place[:1] == (DRAFT_SIZE,) else place


def named_as_written(problems: Iterable[Problem], index: int) -> list[Problem]:
    """Problems of an alternative's document with the keys that the file has."""
    prefix = f"{SECTION}[{index}]."
    own = (*_REPLACED, f"parallel.{DRAFT_SIZE}")
    return [
        replace(problem, key=prefix + problem.key.removeprefix("parallel.")) if problem.key.startswith(own) else problem
        for problem in problems
    ]


def names_of(deployments: Sequence[Deployment]) -> tuple[str, ...]:
    """A name for the drafting of each: the method, and as much beside it as tells them apart."""
    details: tuple[Callable[[Deployment], str], ...] = (
        lambda each: "" if each.drafter is None else re.sub(r"\S+/", "", each.drafter.name),
        lambda each: f"draft TP {each.draft_tensor_parallel_size}",
        lambda each: f"draft in {each.drafter_weights}",
    )
    names = [each.method_name for each in deployments]
    for detail in details:
        counts = Counter(names)
        if len(counts) == len(names):
            return tuple(names)
        said = [detail(each) for each in deployments]
        differ = {name for name in counts if len({more for other, more in zip(names, said, strict=True) if other == name}) > 1}
        names = [f"{name} ({more})" if name in differ and more else name for name, more in zip(names, said, strict=True)]
    counts = Counter(names)
    return tuple(f"{name} #{index}" if counts[name] > 1 else name for index, name in enumerate(names, start=1))
