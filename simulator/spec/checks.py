"""Spec, the base of all that comes from a file, and the checks that make one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from simulator.spec.document import Document, Location, dotted
from simulator.spec.findings import describe, is_of_type
from simulator.spec.problem import Problem, SpecError, nearest

T = TypeVar("T")


class Spec(BaseModel):
    """Base of all that comes from a file: frozen, no unknown key, no silent conversion, no NaN or infinity."""

    # Validators are built when first needed: a part of another spec is built as part of it, and most are not needed in a run.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with some fields changed. What was computed from the old ones (`cached_property`) does not come along."""
        copied = super().model_copy(update=update, deep=deep)
        for name in copied.__dict__.keys() - type(copied).model_fields.keys():
            del copied.__dict__[name]
        return copied


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
        must, got, names = describe(item, kind, item["loc"])
        if item["type"] == "too_short" and any(
            len(other) > len(location) and other[: len(location)] == location for other, _ in located
        ):
            continue  # entries that are wrong are not counted
        if is_of_type(item):
            # Every form of a union complains. What is wrong inside the one that fits says more than that others do not fit.
            if any(other[: len(location)] == location and not (other == location and is_of_type(i)) for other, i in located):
                continue
            forms = dict.fromkeys(describe(i, kind, i["loc"])[0] for other, i in located if other == location)
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
