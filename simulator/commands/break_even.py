"""`break-even`: the acceptance that speculation needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from simulator.commands.flags import AsJson, OutDir, ScenarioPath
from simulator.console import console_of_stdout, print_json, print_notes, print_sentence, print_titled_tables
from simulator.spec import SpecError

if TYPE_CHECKING:
    from simulator.questions.break_even import BreakEven


def break_even(scenario: ScenarioPath, out: OutDir = None, as_json: AsJson = False) -> None:
    """The acceptance that speculation needs, against batch, for γ = 1..8 and trees; and the best by batch and context."""
    from simulator.questions import break_even as question
    from simulator.reports.files import write_break_even
    from simulator.reports.summary import break_even_summary
    from simulator.scenario import load_scenario

    loaded = load_scenario(scenario).alone()
    if not loaded.deployment.speculative:
        raise SpecError([loaded.document.problem(("speculation",), "must be given: break-even is about a method")])
    answer = question.break_even(loaded)
    if out is not None:
        write_break_even(answer, out)
    if as_json:
        print_json(break_even_summary(answer))
        return
    _print_break_even(console_of_stdout(), answer)
    if out is not None:
        console_of_stdout().print(f"Report, table and figures: {out}")


def _print_break_even(console: Console, answer: BreakEven) -> None:
    from simulator.reports.tables import break_even_sentence, break_even_tables

    print_sentence(console, break_even_sentence(answer), "bold")
    console.print()
    print_titled_tables(console, break_even_tables(answer))
    print_notes(console, [], answer.warnings)
