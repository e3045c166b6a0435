"""`export`: a scenario's speculation in its engine's words."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from simulator.commands.flags import AsJson, ScenarioPath
from simulator.console import err, print_json
from simulator.spec import SpecError


def export(
    scenario: ScenarioPath,
    engine: Annotated[
        str | None, typer.Option(help="vllm, sglang, trtllm or llamacpp; the scenario's own where left out.")
    ] = None,
    gamma: Annotated[int | None, typer.Option(min=1, max=64, help="γ of a scenario that compares several.")] = None,
    as_json: AsJson = False,
) -> None:
    """A scenario's speculation in the words its engine takes: flags, JSON or YAML to paste."""
    from simulator import reports
    from simulator.scenario import load_scenario

    loaded = load_scenario(scenario)
    if not loaded.deployment.speculative:
        raise SpecError([loaded.document.problem(("speculation",), "must be given: export is about a method")])
    found = reports.exported(loaded, engine, gamma)
    if as_json:
        print_json({"schema_version": 1, "snippets": [asdict(snippet) for snippet in found]})
        return
    for snippet in found:
        if snippet.file:
            sys.stdout.write(f"# {snippet.file}\n")
        sys.stdout.write(snippet.text.rstrip() + "\n")
        for note in snippet.notes:
            err.print(Text(note))
