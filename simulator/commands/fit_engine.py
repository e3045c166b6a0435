"""`fit-engine`: an engine's constants from runs of one server."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from simulator.commands.flags import AsJson, refuse_idle_counts
from simulator.console import (
    print_notes,
    print_sentence,
    print_table,
    tell,
)
from simulator.number_format import known_format
from simulator.spec import Problem, SpecError

if TYPE_CHECKING:
    from simulator.interchange.detection import Imported
    from simulator.interchange.imported import Settings
    from simulator.questions.server_fit import EngineOfServer
    from simulator.scenario import Scenario


def fit_engine(
    files: Annotated[list[Path], typer.Argument(help="Runs without and with speculation of one server, as for import.")],
    scenario: Annotated[str | None, typer.Option(help="What was served on what; or give the flags below instead.")] = None,
    out: Annotated[Path | None, typer.Option(help="Engine profile to write, such as engine_profiles/vllm_mine.yaml.")] = None,
    format: Annotated[str | None, typer.Option("--as", help="The format, where it is not recognised.")] = None,
    num_speculative_tokens: Annotated[int | None, typer.Option(min=1, max=64, help="γ, where no file holds it.")] = None,
    draft_tokens: Annotated[int | None, typer.Option(min=2, max=1024, help="SGLang's draft tokens, the root counted.")] = None,
    hardware: Annotated[str | None, typer.Option(help="Device.")] = None,
    engine: Annotated[str | None, typer.Option(help="Engine profile to start from.")] = None,
    target: Annotated[str | None, typer.Option(help="Target model, where the files do not hold it.")] = None,
    method: Annotated[str | None, typer.Option(help="How it drafted.")] = None,
    drafter: Annotated[str | None, typer.Option(help="Drafter.")] = None,
    precision: Annotated[str | None, typer.Option(help="Type of the target's weights.")] = None,
    tensor_parallel_size: Annotated[int | None, typer.Option(min=1, max=64, help="Devices that share each layer.")] = None,
    as_json: AsJson = False,
) -> None:
    """Fit an engine's constants to measured runs, say which the runs can tell, and write a new engine profile."""
    from simulator.interchange.detection import read_files
    from simulator.interchange.imported import Settings
    from simulator.questions import server_fit
    from simulator.reports.server_fit import check_profile_path, fit_summary, write_engine_profile

    weights = None if precision is None else known_format(precision, "--precision")
    settings = Settings(hardware, engine, target, drafter, method, weights, tensor_parallel_size)
    given = [name for name, value in asdict(settings).items() if value is not None]
    if scenario is not None and given:
        flag = "--" + given[0].replace("_", "-")
        raise SpecError([Problem(flag, "", "must be left out with --scenario, which holds it")])
    if out is not None:
        check_profile_path(out)
    found = read_files(files, format, num_speculative_tokens, draft_tokens)
    refuse_idle_counts(found, num_speculative_tokens, draft_tokens)
    answer = server_fit.fit_engine(found.runs, _scenario(scenario, found, settings))
    tell(
        lambda: fit_summary(answer),
        lambda console: _print_fit(console, answer),
        as_json=as_json,
        out=out,
        write=lambda path: write_engine_profile(answer, files, path),
        written="Engine profile, for `engine:` of a scenario",
    )


def _print_fit(console: Console, answer: EngineOfServer) -> None:
    from simulator.reports.server_fit import CONSTANTS_HEADER, RUNS_HEADER, fit_sentence, fitted_constant_rows, fitted_run_rows

    print_sentence(console, fit_sentence(answer), "bold")
    console.print()
    print_table(console, CONSTANTS_HEADER, fitted_constant_rows(answer))
    print_table(console, RUNS_HEADER, fitted_run_rows(answer))
    print_notes(console, [], answer.notes)


def _scenario(name: str | None, found: Imported, settings: Settings) -> Scenario:
    """The scenario that was named, or the one that runs and flags make."""
    from simulator.interchange import imported
    from simulator.scenario import load_scenario, scenario_of
    from simulator.spec import parse_yaml

    if name is not None:
        return load_scenario(name)
    return scenario_of(parse_yaml(imported.scenario(found.runs, settings, found.server), "flags"))
