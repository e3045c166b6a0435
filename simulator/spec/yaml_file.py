"""YAML by the 1.2 core schema (so ``4.8e12`` is a number, ``on`` is text and ``12:30`` is text).

Repeated keys and tags are refused, and the line of every key is remembered.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from simulator.spec.document import Document, Location, dotted
from simulator.spec.problem import Problem, SpecError

_INT = re.compile(r"^[-+]?[0-9]+$")
_FLOAT = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")
_SPECIAL_FLOATS = {".inf": math.inf, "+.inf": math.inf, "-.inf": -math.inf, ".nan": math.nan}
_MAX_DEPTH = 32
# Aliases of aliases can stand for more values than memory holds.
_MAX_VALUES = 500_000


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Leaves it to `plain_scalar` what an unquoted scalar is."""

    def resolve(self, kind: type[yaml.Node], value: str, implicit: Any) -> str:  # noqa: ARG002
        return "tag:yaml.org,2002:str"


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
    try:
        node = yaml.compose(text, Loader=_Loader)
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
