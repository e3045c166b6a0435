"""`run`: simulate a scenario."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
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
)


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
    from simulator.reports.variants import run_table
    from simulator.reports.verdict import answer, headline
    from simulator.scenario import load_scenario
    from simulator.simulation import simulate

    loaded = load_scenario(scenario)
    if out is not None:
        from simulator.reports.files import prepare_directory, write_run  # with every figure: slow to load

        prepare_directory(out)
    if timeline is not None:
        require_writable(timeline, "--timeline")
    with progress_bars(quiet=as_json) as progress:
        result = simulate(loaded, progress, readable)
    if out is not None:
        with err.status(Text(f"writing {out}")):
            write_run(result, out)
    if timeline is not None:
        from simulator.reports.timeline import timeline as perfetto_timeline

        write_output(timeline, perfetto_timeline(result), "--timeline")
    if as_json:
        from simulator.reports.summary import run_summary

        print_json(run_summary(result))
        return
    console = console_of_stdout()
    print_verdict(console, headline(result), VERDICT_STYLE.get(answer(result), "bold"))
    header, rows = run_table(result, console.width)
    print_table(console, header, rows)
    print_notes(console, [result.plain.summary.note], result.warnings)
    if out is not None:
        print_written(console, "Report, figures and records", out)
    if timeline is not None:
        print_written(console, "Timeline, to open in ui.perfetto.dev", timeline)
