"""`sweep`: a question at every point of a grid."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from simulator.commands.flags import AsJson, OutDir, ScenarioPath
from simulator.console import (
    console_of_stdout,
    err,
    print_json,
    print_notes,
    print_sentence,
    print_table,
    print_written,
    progress_bars,
    written_too,
)
from simulator.spec import Document, Problem, SpecError, check, shown

if TYPE_CHECKING:
    from simulator.simulation import Progress
    from simulator.sweep import Axis, Grid, SweepResult

# Rows shown on a console; the files hold all.
SHOWN_ROWS, SHOWN_FAILURES = 40, 12
# Seconds between two lines of progress where no bar can be drawn.
LINE_EVERY_S = 10.0
NOTHING = "–"
# Exit code of a sweep of which some cells have no answer; 2, a mistake in the input, where none has.
SOME_FAILED = 3
Cell = Callable[[dict[str, Any]], str]


def sweep(
    scenario: ScenarioPath,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUES", help="Values a,b,c or a range: 1..8, 0.5..0.9:0.1, 1..256:x2."),
    ] = None,
    question: Annotated[
        str | None, typer.Option(help="run, predict, break-even or capacity; run where the scenario says nothing.")
    ] = None,
    out: OutDir = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; left out: as many as pay off.")] = None,
    cluster: Annotated[str | None, typer.Option(metavar="ADDRESS", help="A Dask scheduler whose workers compute.")] = None,
    as_json: AsJson = False,
) -> None:
    """A question at every combination of values. With --out each finished cell is kept: stopped or killed, it goes on there.

    Exit code 3: some cells have no answer, and say why; the others have theirs.
    """
    from simulator import sweep as sweeping
    from simulator.scenario import scenario_document
    from simulator.sweep import idle_keys

    grid = _grid(scenario_document(scenario), set_ or [], question)
    if out is not None:
        from simulator.reports.files import prepare_directory

        prepare_directory(out)
    if jobs is not None and cluster is not None:
        raise SpecError([Problem("--jobs", "", "must be left out with --cluster, whose workers compute")])
    try:
        with _progress(len(grid), quiet=as_json) as progress:
            result = sweeping.sweep(grid, out, jobs, cluster, progress)
    except KeyboardInterrupt:
        if out is not None:
            err.print(f"stopped; the cells finished so far are kept in {out}: the same command goes on from there")
        raise
    written: list[Path] = []
    with written_too(out, lambda folder: written.extend(sweeping.write_tables(result, folder))):
        if as_json:
            print_json(_json(result))
        else:
            _print(console_of_stdout(), result, kept=out is not None)
    if written and not as_json:
        columns, rows = sweeping.table_of(result)
        print_written(console_of_stdout(), f"All {len(rows):,} rows of {len(columns)} columns", *written)
    failures = result.failures
    for failure in failures[:SHOWN_FAILURES]:
        settings = ", ".join(f"{key}={shown(value)}" for key, value in failure.first.settings.items())
        err.print(f"  {failure.cells} × failed, first at {settings}: {failure.reason}")
    if len(failures) > SHOWN_FAILURES:
        err.print(f"  and {len(failures) - SHOWN_FAILURES} more reasons: --out FOLDER keeps them, --json prints them")
    for key in idle_keys(result):
        err.print(f"  {key} changes no row: {grid.question} does not depend on it here")
    if failures:
        raise typer.Exit(2 if all(outcome.failed for outcome in result.outcomes) else SOME_FAILED)


def _grid(document: Document, flags: Sequence[str], question: str | None) -> Grid:
    """The grid of the scenario's `sweep:` block and the flags, which replace keys of the block."""
    from simulator.scenario import SweepSpec
    from simulator.sweep import grid_of, keys_of_question, question_of

    if not isinstance(document.data, dict):
        raise SpecError([document.problem((), "must be a mapping of sections", document.data)])
    block = check(SweepSpec, document, ("sweep",)) if document.data.get("sweep") is not None else None
    asked = question_of(question, "--question") if question is not None else None
    if asked is None:
        asked = question_of(block.question if block else "run", document.where(("sweep", "question")))
    named = _read_all(flags)
    given = {key for axis in named for key in axis.keys}
    axes = [axis for axis in _axes_of_block(document) if not given & set(axis.keys)]
    return grid_of(document, asked, [*axes, *named], keys_of_question(asked))


