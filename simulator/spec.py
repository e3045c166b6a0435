"""What comes from a file: strict, frozen, and every mistake reported with its line.

`load_yaml` reads YAML by the 1.2 core schema (so ``4.8e12`` is a number, ``on`` is text and ``12:30`` is text),
refuses repeated keys and tags, and remembers the line of every key. `check` turns such a document into a `Spec` or
raises one `SpecError` that holds *all* its problems.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

Location = tuple[str | int, ...]
T = TypeVar("T")

_NUMBER_WITH_UNIT = re.compile(r"^\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*([A-Za-zµ%/]+)\s*$")
_PREFIXES = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "m": 1e-3, "u": 1e-6, "µ": 1e-6, "n": 1e-9}
_UNITS = ("", "B", "b", "s", "W", "Hz", "B/s", "FLOPS", "FLOP/s", "flops", "FLOPs")
_INT = re.compile(r"^[-+]?[0-9]+$")
_FLOAT = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")
_SPECIAL_FLOATS = {".inf": math.inf, "+.inf": math.inf, "-.inf": -math.inf, ".nan": math.nan}
_MAX_DEPTH = 32
# Aliases of aliases can stand for more values than memory holds.
_MAX_VALUES = 500_000


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


class Spec(BaseModel):
    """Base of all that comes from a file: frozen, no unknown key, no silent conversion, no NaN or infinity."""

    # Validators are built when first needed: a part of another spec is built as part of it, and most are not needed in a run.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)


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

    def problem(self, location: Location, must: str, got: object = "", names: Iterable[str] = ()) -> Problem:
        """A problem at `location`; the nearest of `names` to `got` is suggested."""
        return Problem(self.where(location), dotted(location) if self.source else "", must, shown(got), nearest(got, names))


def dotted(location: Location) -> str:
    """``("a", "b", 0)`` → ``a.b[0]``."""
    text = ""
    for item in location:
        text += f"[{item}]" if isinstance(item, int) else f".{item}" if text else str(item)
    return text


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


def nearest(value: object, names: Iterable[str]) -> str:
    """The valid name most like `value`, or ""."""
    known = {name.casefold(): name for name in names}
    matches = difflib.get_close_matches(str(value).casefold(), known, n=1, cutoff=0.6)
    return known[matches[0]] if matches else ""


# ---------------------------------------------------------------------------------------------------------------- YAML


def load_yaml(path: str | Path) -> Document:
    """Reads a YAML file. Raises `SpecError` where it cannot be read, is no YAML, repeats a key or holds a tag."""
    source = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SpecError([Problem(source, "", "no such file")]) from None
    except OSError as error:
        raise SpecError([Problem(source, "", f"cannot be read: {(error.strerror or str(error)).lower()}")]) from None
    except UnicodeDecodeError:
        raise SpecError([Problem(source, "", "must be text in UTF-8")]) from None
    return parse_yaml(text, source)


def parse_yaml(text: str, source: str) -> Document:
    """As `load_yaml`, from text."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        node = yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}" if mark else source
        raise SpecError([Problem(where, "", f"must be YAML: {error.problem}")]) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SpecError([Problem(source, "", f"must be YAML: {' '.join(str(error).split())}")]) from None
    reader = _Reader(source)
    data = reader.value(node, ()) if node is not None else None
    if reader.problems:
        raise SpecError(reader.problems)
    return Document(source, data, reader.lines)


class _Reader:
    """Turns YAML nodes into dicts, tuples and scalars, keeping lines and problems."""

    def __init__(self, source: str):
        self.source = source
        self.lines: dict[Location, int] = {(): 1}
        self.problems: list[Problem] = []
        self.values = 0

    def value(self, node: yaml.Node, location: Location) -> Any:
        line = node.start_mark.line + 1
        self.lines.setdefault(location, line)
        self.values += 1
        if self.values > _MAX_VALUES:
            raise SpecError([Problem(f"{self.source}:{line}", "", f"must hold at most {_MAX_VALUES} values, aliases expanded")])
        if len(location) > _MAX_DEPTH:
            self.problems.append(
                Problem(f"{self.source}:{line}", dotted(location[:4]), f"must be nested at most {_MAX_DEPTH} deep")
            )
            return None
        if not node.tag.startswith("tag:yaml.org,2002:") or node.tag.startswith("tag:yaml.org,2002:python"):
            self.problems.append(Problem(f"{self.source}:{line}", dotted(location), "must have no tag", node.tag))
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, location)
        if isinstance(node, yaml.SequenceNode):
            return tuple(self.value(child, (*location, index)) for index, child in enumerate(node.value))
        style = getattr(node, "style", None)
        return node.value if style in ("'", '"', "|", ">") else plain_scalar(node.value)

    def _mapping(self, node: yaml.MappingNode, location: Location) -> dict[str | int, Any]:
        result: dict[str | int, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            where = f"{self.source}:{line}"
            key = (
                plain_scalar(key_node.value)
                if isinstance(key_node, yaml.ScalarNode) and not key_node.style
                else getattr(key_node, "value", None)
            )
            if not isinstance(key, (str, int)) or isinstance(key, bool):
                key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is None:
                self.problems.append(Problem(where, dotted(location), "keys must be plain names"))
                continue
            inner = (*location, key)
            if key in result:
                self.problems.append(Problem(where, dotted(inner), f"must stand only once (first on line {self.lines[inner]})"))
                continue
            self.lines[inner] = line
            result[key] = self.value(value_node, inner)
        return result


def plain_scalar(text: str) -> Any:
    """An unquoted scalar by the YAML 1.2 core schema."""
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "True", "TRUE"):
        return True
    if text in ("false", "False", "FALSE"):
        return False
    if _INT.match(text):
        return int(text) if len(text) < 400 else float(text)
    if _FLOAT.match(text):
        return float(text)
    return _SPECIAL_FLOATS.get(text.lower(), text)


def unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """For `json.loads` (object_pairs_hook): an object whose keys all differ. Raises ValueError where one stands twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)}: must stand only once")
    return found


# -------------------------------------------------------------------------------------------------------------- checks


def check(kind: type[T], document: Document, location: Location = ()) -> T:
    """The part of `document` at `location` as a `kind`. Raises `SpecError` with every problem."""
    data = document.data
    for item in location:
        data = data[item]
    try:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind.model_validate(data)
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        raise SpecError(problems_of(error, kind, document, location)) from None


def check_sections(kind: type[BaseModel], document: Document) -> tuple[dict[str, Any], list[Problem]]:
    """Each top-level field of `kind` validated on its own: the valid ones, and every problem of the others.

    Lets a caller go on checking what is sound, so that one bad key does not hide the next mistake.
    """
    try:
        whole = check(kind, document)
        return {name: getattr(whole, name) for name in kind.model_fields}, []
    except SpecError as error:
        problems = list(error.problems)
    if not isinstance(document.data, dict):
        return {}, problems
    sections = {}
    for name, info in kind.model_fields.items():
        if name not in document.data:
            if not info.is_required():
                sections[name] = info.get_default(call_default_factory=True)
            continue
        try:
            annotation: Any = info.annotation if not info.metadata else _annotated(info.annotation, info.metadata)
            sections[name] = check(annotation, document, (name,))
        except SpecError:
            pass
    return sections, problems


def _annotated(annotation: Any, metadata: Sequence[Any]) -> Any:
    from typing import Annotated

    for item in metadata:
        annotation = Annotated[annotation, item]
    return annotation


def problems_of(error: ValidationError, kind: Any, document: Document, prefix: Location) -> list[Problem]:
    """Pydantic's findings in our words, each with its line."""
    found: dict[tuple[Location, str], Problem] = {}
    located = [
        ((*prefix, *_real_location(item["loc"], _at(document.data, prefix), item["type"])), item)
        for item in error.errors(include_url=False)
    ]
    for location, item in located:
        must, got, names = _describe(item, kind, item["loc"])
        if item["type"] == "too_short" and any(
            len(other) > len(location) and other[: len(location)] == location for other, _ in located
        ):
            continue  # entries that are wrong are not counted
        if _is_of_type(item):
            # Every form of a union complains. What is wrong inside the one that fits says more than that others do not fit.
            if any(other[: len(location)] == location and not (other == location and _is_of_type(i)) for other, i in located):
                continue
            forms = dict.fromkeys(_describe(i, kind, i["loc"])[0] for other, i in located if other == location)
            must = " or ".join(form.removeprefix("must be ") if index else form for index, form in enumerate(forms))
        if item["type"] == "missing":
            key = location[-1]
            parent = location[:-1]
            problem = Problem(
                document.where(parent if document.source else location), dotted(location) if document.source else "", must
            )
            siblings = _at(document.data, parent)
            if isinstance(siblings, dict) and key in siblings:
                continue
        else:
            problem = document.problem(location, must, got, names)
            if item["type"] == "extra_forbidden":
                problem = Problem(problem.where, problem.key, problem.must, "", nearest(location[-1], names))
        found.setdefault((location, must), problem)
    return list(found.values())


def _is_of_type(item: Any) -> bool:
    """Whether a finding says only that the value is not of one form."""
    return str(item["type"]).endswith("_type") or item["type"] in ("int_from_float", "int_parsing", "float_parsing")


def _at(data: Any, location: Location) -> Any:
    for item in location:
        try:
            data = data[item]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def _real_location(location: Location, data: Any, kind: str) -> Location:
    """Pydantic names the chosen member of a union in the location; only keys of the document are kept."""
    kept: list[str | int] = []
    for index, item in enumerate(location):
        last = index == len(location) - 1
        inside = (isinstance(data, dict) and item in data) or (
            isinstance(data, (tuple, list)) and isinstance(item, int) and item < len(data)
        )
        if inside:
            data = data[item]
            kept.append(item)
        elif last and kind in ("missing", "extra_forbidden"):
            kept.append(item)
    return tuple(kept)


def _describe(item: Any, kind: Any, location: Location) -> tuple[str, object, Iterable[str]]:
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
        return f"must be {word} {context[name]:g}", got, ()
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
    if code in words:
        return words[code], got, ()
    if code == "too_short":
        return f"must have at least {_entries(context['min_length'])}", got, ()
    if code == "too_long":
        return f"must have at most {_entries(context['max_length'])}", got, ()
    if code == "value_error":
        return str(context["error"]), "", ()
    return "must be valid: " + item["msg"], got, ()


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
