"""`validate`: predicted against measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from simulator.commands.flags import AsJson
from simulator.console import (
    console_of_stdout,
    err,
    print_json,
    print_notes,
    print_sentence,
    print_titled_tables,
    print_verdict,
    progress_bars,
    table_json,
    write_output,
)
from simulator.spec import Problem, SpecError


def validate(
    published: Annotated[bool, typer.Option("--published", help="Against the shipped table of published runs.")] = False,
    local: Annotated[bool, typer.Option("--local", help="Against real decoding on this machine (extra: calibrate).")] = False,
    leave_one_family_out: Annotated[
        bool, typer.Option("--leave-one-family-out", help="With constants refitted without each run's family (minutes).")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="published: CSV for the predictions, as of predict --table. local: folder for page and figure."),
    ] = None,
    diff: Annotated[Path | None, typer.Option(help="An older such file: which runs moved, and whether for the better.")] = None,
    page: Annotated[Path | None, typer.Option(help="Markdown page whose computed part is written anew (minutes).")] = None,
    refit: Annotated[bool, typer.Option("--refit", help="Fit the constants anew and write them over the shipped ones.")] = False,
    pairs: Annotated[
        list[str] | None,
        typer.Option(help="local: TARGET+DRAFT@γ, or byte_pair or smollm2 for its standard drafts; may be repeated."),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0, max=1440, help="local: measure about this long, but at least two blocks.")
    ] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=4, max=4096, help="local: output tokens per prompt.")] = None,
    prompts_per_kind: Annotated[
        int | None, typer.Option(min=1, max=12, help="local: prompts of each kind of text, which also make up the batch.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predicted against measured: errors by family or term, signs, noise, and what a change moved."""
    if published == local:
        raise SpecError([Problem("--published, --local", "", "exactly one must be given: it names what to compare with")])
    theirs = {"--leave-one-family-out": leave_one_family_out, "--diff": diff, "--page": page, "--refit": refit}
    chosen = {"minutes": minutes, "max_new_tokens": max_new_tokens, "prompts_per_kind": prompts_per_kind}
    given = {name: value for name, value in chosen.items() if value is not None}
    ours = {"--pairs": pairs, **{"--" + name.replace("_", "-"): True for name in given}}
    for flag, value in (theirs if local else ours).items():
        if value:
            raise SpecError([Problem(flag, "", f"goes with --{'published' if local else 'local'} only")])
    if local:
        _validate_locally(pairs or [], given, out, as_json)
    else:
        _validate_published(leave_one_family_out, out, diff, page, refit, as_json)


def _validate_published(
    leave_one_family_out: bool, out: Path | None, diff: Path | None, page: Path | None, refit: bool, as_json: bool
) -> None:
    from simulator.questions import accuracy
    from simulator.reports import accuracy as tables
    from simulator.validate import published as validation

    if refit:
        with progress_bars(quiet=as_json, doing="leaving out", things="families") as progress:
            changed = validation.refit(progress)
        err.print("\n".join([*changed, f"{len(changed)} constants changed"]))
        return
    old = None if diff is None else accuracy.read_speedups(diff)
    with progress_bars(quiet=as_json, doing="leaving out", things="families") as progress:
        if page is not None:
            scored = validation.write_page(page, progress)
        else:
            scored = accuracy.left_out(progress) if leave_one_family_out else accuracy.as_shipped()
    if out is not None:
        write_output(out, validation.table(scored))
    parts = [*tables.accuracy_tables(scored, None)] if old is None else [tables.moved_table(accuracy.moved(scored, old))]
    if as_json:
        print_json({"schema_version": 1, "summary": tables.accuracy_sentence(scored), "tables": [table_json(*p) for p in parts]})
        return
    console = console_of_stdout()
    print_sentence(console, tables.accuracy_sentence(scored), "bold")
    console.print()
    print_titled_tables(console, parts)


def _validate_locally(pairs: Sequence[str], given: dict[str, Any], out: Path | None, as_json: bool) -> None:
    from simulator import reports
    from simulator.reports import local_validation as views
    from simulator.validate.local import LocalOrder, validate_locally

    order = LocalOrder(tuple(pairs), **given)
    if out is not None:
        reports.prepare_directory(out)
    with progress_bars(quiet=as_json, doing="running", things="steps") as progress:
        found = validate_locally(order, progress)
    if out is not None:
        views.write_local_validation(found, out)
    if as_json:
        print_json(views.local_summary(found))
    else:
        console = console_of_stdout()
        style = {"holds": "bold green", "fails": "bold red"}.get(found.verdict, "bold yellow")
        print_verdict(console, views.local_sentences(found), style)
        print_titled_tables(console, views.local_tables(found))
        print_notes(console, [], views.local_notes(found))
        if out is not None:
            console.print(f"Page, numbers and figure: {out}")
    if found.verdict == "fails":
        raise typer.Exit(1)