def _read_all(flags: Sequence[str]) -> list[Axis]:
    """Every flag as an axis; the mistakes of all of them are told together."""
    from simulator.sweep import read_axis

    axes: list[Axis] = []
    problems: list[Problem] = []
    for text in flags:
        try:
            axes.append(read_axis(text))
        except SpecError as error:
            problems += error.problems
    if problems:
        raise SpecError(problems)
    return axes


def _axes_of_block(document: Document) -> Iterator[Axis]:
    from simulator.sweep import axis_of

    block = document.data.get("sweep")
    for key, values in (block or {}).get("set", {}).items():
        yield axis_of(str(key), values, document.where(("sweep", "set", key)))


def _print(console: Console, result: SweepResult, kept: bool) -> None:
    """What came of each cell. kept: whether all rows go to files as well."""
    from simulator.sweep import table_of

    print_sentence(console, _headline(result), "bold")
    console.print()
    _, rows = table_of(result)
    sound = [row for row in rows if not row["failed"]]
    keys = _key_columns(result)
    taken = {_SAME.get(name, name) for name, _ in keys}
    shown = [*keys, *(column for column in _COLUMNS[result.grid.question] if column[0] not in taken)]
    cells = [[cell(row) for _, cell in shown] for row in sound[:SHOWN_ROWS]]
    told = [index for index in range(len(shown)) if any(row[index] != NOTHING for row in cells)]
    if cells:
        print_table(console, [shown[index][0] for index in told], [[row[index] for index in told] for row in cells])
    if len(sound) > SHOWN_ROWS:
        more = "" if kept else ": --out FOLDER keeps all, --json prints them"
        console.print(f"{len(sound) - SHOWN_ROWS:,} more rows{more}")
    print_notes(console, _gained_in(sound), _notes(result.grid))


