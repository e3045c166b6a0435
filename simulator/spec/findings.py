"""Pydantic's findings in the words of a user."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

from simulator.spec.document import Location

_NUMBER_WITH_UNIT = re.compile(r"^\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*([A-Za-zµ%/]+)\s*$")
_PREFIXES = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "m": 1e-3, "u": 1e-6, "µ": 1e-6, "n": 1e-9}
_UNITS = ("", "B", "b", "s", "W", "Hz", "B/s", "FLOPS", "FLOP/s", "flops", "FLOPs")


def is_of_type(item: Any) -> bool:
    """Whether a finding says only that the value is not of one form."""
    return str(item["type"]).endswith("_type") or item["type"] in ("int_from_float", "int_parsing", "float_parsing")


def describe(item: Any, kind: Any, location: Location) -> tuple[str, object, Iterable[str]]:
    """(what it must be, what was got, valid names) for one pydantic finding."""
    code, context, got = item["type"], item.get("ctx", {}), item["input"]
    if code == "missing":
        return "must be given", "", ()
    if code == "extra_forbidden":
        names = _field_names(kind, location[:-1])
        return "unknown key" + (f"; known here: {', '.join(sorted(set(names)))}" if names else ""), "", names
    if code in ("literal_error", "enum"):
        names = re.findall(r"'([^']*)'", context["expected"])
        return f"must be one of {', '.join(names)}" if names else f"must be {context['expected']}", got, names
    if code in ("union_tag_invalid", "union_tag_not_found"):
        return "must be " + _tags(context), got, ()
    bounds = {
        "greater_than": ("above", "gt"),
        "greater_than_equal": ("at least", "ge"),
        "less_than": ("below", "lt"),
        "less_than_equal": ("at most", "le"),
    }
    if code in bounds:
        word, name = bounds[code]
        return f"must be {word} {_bound(context[name])}", got, ()
    if code in ("float_type", "int_type", "float_parsing", "int_parsing", "int_from_float", "decimal_type"):
        noun = "a whole number" if code.startswith("int") else "a number"
        return f"must be {noun}{_unit_hint(got)}", got, ()
    words = {
        "string_type": "must be text",
        "bool_type": "must be true or false",
        "bool_parsing": "must be true or false",
        "tuple_type": "must be a list",
        "list_type": "must be a list",
        "dict_type": "must be a mapping",
        "model_type": "must be a mapping",
        "model_attributes_type": "must be a mapping",
        "finite_number": "must be a finite number",
        "none_required": "must be left out",
    }
    if code == "string_type" and isinstance(got, dict):
        return "must be text: a name, or the path of a file that holds such keys", got, ()
    if code in words:
        return words[code], got, ()
    if code == "too_short":
        return f"must have at least {_entries(context['min_length'])}", got, ()
    if code == "too_long":
        return f"must have at most {_entries(context['max_length'])}", got, ()
    if code == "value_error":
        return str(context["error"]), "", ()
    return "must be valid: " + item["msg"], got, ()


def _bound(value: float) -> str:
    """Without an exponent while it is of a size that people write out."""
    return f"{value:,.0f}" if 1e5 <= value < 1e13 and value == int(value) else f"{value:g}"


def _entries(number: int) -> str:
    return f"{number} entr{'y' if number == 1 else 'ies'}"


def _tags(context: Any) -> str:
    return " or ".join(re.findall(r"'([^']*)'", context.get("expected_tags", ""))) or "of a known form"


def _unit_hint(got: object) -> str:
    """``80GB`` → the plain number to write instead."""
    match = _NUMBER_WITH_UNIT.match(got) if isinstance(got, str) else None
    if not match:
        return ""
    number, unit = match.groups()
    try:
        value = float(number)
    except ValueError:
        return ""
    if unit == "%":
        return f" without unit: write {value / 100:g}"
    for prefix, factor in {"": 1.0, **_PREFIXES}.items():
        if unit.startswith(prefix) and unit[len(prefix) :] in _UNITS:
            return f" in SI units without suffix: write {value * factor:g}"
        if unit.startswith(prefix + "i") and unit[len(prefix) + 1 :] in _UNITS and prefix in "KMGTP" and prefix:
            return f" in SI units without suffix: write {value * 1024 ** ('KMGTP'.index(prefix) + 1):.0f}"
    return " in SI units without suffix"


def _field_names(kind: Any, location: Location) -> list[str]:
    """Names of the fields of the model that `location` leads to, through unions, tuples and dicts."""
    models = models_in(kind)
    for item in location:
        inner: list[type[BaseModel]] = []
        for model in models:
            if isinstance(item, str) and item in model.model_fields:
                inner += models_in(model.model_fields[item].annotation)
            elif item == model.__name__:
                inner.append(model)
        if inner:
            models = inner
        elif isinstance(item, str) and any(item == model.__name__ for model in models):
            models = [model for model in models if model.__name__ == item]
    return [name for model in models for name in model.model_fields]


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models that a field's annotation may hold, through unions, tuples and mappings."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    found = []
    for argument in getattr(annotation, "__args__", ()):
        if argument is not Ellipsis:
            found += models_in(argument)
    return found
