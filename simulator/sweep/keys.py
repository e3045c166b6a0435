"""Which keys a scenario knows, and setting one in a document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel

from simulator.scenario import ScenarioFile
from simulator.spec import Problem, models_in, nearest

# What a question is asked at, beside the scenario.
QUESTION_KEYS = ("batch", "context_len")


@cache
def known_keys() -> tuple[str, ...]:
    """Every key that a scenario may hold, sections and what is below them, with dots between."""
    kept = (key for key in _keys_below(ScenarioFile, ()) if not key.startswith(("sweep", "alternatives.")))
    return tuple(dict.fromkeys(kept))


def _keys_below(model: type[BaseModel], above: tuple[type[BaseModel], ...]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield name
        for inner in models_in(field.annotation):
            if inner not in above:
                yield from (f"{name}.{key}" for key in _keys_below(inner, (*above, model)))


def key_problem(key: str, where: str, question_keys: tuple[str, ...]) -> Problem | None:
    """What is wrong with a key, None where a scenario knows it. Keys of a mapping (such as `hardware.flops_fraction.bf16`) are
    known by what holds them."""
    known = known_keys()
    parts = key.split(".")
    if key in known or key in question_keys or any(".".join(parts[:end]) in _mappings() for end in range(1, len(parts))):
        return None
    if key in QUESTION_KEYS:
        return Problem(where, key, "goes with --question predict only")
    same_end = [name for name in known if name.rpartition(".")[2] == parts[-1]]
    close = same_end[0] if same_end else nearest(key, (*known, *question_keys))
    return Problem(where, key, "unknown key of a scenario", "", close)


@cache
def _mappings() -> frozenset[str]:
    """Keys that hold a mapping of free names."""
    return frozenset(_mappings_below(ScenarioFile, ()))


def _mappings_below(model: type[BaseModel], above: tuple[type[BaseModel], ...]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        if "dict[" in str(field.annotation):
            yield name
        for inner in models_in(field.annotation):
            if inner not in above:
                yield from (f"{name}.{key}" for key in _mappings_below(inner, (*above, model)))


def with_value(data: Mapping[str | int, Any], key: str, value: object) -> dict[str | int, Any]:
    """The data with one key set, sections made where they are missing; None takes the key out. A device given by its name
    becomes the base of what is overridden.

    >>> with_value({"hardware": "h100_sxm"}, "hardware.memory_bandwidth_fraction", 0.8)
    {'hardware': {'base': 'h100_sxm', 'memory_bandwidth_fraction': 0.8}}
    """
    name, _, rest = key.partition(".")
    if rest:
        inner = data.get(name, {})
        if name == "hardware" and isinstance(inner, str):
            inner = {"base": inner}
        value = with_value(inner if isinstance(inner, Mapping) else {}, rest, value)
    changed = {each: held for each, held in data.items() if each != name or value is not None}
    return changed if value is None else {**changed, name: value}