def _gained_in(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What gains are gains in, where that is another thing than the time per output token beside them."""
    metrics = list(dict.fromkeys(row["metric"] for row in rows if row.get("metric")))
    return [] if metrics in ([], ["mean time per output token"]) else [f"Gains and verdicts are about {', '.join(metrics)}."]


def _notes(grid: Grid) -> list[str]:
    """What is doubtful about the scenario before anything of it is varied; nothing where it is no whole one so."""
    from simulator.scenario import scenario_of
    from simulator.validity import standing_notes

    try:
        return [f"the scenario as it stands: {note}" for note in standing_notes(scenario_of(grid.document))]
    except SpecError:
        return []


def _key_columns(result: SweepResult) -> list[tuple[str, Cell]]:
    """The keys that vary, by the shortest end of their names that tells them apart."""
    keys = result.grid.keys
    ends = [key.rpartition(".")[2] for key in keys]
    names = [end if ends.count(end) == 1 else key for key, end in zip(keys, ends, strict=True)]
    return [(_HEADINGS.get(name, name), _plain(key)) for name, key in zip(names, keys, strict=True)]


# A key that varies says what a column of the answer would say again.
_SAME = {"γ set": "γ", "context_len": "context"}
_HEADINGS = {"num_speculative_tokens": "γ set", "tensor_parallel_size": "TP", "draft_tensor_parallel_size": "draft TP"}


def _plain(name: str) -> Cell:
    return lambda row: NOTHING if row.get(name) in (None, "") else str(row[name])


def _number(name: str, scale: float = 1.0) -> Cell:
    def shown(row: dict[str, Any]) -> str:
        from simulator.printed_numbers import significant

        value = row.get(name)
        return NOTHING if value is None else significant(scale * value) if isinstance(value, float) else str(value)

    return shown


def _bounds(name: str) -> Cell:
    def shown(row: dict[str, Any]) -> str:
        from simulator.cost.spread import Estimate
        from simulator.plots.words import interval

        value, low, high = (row.get(each) for each in (name, f"{name}_low", f"{name}_high"))
        return NOTHING if value is None or low is None or high is None else interval(Estimate(value, low, high))

    return shown


def _gamma(row: dict[str, Any]) -> str:
    """γ or a tree; ``off`` where a policy drafts nothing."""
    if row.get("tree"):
        return f"tree {row['tree']}"
    return str(row["gamma"]) if row.get("gamma") else "off" if row.get("policy") else NOTHING


# (heading, cell) beside the keys that vary, by question.
_COLUMNS: dict[str, tuple[tuple[str, Cell], ...]] = {
    "run": (
        ("variant", _plain("variant")), ("gain", _number("gain")), ("80 % interval", _bounds("gain")),
        ("verdict", _plain("verdict")), ("TPOT (ms)", _number("tpot_mean_s", 1e3)), ("TTFT p99 (ms)", _number("ttft_p99_s", 1e3)),
        ("tokens/s", _number("output_tokens_per_s")),
    ),
    "predict": (
        ("method", _plain("method")), ("policy", _plain("policy")), ("γ", _gamma),
        ("batch", _number("batch_size")), ("R", _number("r")),
        ("τ", _number("mean_acceptance_length")),
        ("speedup", _number("speedup")), ("80 % interval", _bounds("speedup")), ("verdict", _plain("verdict")),
        ("α*", _number("break_even_acceptance_rate")),
    ),
    "capacity": (
        ("variant", _plain("variant")),
        ("requests/s", _number("rate_per_s")),
        ("80 % interval", _bounds("rate_per_s")),
        ("gain", _number("gain")),
        ("verdict", _plain("verdict")),
        ("limited by", _plain("limited_by")),
        ("devices", _number("devices")),
    ),
    "break-even": (
        ("method", _plain("method")), ("policy", _plain("policy")), ("γ", _gamma),
        ("batch", _number("batch_size")), ("context", _number("context_tokens")),
        ("α*", _number("break_even_acceptance_rate")), ("τ*", _number("break_even_acceptance_length")),
        ("speedup", _number("speedup")),
    ),
}  # fmt: skip


DEPENDS = "depending on acceptance"


def _headline(result: SweepResult) -> str:
    """How many cells, and how they come out."""
    from collections import Counter

    best = Counter(_verdict(outcome.rows) for outcome in result.outcomes if outcome.rows)
    said = ", ".join(f"{best[name]:,} {name}" for name in ("win", "close", "lose", DEPENDS) if best[name])
    failed = sum(bool(outcome.failed) for outcome in result.outcomes)
    parts = [_cells(len(result.grid))]
    parts += [f"the best of each cell: {said}"] if said else []
    parts += [f"{failed:,} failed"] if failed else []
    parts += [f"{result.resumed:,} kept from before"] if result.resumed else []
    return "; ".join(parts) + "."


def _cells(number: int) -> str:
    return f"{number:,} cell{'s' if number > 1 else ''}"


def _verdict(rows: Sequence[dict[str, Any]]) -> str:
    """The verdict of the row that gains most; where acceptance is left open and the ends of the measured band disagree, that."""
    known = [row for row in rows if row.get("verdict")]
    ends = [[row for row in known if end not in str(row.get("variant"))] for end in ("(high end)", "(low end)")]
    best = {max(end, key=lambda row: row.get("gain") or row.get("speedup") or 0.0)["verdict"] for end in ends if end}
    return str(best.pop()) if len(best) == 1 else DEPENDS if best else ""


def _json(result: SweepResult) -> dict[str, Any]:
    cells = [{"set": cell.settings, "rows": outcome.rows, "failed": outcome.failed or None} for cell, outcome in result]
    return {"schema_version": 1, "question": result.grid.question, "keys": list(result.grid.keys), "cells": cells}


@contextmanager
def _progress(cells: int, quiet: bool) -> Iterator[Progress]:
    """A bar with the time left; where none can be drawn, a line every ten seconds."""
    if quiet or err.is_terminal:
        with progress_bars(quiet=quiet, doing="sweeping", things="cells") as bars:
            yield bars
        return
    began, last, first = time.monotonic(), time.monotonic(), -1
    err.print(f"sweeping {_cells(cells)}")

    def line(_: str, done: int, total: int) -> None:
        nonlocal last, first
        first = done if first < 0 else first
        now = time.monotonic()
        if now - last >= LINE_EVERY_S and done > first:
            last = now
            left_s = (now - began) / (done - first) * (total - done)
            err.print(f"  {done:,} of {total:,} cells, about {left_s:,.0f} s left")

    yield line
