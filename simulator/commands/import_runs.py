"""`import`: what an engine measured."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from simulator.commands.flags import AsJson, refuse_idle_counts
from simulator.console import console_of_stdout, print_json, print_notes, print_sentence, print_table, print_written
from simulator.number_format import known_format
from simulator.spec import Problem, SpecError, shown


def import_runs(
    files: Annotated[list[Path], typer.Argument(help="Benchmark results, logs or metrics pages; or a folder of a sweep.")],
    format: Annotated[str | None, typer.Option("--as", help="The format, where it is not recognised.")] = None,
    num_speculative_tokens: Annotated[int | None, typer.Option(min=1, max=64, help="γ, where the file does not hold it.")] = None,
    draft_tokens: Annotated[int | None, typer.Option(min=2, max=1024, help="SGLang's draft tokens, the root counted.")] = None,
    method: Annotated[str | None, typer.Option(help="How it drafted.")] = None,
    target: Annotated[str | None, typer.Option(help="Target model, where the file does not hold it.")] = None,
    drafter: Annotated[str | None, typer.Option(help="Drafter.")] = None,
    hardware: Annotated[str | None, typer.Option(help="Device.")] = None,
    engine: Annotated[str | None, typer.Option(help="Engine profile.")] = None,
    precision: Annotated[str | None, typer.Option(help="Type of the target's weights.")] = None,
    tensor_parallel_size: Annotated[int | None, typer.Option(min=1, max=64, help="Devices that share each layer.")] = None,
    sampler: Annotated[str | None, typer.Option(help="Such as 'temperature 0.7'.")] = None,
    prompts: Annotated[str | None, typer.Option(help="What was asked, such as MT-Bench.")] = None,
    workload: Annotated[str | None, typer.Option(help="Traffic, where no run holds any: a workload profile or a trace.")] = None,
    rate_per_s: Annotated[float | None, typer.Option(min=1e-6, help="Requests per second of --workload.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for measured.yaml, acceptance.yaml, scenario.yaml.")] = None,
    as_json: AsJson = False,
) -> None:
    """Read what an engine measured: acceptance, latencies and traffic, each number with its field and conversion."""
    from simulator.interchange.detection import read_files
    from simulator.interchange.imported import Settings
    from simulator.reports.imports import HEADER as IMPORT_HEADER
    from simulator.reports.imports import import_rows, import_sentence, import_summary, settings_rows, write_import
    from simulator.reports.step_costs import step_costs_sentence, step_costs_table

    if rate_per_s is not None and workload is None:
        raise SpecError([Problem("--rate-per-s", "", "goes with --workload: it would change nothing", f"{rate_per_s:g}")])
    found = read_files(files, format, num_speculative_tokens, draft_tokens)
    refuse_idle_counts(found, num_speculative_tokens, draft_tokens)
    weights = None if precision is None else known_format(precision, "--precision")
    settings = Settings(
        hardware, engine, target, drafter, method, weights, tensor_parallel_size, sampler, prompts, workload, rate_per_s
    )
    idle = [name for name, value in asdict(settings).items() if value is not None and out is None]
    if idle:
        flag = "--" + idle[0].replace("_", "-")
        raise SpecError(
            [
                Problem(
                    flag,
                    "",
                    "goes with --out: it says something of the files that are written",
                    shown(getattr(settings, idle[0])),
                )
            ]
        )
    written, left_out = write_import(found, settings, out) if out is not None else ((), [])
    if as_json:
        kept = {} if out is None else {"written": [str(path) for path in written], "left_out": left_out}
        print_json({**import_summary(found), **kept})
        return
    console = console_of_stdout()
    for each in found.runs:
        print_sentence(console, import_sentence(each), "bold")
        print_table(console, IMPORT_HEADER, import_rows(each))
        print_notes(console, [], each.notes)
    if found.server is not None:
        print_sentence(console, f"Settings of a {found.server.engine} server", "bold")
        print_table(console, ("key", "value"), settings_rows(found.server))
        print_notes(console, [], found.server.notes)
    for table in found.step_costs:
        print_sentence(console, step_costs_sentence(table), "bold")
        print_table(console, *step_costs_table(table))
    for path in written:
        print_written(console, "written", path)
    print_notes(console, [f"not written: {each}" for each in left_out], [])
