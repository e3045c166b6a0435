"""Questions by the row: a CSV file of operating points."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from simulator.prediction.answering import answered
from simulator.prediction.point import ALIASES, FLAGS, REQUIRED, OperatingPoint
from simulator.prediction.prediction import Prediction
from simulator.spec import Document, Problem, SpecError, check, nearest, plain_scalar, why_unreadable


class TableRow(NamedTuple):
    """A row as fields of an operating point. beyond: cells that no column is named for."""

    fields: dict[str, Any]
    document: Document
    beyond: tuple[str, ...]


def predict_table(path: str | Path) -> list[Prediction]:
    """One prediction per row of a CSV file, in order. A row that cannot be priced says why; the others are unaffected.

    Raises `SpecError` where the file cannot be read, lacks a required column or has two that say the same.
    """
    return [_predict_row(row) for row in table_rows(str(path))]


def table_rows(path: str) -> Iterable[TableRow]:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            header = reader.fieldnames or []
            missing = [name for name in REQUIRED if name not in header and FLAGS.get(name) not in header]
            if missing:
                found = [_missing_column(path, name, header) for name in missing]
                raise SpecError(found[:1] if len(header) <= 1 else found)  # one column: the file is of another kind
            columns = _columns(path, header)
            for raw in reader:
                row = {name: _cell(name, raw[name]) for name in columns if (raw.get(name) or "").strip()}
                row = {ALIASES.get(name, name): value for name, value in row.items()}
                row.setdefault("id", str(reader.line_num - 1))
                beyond: Sequence[str] = raw.get(None) or ()
                yield TableRow(row, Document(path, row, {(): reader.line_num}), tuple(filter(str.strip, beyond)))
    except FileNotFoundError:
        raise SpecError([Problem(path, "", "no such file")]) from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SpecError([Problem(path, "", f"must be a CSV file: {why_unreadable(error)}")]) from None


def _missing_column(path: str, name: str, header: Sequence[str]) -> Problem:
    separator = next((mark for mark in ";\t|" if len(header) == 1 and mark in header[0]), None)
    if separator is not None:
        return Problem(f"{path}:1", name, f"must be a column, columns apart by commas (this file has {separator!r})")
    must = f"must be a column; columns: {', '.join(OperatingPoint.model_fields)}"
    return Problem(f"{path}:1", name, must, "", nearest(name, header))


def _columns(path: str, header: Sequence[str]) -> list[str]:
    """Those of an operating point; others are the user's own."""
    found = [name for name in header if name in {*OperatingPoint.model_fields, *ALIASES}]
    fields = [ALIASES.get(name, name) for name in found]
    twice = next((name for name, field in zip(found, fields, strict=True) if fields.count(field) > 1), None)
    if twice is not None:
        same = [name for name, field in zip(found, fields, strict=True) if field == ALIASES.get(twice, twice)]
        raise SpecError([Problem(f"{path}:1", twice, "must be one column", ", ".join(same))])
    return found


def _cell(name: str, text: str) -> Any:
    """A cell as its field's type: text stays text, lists are numbers between brackets, commas, semicolons or spaces."""
    text = text.strip()
    if name.endswith(("rates_per_position", "acceptance_rates")):
        return tuple(plain_scalar(part) for part in re.split(r"[\s,;\[\]]+", text) if part)
    field = OperatingPoint.model_fields[ALIASES.get(name, name)]
    return text if "str" in str(field.annotation) else _whole(plain_scalar(text))


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _predict_row(row: TableRow) -> Prediction:
    try:
        if row.beyond:
            must = "must be left out: there are more cells than columns; a cell with commas in it is quoted"
            raise SpecError([row.document.problem((), must, ", ".join(row.beyond))])
        return answered(check(OperatingPoint, row.document), row.document)
    except SpecError as error:
        return Prediction(str(row.fields["id"]), "unsupported", "; ".join(str(error).splitlines()))
    except ArithmeticError as error:
        why = f"a number is too large or too small to compute with: {error}"
        return Prediction(str(row.fields["id"]), "unsupported", why)
