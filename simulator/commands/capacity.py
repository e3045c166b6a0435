"""`capacity`: the rate within the service level, and the fleet for a demand."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from simulator.commands.flags import AsJson, OutDir, ScenarioPath
from simulator.console import (
    VERDICT_STYLE,
    err,
    print_notes,
    print_snippets,
    print_table,
    print_verdict,
    progress_bars,
    tell,
)
from simulator.spec import Document, Problem, SpecError, check, plain_scalar

if TYPE_CHECKING:
    from simulator.planning import PlanningSpec
    from simulator.questions.capacity import CapacityAnswer


def capacity(
    scenario: ScenarioPath,
    demand: Annotated[
        str | None,
        typer.Option(metavar="RATE", help="Requests per second to serve, or 3x: so many times the scenario's own rate."),
    ] = None,
    head_room: Annotated[str | None, typer.Option(help="Share of the sustainable rate to keep free (default 0.2).")] = None,
    price_per_gpu_hour: Annotated[str | None, typer.Option(help="What a device costs an hour, in any currency.")] = None,
    repetitions: Annotated[
        int | None, typer.Option(min=1, max=100, help="Independent runs at each rate, at most (default: 4 to 16, as are quick).")
    ] = None,
    out: OutDir = None,
    as_json: AsJson = False,
) -> None:
    """The highest request rate within the service level, with and without speculation, and the devices for a demand."""
    from simulator.questions.capacity import capacity as answered
    from simulator.reports.capacity import before_the_search, capacity_summary
    from simulator.reports.files import prepare_directory, write_capacity
    from simulator.scenario import load_scenario

    loaded = load_scenario(scenario)
    planning = _planning(loaded.file.planning, demand, {"head_room": head_room, "price_per_gpu_hour": price_per_gpu_hour})
    if out is not None:
        prepare_directory(out)
    for note in before_the_search(loaded):
        err.print(Text(f"Note: {note}"))
    with progress_bars(quiet=as_json, things="rates") as progress:
        answer = answered(loaded, planning, repetitions=repetitions, progress=progress)
    tell(
        lambda: capacity_summary(answer),
        lambda console: _print_capacity(console, answer),
        as_json=as_json,
        out=out,
        write=lambda folder: write_capacity(answer, folder),
        written="Report and data",
    )


def _print_capacity(console: Console, answer: CapacityAnswer) -> None:
    from simulator.reports.capacity import (
        capacity_doubts,
        capacity_notes,
        capacity_sentences,
        capacity_tables,
        settings_server,
    )
    from simulator.reports.exports import exports_of

    style = "bold red" if answer.best is None else VERDICT_STYLE.get(answer.best.verdict or "", "bold")
    print_verdict(console, capacity_sentences(answer), style)
    for header, rows in capacity_tables(answer):
        print_table(console, header, rows)
    server = settings_server(answer)
    if server is not None:
        found, said = exports_of(server)
        print_snippets(console, found[0].snippets)
        lacking = f"No setting for {found[0].engine}: {found[0].reason}."
        why = lacking if found[0].reason else said and f"{said[:1].upper()}{said[1:]}."
        minded = [f"Mind: {note}." for snippet in found[0].snippets for note in snippet.notes]
        print_notes(console, [*([why] if why else []), *minded], [])
        console.print()
    print_notes(console, capacity_notes(answer), (*capacity_doubts(answer), *answer.warnings))


def _planning(stated: PlanningSpec, demand: str | None, flags: dict[str, str | None]) -> PlanningSpec:
    """The scenario's planning with flags in place of its keys."""
    data: dict[str, Any] = stated.model_dump(exclude_none=True)
    data |= {name: plain_scalar(text) for name, text in flags.items() if text is not None}
    if demand is not None:
        found = re.fullmatch(r"(.*?)(\s*[x×])?", demand.strip())
        assert found is not None
        number = plain_scalar(found[1])
        if not isinstance(number, int | float) or number <= 0:
            must = "must be a rate in requests per second, or a factor such as 3x of the scenario's own"
            raise SpecError([Problem("--demand", "", must, repr(demand))])
        data = {name: value for name, value in data.items() if not name.startswith("demand_")}
        data["demand_scale" if found[2] else "demand_per_s"] = number
    return check(type(stated), _Flags("", data, {}))


class _Flags(Document):
    """A document whose keys are flags."""

    def where(self, location: tuple[str | int, ...]) -> str:
        name = str(location[0]) if location else ""
        return "--demand" if name.startswith("demand_") else "--" + name.replace("_", "-")
