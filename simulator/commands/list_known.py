"""`list`: what is known by name."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from simulator.commands.flags import AsJson
from simulator.console import console_of_stdout, print_json, print_table
from simulator.spec import Problem, SpecError, nearest


def list_known(
    kind: Annotated[str | None, typer.Argument(help="hardware, engine, model, acceptance, workload or scenario.")] = None,
    as_json: AsJson = False,
) -> None:
    """Known hardware, models, drafters, engines, acceptance and workload profiles, scenarios."""
    from simulator import resources
    from simulator.reports.known import known as known_of

    if kind is not None and kind not in resources.KINDS:
        raise SpecError(
            [Problem("KIND", "", f"must be one of {', '.join(resources.KINDS)}", repr(kind), nearest(kind, resources.KINDS))]
        )
    known = {name: known_of(name) for name in ([kind] if kind else resources.KINDS)}
    if as_json:
        print_json({"schema_version": 1, **known})
        return
    console = console_of_stdout()
    for name, entries in known.items():
        if entries:
            console.print(Text(name, style="bold"))
            print_table(console, tuple(entries[0]), [tuple(str(value) for value in entry.values()) for entry in entries])
