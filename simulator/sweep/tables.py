"""A sweep's answers as one table, CSV and Parquet: cells in the order of the grid, the same bytes whoever computed them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.reports.summary import csv_cell, csv_text
from simulator.spec import Problem, SpecError
from simulator.whole_file import whole_file, write_whole

if TYPE_CHECKING:
    from simulator.sweep.sweep import SweepResult

Table = tuple[tuple[str, ...], list[dict[str, Any]]]


def table_of(result: SweepResult) -> Table:
    """(columns, rows): what was set, the answer's columns, why a cell failed. Settings that are lists become JSON."""
    rows = []
    for cell, outcome in result:
        settings = {key: _flat(value) for key, value in cell.settings.items()}
        for row in outcome.rows or ({},):
            rows.append({**settings, **row, "failed": outcome.failed})
    return columns_of(result), rows


def columns_of(result: SweepResult) -> tuple[str, ...]:
    """The keys that vary, the columns of the answers in their order, and `failed`."""
    answers = (name for _, outcome in result for row in outcome.rows for name in row)
    return tuple(dict.fromkeys((*result.grid.keys, *answers, "failed")))


def _flat(value: object) -> object:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (list, tuple, dict)) else value


def write_tables(result: SweepResult, folder: Path) -> tuple[Path, ...]:
    """cells.csv and, where pyarrow is installed, cells.parquet, each whole or not there. Raises `SpecError`."""
    columns, rows = table_of(result)
    paths = [folder / "cells.csv"]
    try:
        write_whole(paths[0], csv_text(rows, columns))
        if find_spec("pyarrow") is not None:
            paths.append(folder / "cells.parquet")
            _write_parquet(paths[1], columns, rows)
    except OSError as error:
        raise SpecError([Problem("--out", "", f"cannot be written: {error.strerror}", str(folder))]) from None
    return tuple(paths)


def _write_parquet(path: Path, columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    import pyarrow
    import pyarrow.parquet

    arrays = {name: pyarrow.array(_column([row.get(name) for row in rows])) for name in columns}
    with whole_file(path) as file:
        pyarrow.parquet.write_table(pyarrow.table(arrays), file)


def _column(values: list[Any]) -> list[Any]:
    """Values of one type: whole numbers beside others become floats, and everything beside text becomes text."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) <= 1:
        return values
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values]
    return [None if value is None else csv_cell(value) for value in values]
