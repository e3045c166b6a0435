"""`validate`: predicted against measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    print_written,
    progress_bars,
    require_writable,
    table_json,
    write_output,
    written_too,
)
from simulator.spec import Problem, SpecError

if TYPE_CHECKING:
    from simulator.questions.accuracy import Scored
    from simulator.reports.accuracy import Table


def validate(
    published: Annotated[bool, typer.Option("--published", help="Against the shipped table of published runs.")] = False,
    unseen: Annotated[
        bool,
        typer.Option("--unseen", help="Against runs that nobody had seen while the model was built: first score and today's."),
    ] = False,
    local: Annotated[bool, typer.Option("--local", help="Against real decoding on this machine (extra: calibrate).")] = False,
    leave_one_family_out: Annotated[
        bool, typer.Option("--leave-one-family-out", help="With constants refitted without each run's family (minutes).")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="published, unseen: CSV for the predictions, as of predict --table. local: folder for page and figure."
        ),
    ] = None,
    diff: Annotated[Path | None, typer.Option(help="An older such file: which runs moved, and whether for the better.")] = None,
    page: Annotated[Path | None, typer.Option(help="Markdown page whose computed part is written anew (minutes).")] = None,
    freeze: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="unseen: predict the set that waits for it, once and for good, as this version."),
    ] = None,
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
    kinds = {"published": published, "unseen": unseen, "local": local}
    if sum(kinds.values()) != 1:
        flags = ", ".join(f"--{name}" for name in kinds)
        raise SpecError([Problem(flags, "", "exactly one must be given: it names what to compare with")])
    chosen = {"minutes": minutes, "max_new_tokens": max_new_tokens, "prompts_per_kind": prompts_per_kind}
    given = {name: value for name, value in chosen.items() if value is not None}
    if refit and (idle := [flag for flag, value in {"--out": out, "--diff": diff, "--page": page}.items() if value is not None]):
        raise SpecError([Problem(idle[0], "", "must be left out with --refit, which predicts nothing")])
    _refuse_idle(
        next(name for name, is_it in kinds.items() if is_it),
        {
            ("published",): {"--leave-one-family-out": leave_one_family_out, "--refit": refit},
            ("unseen",): {"--freeze": freeze},
            ("published", "unseen"): {"--diff": diff, "--page": page},
            ("local",): {"--pairs": pairs, **{"--" + name.replace("_", "-"): True for name in given}},
        },
    )
    if out is not None and not local:
        require_writable(out, "--out")
    if local:
        _validate_locally(pairs or [], given, out, as_json)
    elif unseen:
        _validate_unseen(freeze, out, diff, page, as_json)
    else:
        _validate_published(leave_one_family_out, out, diff, page, refit, as_json)


def _refuse_idle(kind: str, flags: dict[tuple[str, ...], dict[str, object]]) -> None:
    """Raises `SpecError` for a flag that says nothing about this kind of comparison."""
    for kinds, values in flags.items():
        for flag, value in values.items():
            if value and kind not in kinds:
                raise SpecError([Problem(flag, "", f"goes with {' or '.join(f'--{each}' for each in kinds)} only")])


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
    parts = [*tables.accuracy_tables(scored, None)] if old is None else [tables.moved_table(accuracy.moved(scored, old))]
    _tell(scored, [tables.accuracy_sentence(scored)], parts, out, as_json)


def _validate_unseen(freeze: str | None, out: Path | None, diff: Path | None, page: Path | None, as_json: bool) -> None:
    from simulator.questions import accuracy, unseen_runs
    from simulator.reports import accuracy as tables
    from simulator.reports import unseen_runs as views
    from simulator.validate import published as validation

    old = None if diff is None else accuracy.read_speedups(diff)
    if freeze is not None:
        err.print(f"Written, once and for good: {validation.freeze_next(freeze)}")
    first, now = unseen_runs.first_scored(), unseen_runs.scored_now()
    if page is not None:
        validation.write_unseen(page)
    parts = (
        [*views.unseen_tables(first, now), *views.later_tables()]
        if old is None
        else [tables.moved_table(accuracy.moved(now, old))]
    )
    _tell(now, [*views.unseen_sentences(first, now), *views.later_sentences()], parts, out, as_json)


def _tell(scored: Sequence[Scored], sentences: Sequence[str], parts: Sequence[Table], out: Path | None, as_json: bool) -> None:
    """Predictions to a file where one is named, the rest to the console or as JSON."""
    from simulator.validate import published as validation

    with written_too(out, lambda path: write_output(path, validation.table(scored))):
        if as_json:
            print_json({"schema_version": 1, "summary": " ".join(sentences), "tables": [table_json(*part) for part in parts]})
            return
        console = console_of_stdout()
        for sentence in sentences:
            print_sentence(console, sentence, "bold")
        console.print()
        print_titled_tables(console, parts)


def _validate_locally(pairs: Sequence[str], given: dict[str, Any], out: Path | None, as_json: bool) -> None:
    from simulator.reports import local_validation as views
    from simulator.reports.files import prepare_directory
    from simulator.validate.local import LocalOrder, validate_locally

    order = LocalOrder(tuple(pairs), **given)
    if out is not None:
        prepare_directory(out)
    with progress_bars(quiet=as_json, doing="running", things="steps") as progress:
        found = validate_locally(order, progress)
    console = console_of_stdout()
    with written_too(out, lambda folder: views.write_local_validation(found, folder)):
        if as_json:
            print_json(views.local_summary(found))
        else:
            style = {"holds": "bold green", "fails": "bold red"}.get(found.verdict, "bold yellow")
            print_verdict(console, views.local_sentences(found), style)
            print_titled_tables(console, views.local_tables(found))
            print_notes(console, [], views.local_notes(found))
    if out is not None and not as_json:
        print_written(console, "Page, numbers and figure", out)
    if found.verdict == "fails":
        raise typer.Exit(1)
