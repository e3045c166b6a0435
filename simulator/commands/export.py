"""`export`: a scenario's speculation in its engine's words."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.commands.flags import AsJson, ScenarioPath
from simulator.console import err, print_json, print_sentence
from simulator.spec import Problem, SpecError

if TYPE_CHECKING:
    from simulator.interchange.engine_settings import Snippet


def export(
    scenario: ScenarioPath,
    engine: Annotated[
        str | None, typer.Option(help="vllm, sglang, trtllm or llamacpp; the scenario's own where left out.")
    ] = None,
    gamma: Annotated[int | None, typer.Option(min=1, max=64, help="γ of a scenario that compares several.")] = None,
    step_costs: Annotated[
        bool,
        typer.Option("--step-costs", help="Instead: predicted seconds of a step by sequences and rows, for SGLang's DSpark."),
    ] = False,
    context_len: Annotated[
        int | None, typer.Option(min=1, help="step-costs: tokens of context; the scenario's mean where left out.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """A scenario's speculation in the words its engine takes: flags, JSON or YAML to paste."""
    from simulator.reports.exports import exported
    from simulator.reports.step_costs import exported_step_costs
    from simulator.scenario import load_scenario

    loaded = load_scenario(scenario).alone()
    if context_len is not None and not step_costs:
        raise SpecError([Problem("--context-len", "", "goes with --step-costs only", str(context_len))])
    if step_costs and engine not in (None, "sglang"):
        raise SpecError([Problem("--engine", "", "must be left out with --step-costs: the table is SGLang's", repr(engine))])
    if not step_costs and not loaded.deployment.speculative:
        raise SpecError([loaded.document.problem(("speculation",), "must be given: export is about a method")])
    if step_costs:
        found: tuple[Snippet, ...] = (exported_step_costs(loaded, gamma, context_len),)
    else:
        found = exported(loaded, engine, gamma)
    if as_json:
        print_json({"schema_version": 1, "snippets": [asdict(snippet) for snippet in found]})
        return
    for note in loaded.warnings:
        print_sentence(err, f"Note: {note}")
    for snippet in found:
        if snippet.file and not step_costs:
            sys.stdout.write(f"# {snippet.file}\n")
        sys.stdout.write(snippet.text.rstrip() + "\n")
        for note in snippet.notes:
            print_sentence(err, f"Mind: {note}.")
