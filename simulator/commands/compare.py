"""`compare`: one thing of a scenario otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from simulator.commands.flags import AsJson, OutDir, ScenarioPath
from simulator.console import (
    print_notes,
    print_sentence,
    print_table,
    progress_bars,
    tell,
)

if TYPE_CHECKING:
    from simulator.questions.comparison import ComparedScenarios


def compare(
    scenario: ScenarioPath,
    by: Annotated[str, typer.Option(help="method, draft-tp, quantize or hardware.")],
    values: Annotated[str, typer.Option(help="What to try, comma-separated; left out, the usual ones.")] = "",
    out: OutDir = None,
    as_json: AsJson = False,
) -> None:
    """Methods, the draft's devices, types of weights or hardware side by side on the same requests, with the memory they take."""
    from simulator.questions import comparison
    from simulator.reports.comparison import comparison_summary
    from simulator.scenario import load_scenario

    loaded = load_scenario(scenario).alone()
    if out is not None:
        from simulator.reports.files import prepare_directory, write_comparison  # with every figure: slow to load

        prepare_directory(out)
    asked = [value.strip() for value in values.split(",") if value.strip()]
    with progress_bars(quiet=as_json, doing="comparing", things="alternatives") as progress:
        answer = comparison.compare(loaded, by, asked, progress)
    tell(
        lambda: comparison_summary(answer),
        lambda console: _print_comparison(console, answer),
        as_json=as_json,
        out=out,
        write=lambda folder: write_comparison(answer, folder),
        written="Report and figure",
    )


def _print_comparison(console: Console, answer: ComparedScenarios) -> None:
    from simulator.reports.comparison import comparison_notes, comparison_sentence, comparison_table, memory_table

    print_sentence(console, comparison_sentence(answer), "bold")
    console.print()
    print_table(console, *comparison_table(answer))
    header, memory = memory_table(answer)
    if memory:
        print_table(console, header, memory)
    print_notes(console, [], comparison_notes(answer))
