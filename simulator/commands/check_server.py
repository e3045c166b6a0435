"""`check-server`: predicted against measured for imported runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from simulator.commands.flags import AsJson, refuse_idle_counts
from simulator.console import console_of_stdout, print_json, print_notes, print_sentence, print_table, progress_bars


def check_server(
    files: Annotated[list[Path], typer.Argument(help="One run without and one with speculation, or either, as for import.")],
    scenario: Annotated[str, typer.Option(help="What was served on what: a scenario; its traffic and acceptance are the runs'.")],
    format: Annotated[str | None, typer.Option("--as", help="The format, where it is not recognised.")] = None,
    num_speculative_tokens: Annotated[int | None, typer.Option(min=1, max=64, help="γ, where the file does not hold it.")] = None,
    draft_tokens: Annotated[int | None, typer.Option(min=2, max=1024, help="SGLang's draft tokens, the root counted.")] = None,
    as_json: AsJson = False,
) -> None:
    """Predicted against measured for imported runs; what is doubtful about the benchmark; how to compare timing alone."""
    from simulator.interchange.detection import read_files
    from simulator.questions import server_check
    from simulator.reports.server_check import CHECK_HEADER, check_rows, check_summary, measured_sentence, settings_of_check
    from simulator.scenario import load_scenario

    loaded = load_scenario(scenario)
    found = read_files(files, format, num_speculative_tokens, draft_tokens)
    refuse_idle_counts(found, num_speculative_tokens, draft_tokens)
    with progress_bars(quiet=as_json) as progress:
        answer = server_check.check_server(found.runs, loaded, progress)
    if as_json:
        print_json(check_summary(answer))
        return
    console = console_of_stdout()
    if measured := measured_sentence(answer):
        print_sentence(console, measured, "bold")
    print_sentence(console, f"{answer.verdict[0].upper()}{answer.verdict[1:]}.", "bold")
    console.print()
    print_table(console, CHECK_HEADER, check_rows(answer))
    print_notes(console, [], answer.doubts)
    if settings := settings_of_check(answer):
        print_sentence(console, f"These settings, for {settings[0].engine}:", "dim")
        for snippet in settings:
            sys.stdout.write(snippet.text.rstrip() + "\n")
    if answer.recipe is not None:
        print_sentence(console, "To compare timing alone, hold the server to the measured acceptance:", "dim")
        sys.stdout.write(answer.recipe.text + "\n")
