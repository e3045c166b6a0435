"""Questions by the row: a CSV file of operating points."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from simulator.prediction.answering import answered
from simulator.prediction.point import ALIASES, FLAGS, REQUIRED, TABLE_FIELDS, OperatingPoint
from simulator.prediction.prediction import Prediction
from simulator.spec import Document, Problem, SpecError, check, nearest, plain_scalar, why_unreadable


def predict_table(path: str | Path) -> list[Prediction]:
    """One prediction per row of a CSV file, in order. A row that cannot be priced says why; the others are unaffected.

    Raises `SpecError` where the file cannot be read or lacks a required column.
    """
    return [_predict_row(row, document) for row, document in table_rows(str(path))]


def table_rows(path: str) -> Iterable[tuple[dict[str, Any], Document]]:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            header = reader.fieldnames or []
            missing = [name for name in REQUIRED if name not in header and FLAGS.get(name) not in header]
            if missing:
                found = [_missing_column(path, name, header) for name in missing]
                raise SpecError(found[:1] if len(header) <= 1 else found)  # one column: the file is of another kind
            for raw in reader:
                row = {name: _cell(name, raw[name]) for name in _columns(header) if (raw.get(name) or "").strip()}
                for written, field in ALIASES.items():
                    if written in row:
                        row.setdefault(field, row.pop(written))
                row.setdefault("id", str(reader.line_num - 1))
                yield row, Document(path, row, {(): reader.line_num})
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


def _columns(header: Iterable[str]) -> list[str]:
    known = {*TABLE_FIELDS, *ALIASES}
    return [name for name in header if name in known]


def _cell(name: str, text: str) -> Any:
    """A cell as its field's type: text stays text, lists are numbers between brackets, commas, semicolons or spaces."""
    text = text.strip()
    if name.endswith(("rates_per_position", "acceptance_rates")):
        return tuple(plain_scalar(part) for part in re.split(r"[\s,;\[\]]+", text) if part)
    field = OperatingPoint.model_fields[ALIASES.get(name, name)]
    return text if "str" in str(field.annotation) else _whole(plain_scalar(text))


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _predict_row(row: dict[str, Any], document: Document) -> Prediction:
    try:
        return answered(check(OperatingPoint, document), document)
    except SpecError as error:
        return Prediction(str(row.get("id", "")), "unsupported", "; ".join(str(error).splitlines()))
    except ArithmeticError as error:
        return Prediction(str(row.get("id", "")), "unsupported", f"a number is too large or too small to compute with: {error}")
