"""`run`: simulate a scenario."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from simulator.commands.flags import AsJson, OutDir, ScenarioPath
from simulator.console import (
    VERDICT_STYLE,
    console_of_stdout,
    err,
    print_json,
    print_notes,
    print_table,
    print_verdict,
    print_written,
    progress_bars,
    require_writable,
    write_output,
    written_too,
)

if TYPE_CHECKING:
    from simulator.simulation import SimulationResult


def run(
    scenario: ScenarioPath,
    out: OutDir = None,
    timeline: Annotated[Path | None, typer.Option(help="JSON file that Perfetto (ui.perfetto.dev) shows, step by step.")] = None,
    readable: Annotated[
        bool, typer.Option("--readable", help="Serve by the readable engine, an event a step: slower, same answer.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Simulate a scenario with and without speculation on the same random streams. Verdict first."""
    from simulator.scenario import load_scenario
    from simulator.simulation import simulate

    loaded = load_scenario(scenario)
    if out is not None:
        from simulator.reports.files import prepare_directory  # with every figure: slow to load

        prepare_directory(out)
    if timeline is not None:
        require_writable(timeline, "--timeline")
    with progress_bars(quiet=as_json) as progress:
        result = simulate(loaded, progress, readable)
    console = console_of_stdout()
    with (
        written_too(out, lambda folder: _write(result, folder)),
        written_too(timeline, lambda file: _write_timeline(result, file)),
    ):
        if as_json:
            from simulator.reports.summary import run_summary

            print_json(run_summary(result))
        else:
            _print_run(console, result)
    if out is not None and not as_json:
        print_written(console, "Report, figures and records", out)
    if timeline is not None and not as_json:
        print_written(console, "Timeline, to open in ui.perfetto.dev", timeline)


def _write(result: SimulationResult, folder: Path) -> None:
    from simulator.reports.files import write_run

    with err.status(Text(f"writing {folder}")):
        write_run(result, folder)


def _write_timeline(result: SimulationResult, path: Path) -> None:
    from simulator.reports.timeline import timeline

    write_output(path, timeline(result), "--timeline")


def _print_run(console: Console, result: SimulationResult) -> None:
    from simulator.reports.variants import run_table
    from simulator.reports.verdict import answer, headline

    print_verdict(console, headline(result), VERDICT_STYLE.get(answer(result), "bold"))
    print_table(console, *run_table(result, console.width))
    print_notes(console, [result.plain.summary.note], result.warnings)
