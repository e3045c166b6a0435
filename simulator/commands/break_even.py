"""`break-even`: the acceptance that speculation needs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Console

from simulator.commands.flags import AsJson, OutDir, ScenarioPath
from simulator.console import (
    print_notes,
    print_sentence,
    print_titled_tables,
    tell,
)
from simulator.spec import SpecError

if TYPE_CHECKING:
    from simulator.questions.break_even import BreakEven
    from simulator.questions.method_map import MethodMap


def break_even(scenario: ScenarioPath, out: OutDir = None, as_json: AsJson = False) -> None:
    """The acceptance that speculation needs, against batch, for γ = 1..8 and trees; and the best by batch and context."""
    from simulator.questions import break_even as question
    from simulator.questions.method_map import method_map
    from simulator.reports.files import prepare_directory, write_break_even
    from simulator.reports.method_map import method_map_summary
    from simulator.reports.summary import break_even_summary
    from simulator.scenario import load_scenario

    whole = load_scenario(scenario)
    methods = method_map(whole) if whole.alternatives else None
    loaded = whole.alone() if methods is None else replace(whole, alternatives=())
    if not loaded.deployment.speculative:
        raise SpecError([loaded.document.problem(("speculation",), "must be given: break-even is about a method")])
    if out is not None:
        prepare_directory(out)
    answer = question.break_even(loaded)
    best = {} if methods is None else {"best_method": method_map_summary(methods)}
    tell(
        lambda: {**break_even_summary(answer, methods), **best},
        lambda console: _print_break_even(console, answer, methods),
        as_json=as_json,
        out=out,
        write=lambda folder: write_break_even(answer, folder, methods),
        written="Report, table and figures",
    )


def _print_break_even(console: Console, answer: BreakEven, methods: MethodMap | None) -> None:
    from simulator.reports.method_map import method_map_caption, method_map_sentence, method_map_table
    from simulator.reports.tables import break_even_notes, break_even_sentence, break_even_tables

    if methods is not None:
        print_sentence(console, method_map_sentence(methods), "bold")
        console.print()
        print_titled_tables(console, [(method_map_caption(methods), *method_map_table(methods))])
    print_sentence(console, break_even_sentence(answer, methods), "bold")
    console.print()
    print_titled_tables(console, break_even_tables(answer))
    print_notes(console, break_even_notes(answer), answer.warnings)
