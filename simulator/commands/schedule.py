"""`schedule`: γ by batch as the engines' own settings, and whether it is worth them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from simulator.commands.flags import AsJson, OutDir, ScenarioPath
from simulator.console import (
    print_notes,
    print_sentence,
    print_snippets,
    print_titled_tables,
    print_verdict,
    progress_bars,
    tell,
)

if TYPE_CHECKING:
    from simulator.questions.schedule import ScheduleAnswer


def schedule(scenario: ScenarioPath, out: OutDir = None, as_json: AsJson = False) -> None:
    """The best method and its γ over batch and context, as vLLM, SGLang and TensorRT-LLM take it; and what it gains here."""
    from simulator.questions.schedule import schedule as answered
    from simulator.reports.files import prepare_directory, write_schedule
    from simulator.reports.schedule import schedule_summary
    from simulator.scenario import load_scenario

    loaded = load_scenario(scenario)
    if out is not None:
        prepare_directory(out)
    with progress_bars(quiet=as_json, things="runs") as progress:
        answer = answered(loaded, progress=progress)
    tell(
        lambda: schedule_summary(answer),
        lambda console: _print_schedule(console, answer),
        as_json=as_json,
        out=out,
        write=lambda folder: write_schedule(answer, folder),
        written="Report, table and settings",
    )


def _print_schedule(console: Console, answer: ScheduleAnswer) -> None:
    from simulator.reports.schedule import schedule_notes, schedule_sentences, schedule_snippets, schedule_tables

    print_verdict(console, schedule_sentences(answer), "bold" if answer.off else "bold green")
    print_titled_tables(console, schedule_tables(answer))
    reasons: dict[str, list[str]] = {}
    for engine, snippets, reason in schedule_snippets(answer):
        print_snippets(console, snippets)
        if reason:
            reasons.setdefault(reason, []).append(engine)
    for reason, engines in reasons.items():
        print_sentence(console, f"No setting for {', '.join(engines)}: {reason}.", "dim")
    console.print()
    print_notes(console, schedule_notes(answer), answer.remarks)
