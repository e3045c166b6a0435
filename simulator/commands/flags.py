"""Flags that several verbs share, and an operating point from flags."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from simulator.spec import Document, Problem, SpecError, check, plain_scalar

if TYPE_CHECKING:
    from simulator.prediction import OperatingPoint

T = TypeVar("T")

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else.")]
ScenarioPath = Annotated[str, typer.Argument(help="Path of a scenario YAML, or the name of a shipped one.")]


def path_of(text: str) -> Path:
    """A path that was named: an empty text would mean the working folder."""
    if not text.strip():
        raise typer.BadParameter("must be a name, not an empty text")
    return Path(text)


OutDir = Annotated[
    Path | None, typer.Option("--out", parser=path_of, metavar="FOLDER", help="Folder for the report, figures and records.")
]


def at_point(given: dict[str, Any], answer: Callable[[OperatingPoint, Document], T]) -> T:
    """The answer at the operating point that flags describe; what cannot be answered is a user's mistake."""
    from simulator import prediction

    document = _flags_document(given, prediction.FLAGS)
    point = check(prediction.OperatingPoint, document)
    try:
        return answer(point, document)
    except prediction.UnknownNameError as unknown:
        raise unknown.error from None
    except prediction.UnsupportedError as reason:
        raise SpecError([Problem("", "", str(reason))]) from None


def _flags_document(given: dict[str, Any], flags: dict[str, str]) -> Document:
    """Flags as a document of an operating point, every value read as YAML reads it."""
    fields = {flag: field for field, flag in flags.items()}
    data: dict[str, Any] = {"batch": 1}
    for flag, text in given.items():
        field = fields.get(flag, flag)
        if field.endswith(("rates_per_position", "acceptance_rates")):
            data[field] = tuple(plain_scalar(part.strip()) for part in text.split(",") if part.strip())
        else:
            data[field] = text if field in _TEXT_FIELDS else plain_scalar(text)
    return _FlagDocument("", data, {})


_TEXT_FIELDS = (
    "hardware",
    "target_model",
    "method",
    "draft_model",
    "draft_params",
    "draft_hardware",
    "drafter_weights",
    "engine",
    "attention_backend",
    "graphs",
    "precision",
    "dataset",
    "tree_shape",
)


class _FlagDocument(Document):
    """A document whose keys are flags: the target model is `--target`."""

    def where(self, location: tuple[str | int, ...]) -> str:
        from simulator.prediction import FLAGS

        name = str(location[0]) if location else ""
        return "--" + FLAGS.get(name, name).replace("_", "-") if name else ""
