"""`python -m simulator VERB`: arguments, printing and exit codes; nothing else.

Results go to stdout, talk and progress to stderr. Exit codes: 0 done, 1 a required answer is "no", 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import signal
import sys
from os.path import basename

# As the program itself: Ctrl-C while the libraries load ends it without a traceback; `main` hands it to Python again.
if __name__ == "__main__" or basename(sys.argv[0]) == "specsim":
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import json
import os
import re
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from pydantic import Field
from rich.console import Console
from rich.table import Table
from rich.text import Text

from simulator.calibrate.command import calibrate
from simulator.spec import Document, Problem, Spec, SpecError, check, nearest, plain_scalar
from simulator.whole_file import write_whole

if TYPE_CHECKING:
    from simulator.draft_tree import Tree
    from simulator.prediction import OperatingPoint, Prediction
    from simulator.questions.break_even import BreakEven
    from simulator.scenario import Scenario
    from simulator.simulation import Progress

T = TypeVar("T")
app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)
err = Console(stderr=True, highlight=False, soft_wrap=True)

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else.")]
ScenarioPath = Annotated[str, typer.Argument(help="Path of a scenario YAML, or the name of a shipped one.")]


def _path(text: str) -> Path:
    """A path that was named: an empty text would mean the working folder."""
    if not text.strip():
        raise typer.BadParameter("must be a name, not an empty text")
    return Path(text)


OutDir = Annotated[
    Path | None, typer.Option("--out", parser=_path, metavar="FOLDER", help="Folder for the report, figures and records.")
]
# The class of all mistakes in flags and arguments; typer exports only one of its children.
USAGE_ERROR: type[Any] = typer.BadParameter.__bases__[0]
VERDICT_STYLE = {"win": "bold green", "lose": "bold red", "close": "bold yellow"}


@app.callback()
def specsim() -> None:
    """Does speculative decoding win on your hardware, models and traffic? By how much, and with which settings?"""


# ----------------------------------------------------------------------------------------------------------------- verbs


@app.command()
def run(
    scenario: ScenarioPath,
    out: OutDir = None,
    timeline: Annotated[Path | None, typer.Option(help="JSON file that Perfetto (ui.perfetto.dev) shows, step by step.")] = None,
    readable: Annotated[
        bool, typer.Option("--readable", help="Serve by the readable engine, an event a step: slower, same answer.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Simulate a scenario with and without speculation on the same random streams. Verdict first."""
    from simulator import reports
    from simulator.scenario import load_scenario
    from simulator.simulation import simulate

    loaded = load_scenario(scenario)
    if out is not None:
        reports.prepare_directory(out)
    if timeline is not None:
        _require_writable(timeline, "--timeline")
    with _progress(quiet=as_json) as progress:
        result = simulate(loaded, progress, readable)
    if out is not None:
        with err.status(f"writing {out}"):
            reports.write_run(result, out)
    if timeline is not None:
        _write_atomically(timeline, reports.timeline(result), "--timeline")
    if as_json:
        _print_json(reports.run_summary(result))
        return
    console = _console()
    verdict, *reasons = reports.headline(result)
    _print_sentence(console, verdict, VERDICT_STYLE.get(reports.answer(result), "bold"))
    for reason in reasons:
        _print_sentence(console, reason, indent="  ")
    console.print()
    header, rows = reports.run_table(result)
    _print_table(console, header, rows)
    _print_notes(console, [result.plain.summary.note], result.warnings)
    if out is not None:
        console.print(f"Report, figures and records: {out}")
    if timeline is not None:
        console.print(f"Timeline, to open in ui.perfetto.dev: {timeline}")


@app.command()
def predict(
    ctx: typer.Context,
    hardware: Annotated[str | None, typer.Option(help="Device: id, name or path.")] = None,
    target: Annotated[str | None, typer.Option(help="Target model.")] = None,
    method: Annotated[
        str | None,
        typer.Option(help="draft_model, eagle, eagle3, medusa, hydra, mtp, ngram, suffix, block, layer_skip, sparse_kv."),
    ] = None,
    num_speculative_tokens: Annotated[str | None, typer.Option(help="γ, tokens drafted per round.")] = None,
    batch: Annotated[str | None, typer.Option(help="Sequences decoding at once (default 1).")] = None,
    draft: Annotated[str | None, typer.Option(help="Drafter; a head is built from the target where left out.")] = None,
    draft_params: Annotated[str | None, typer.Option(help="Size of a draft model that is not known, such as 1.24B.")] = None,
    drafter_weights: Annotated[str | None, typer.Option(help="Type of its weights; left out: by convention.")] = None,
    draft_layers: Annotated[str | None, typer.Option(help="layer_skip: the target's first layers that draft.")] = None,
    draft_kv_tokens: Annotated[str | None, typer.Option(help="sparse_kv: cached tokens read while drafting.")] = None,
    tree_shape: Annotated[str | None, typer.Option(help="Such as steps=5,topk=4,draft_tokens=8 or nodes=64.")] = None,
    engine: Annotated[str | None, typer.Option(help="Engine profile; left out: generic, wider interval.")] = None,
    precision: Annotated[str | None, typer.Option(help="Such as bf16, fp8, or 'fp8 weights, bf16 KV'.")] = None,
    tensor_parallel_size: Annotated[str | None, typer.Option(help="Devices that share each layer.")] = None,
    draft_tensor_parallel_size: Annotated[str | None, typer.Option(help="The same for the drafter.")] = None,
    pipeline_parallel_size: Annotated[str | None, typer.Option(help="Stages that the layers are cut into.")] = None,
    data_parallel_size: Annotated[str | None, typer.Option(help="Replicas; of a mixture, ranks that share its experts.")] = None,
    expert_parallel: Annotated[str | None, typer.Option(help="true: whole experts on each device instead of slices.")] = None,
    nodes: Annotated[str | None, typer.Option(help="Servers that the devices are spread over evenly.")] = None,
    draft_hardware: Annotated[str | None, typer.Option(help="A device of the draft's own.")] = None,
    draft_link_latency_s: Annotated[str | None, typer.Option(help="Link to it, seconds one way.")] = None,
    draft_overlap: Annotated[str | None, typer.Option(help="true: it drafts ahead while the target verifies.")] = None,
    context_len: Annotated[str | None, typer.Option(help="Mean tokens in the KV cache per sequence.")] = None,
    prompt_len: Annotated[str | None, typer.Option(help="Prompt tokens: with output-len the prefill share counts.")] = None,
    output_len: Annotated[str | None, typer.Option(help="Output tokens.")] = None,
    dataset: Annotated[str | None, typer.Option(help="A benchmark whose usual lengths are taken.")] = None,
    mean_acceptance_length: Annotated[str | None, typer.Option(help="τ, tokens per round, bonus included.")] = None,
    acceptance_rate: Annotated[str | None, typer.Option(help="α, given that all drafts before were accepted.")] = None,
    acceptance_rates_per_position: Annotated[str | None, typer.Option(help="Unconditional, comma-separated.")] = None,
    conditional_acceptance_rates: Annotated[str | None, typer.Option(help="Conditional, comma-separated.")] = None,
    plain_step_s: Annotated[str | None, typer.Option(help="Measured seconds of a plain step at this batch.")] = None,
    plain_tokens_per_s: Annotated[str | None, typer.Option(help="Measured throughput without speculation.")] = None,
    table: Annotated[
        Path | None, typer.Option(help="CSV of operating points instead of flags; columns are named as the flags, with _ for -.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(parser=_path, metavar="FILE", help="CSV file for the predictions of --table.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """R, speedup, break-even, verdict and interval at one operating point, or for each row of a table. No queueing."""
    from simulator import prediction

    given = {name: value for name, value in ctx.params.items() if value is not None and name not in ("table", "out", "as_json")}
    if table is not None:
        _predict_table(table, given, out, as_json)
        return
    if out is not None:
        raise SpecError([Problem("--out", "", "goes with --table only")])
    answer = _at_point(given, prediction.predict_document)
    if as_json:
        _print_json({"schema_version": 1, **_prediction_json(answer)})
    else:
        _print_prediction(_console(), answer)


@app.command("break-even")
def break_even(scenario: ScenarioPath, out: OutDir = None, as_json: AsJson = False) -> None:
    """The acceptance that speculation needs, against batch, for γ = 1..8 and trees; and the best by batch and context."""
    from simulator import reports
    from simulator.questions import break_even as question
    from simulator.scenario import load_scenario

    loaded = load_scenario(scenario)
    if not loaded.deployment.speculative:
        raise SpecError([loaded.document.problem(("speculation",), "must be given: break-even is about a method")])
    answer = question.break_even(loaded)
    if out is not None:
        reports.write_break_even(answer, out)
    if as_json:
        _print_json(reports.break_even_summary(answer))
        return
    _print_break_even(_console(), answer)
    if out is not None:
        _console().print(f"Table and figures: {out}")


@app.command()
def explain(
    ctx: typer.Context,
    scenario: Annotated[str | None, typer.Argument(help="A scenario; or give the flags of `predict` instead.")] = None,
    gamma: Annotated[int | None, typer.Option(min=1, max=64, help="γ of a scenario that compares several.")] = None,
    hardware: Annotated[str | None, typer.Option()] = None,
    target: Annotated[str | None, typer.Option()] = None,
    method: Annotated[str | None, typer.Option()] = None,
    num_speculative_tokens: Annotated[str | None, typer.Option()] = None,
    batch: Annotated[str | None, typer.Option(help="Also with a scenario: instead of its mean batch.")] = None,
    context_len: Annotated[str | None, typer.Option(help="Also with a scenario: instead of its mean context.")] = None,
    draft: Annotated[str | None, typer.Option()] = None,
    draft_params: Annotated[str | None, typer.Option()] = None,
    drafter_weights: Annotated[str | None, typer.Option()] = None,
    draft_layers: Annotated[str | None, typer.Option()] = None,
    draft_kv_tokens: Annotated[str | None, typer.Option()] = None,
    tree_shape: Annotated[str | None, typer.Option()] = None,
    engine: Annotated[str | None, typer.Option()] = None,
    precision: Annotated[str | None, typer.Option()] = None,
    tensor_parallel_size: Annotated[str | None, typer.Option()] = None,
    draft_tensor_parallel_size: Annotated[str | None, typer.Option()] = None,
    pipeline_parallel_size: Annotated[str | None, typer.Option()] = None,
    data_parallel_size: Annotated[str | None, typer.Option()] = None,
    expert_parallel: Annotated[str | None, typer.Option()] = None,
    nodes: Annotated[str | None, typer.Option()] = None,
    draft_hardware: Annotated[str | None, typer.Option()] = None,
    draft_link_latency_s: Annotated[str | None, typer.Option()] = None,
    draft_overlap: Annotated[str | None, typer.Option()] = None,
    mean_acceptance_length: Annotated[str | None, typer.Option()] = None,
    acceptance_rate: Annotated[str | None, typer.Option()] = None,
    acceptance_rates_per_position: Annotated[str | None, typer.Option()] = None,
    conditional_acceptance_rates: Annotated[str | None, typer.Option()] = None,
    as_json: AsJson = False,
) -> None:
    """Why: one round beside one plain step, term by term; R against τ; what is unsure; what would flip the sign."""
    from simulator import reports
    from simulator.questions import explanation
    from simulator.scenario import load_scenario

    given = {
        name: value for name, value in ctx.params.items() if value is not None and name not in ("scenario", "gamma", "as_json")
    }
    if scenario is not None:
        extra = [name for name in given if name not in ("batch", "context_len", "tree_shape")]
        if extra:
            raise SpecError([Problem("--" + extra[0].replace("_", "-"), "", "must be left out with a scenario, which holds it")])
        loaded = load_scenario(scenario)
        if not loaded.deployment.speculative:
            raise SpecError([loaded.document.problem(("speculation",), "must be given: explain is about a method")])
        tree = _tree_of(loaded, given.pop("tree_shape", None), gamma)
        asked = check(_Point, Document("", {name: plain_scalar(text) for name, text in given.items()}))
        answer = explanation.explain(loaded, gamma, asked.batch, asked.context_len, tree)
    else:
        answer = _at_point(given, explanation.explain_point)
    if as_json:
        _print_json(reports.explanation_summary(answer))
        return
    console = _console()
    first, *rest = reports.explanation_sentences(answer)
    _print_sentence(console, first, VERDICT_STYLE.get(answer.verdict, "bold"))
    for sentence in rest:
        _print_sentence(console, sentence, indent="  ")
    console.print()
    _print_table(console, *reports.explanation_table(answer))
    _print_table(console, *reports.doubt_table(answer))
    _print_notes(console, [], answer.warnings)


def _tree_of(scenario: Scenario, text: str | None, gamma: int | None) -> Tree | None:
    """The tree of a scenario that `explain` is asked about; None where it is a chain, or the first of what the scenario
    drafts."""
    from simulator.draft_tree import read_tree

    if gamma is not None and (text is not None or not scenario.gammas):
        why = "with --tree-shape" if text is not None else "for a scenario of trees only: its acceptance says nothing of a chain"
        raise SpecError([Problem("--gamma", "", f"must be left out {why}")])
    if text is None:
        return None
    trees = [shape for shape in scenario.shapes if not shape.is_chain]
    try:
        found = read_tree(text)
    except ValueError as error:
        raise SpecError([Problem("--tree-shape", "", str(error), repr(text))]) from None
    if found not in trees:
        known = ", ".join(shape.name for shape in trees) or "none"
        raise SpecError([Problem("--tree-shape", "", f"must be a tree of the scenario ({known})", found.name)])
    return found


class _Point(Spec):
    """What `explain SCENARIO` may say of its operating point."""

    batch: Annotated[int, Field(ge=1)] | None = None
    context_len: Annotated[int, Field(ge=1)] | None = None


@app.command("import")
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
    tensor_parallel_size: Annotated[int | None, typer.Option(min=1, max=64)] = None,
    sampler: Annotated[str | None, typer.Option(help="Such as 'temperature 0.7'.")] = None,
    prompts: Annotated[str | None, typer.Option(help="What was asked, such as MT-Bench.")] = None,
    workload: Annotated[str | None, typer.Option(help="Traffic, where no run holds any: a workload profile or a trace.")] = None,
    rate_per_s: Annotated[float | None, typer.Option(min=1e-6, help="Requests per second of --workload.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for measured.yaml, acceptance.yaml, scenario.yaml.")] = None,
    as_json: AsJson = False,
) -> None:
    """Read what an engine measured: acceptance, latencies and traffic, each number with its field and conversion."""
    from simulator import reports
    from simulator.interchange.detection import read_files
    from simulator.interchange.imported import Settings

    if rate_per_s is not None and workload is None:
        raise SpecError([Problem("--rate-per-s", "", "goes with --workload: it would change nothing", f"{rate_per_s:g}")])
    found = read_files(files, format, num_speculative_tokens, draft_tokens)
    settings = Settings(
        hardware, engine, target, drafter, method, precision, tensor_parallel_size, sampler, prompts, workload, rate_per_s
    )
    written, left_out = reports.write_import(found, settings, out) if out is not None else ((), [])
    if as_json:
        _print_json(reports.import_summary(found))
        return
    console = _console()
    for each in found.runs:
        _print_sentence(console, reports.import_sentence(each), "bold")
        _print_table(console, reports.IMPORT_HEADER, reports.import_rows(each))
        _print_notes(console, [], each.notes)
    if found.server is not None:
        _print_sentence(console, f"Settings of a {found.server.engine} server", "bold")
        _print_table(console, ("key", "value"), reports.settings_rows(found.server))
        _print_notes(console, [], found.server.notes)
    for path in written:
        console.print(f"written: {path}")
    _print_notes(console, [f"not written: {each}" for each in left_out], [])


@app.command("check-server")
def check_server(
    files: Annotated[list[Path], typer.Argument(help="One run without and one with speculation, or either, as for import.")],
    scenario: Annotated[str, typer.Option(help="What was served on what: a scenario; its traffic and acceptance are the runs'.")],
    format: Annotated[str | None, typer.Option("--as", help="The format, where it is not recognised.")] = None,
    num_speculative_tokens: Annotated[int | None, typer.Option(min=1, max=64, help="γ, where the file does not hold it.")] = None,
    draft_tokens: Annotated[int | None, typer.Option(min=2, max=1024, help="SGLang's draft tokens, the root counted.")] = None,
    as_json: AsJson = False,
) -> None:
    """Predicted against measured for imported runs; what is doubtful about the benchmark; how to compare timing alone."""
    from simulator import reports
    from simulator.interchange.detection import read_files
    from simulator.questions import server_check
    from simulator.scenario import load_scenario

    loaded = load_scenario(scenario)
    found = read_files(files, format, num_speculative_tokens, draft_tokens)
    with _progress(quiet=as_json) as progress:
        answer = server_check.check_server(found.runs, loaded, progress)
    if as_json:
        _print_json(reports.check_summary(answer))
        return
    console = _console()
    _print_sentence(console, answer.verdict, "bold")
    console.print()
    _print_table(console, reports.CHECK_HEADER, reports.check_rows(answer))
    _print_notes(console, [], answer.doubts)
    if answer.recipe is not None:
        _print_sentence(console, "To compare timing alone, hold the server to the measured acceptance:", "dim")
        sys.stdout.write(answer.recipe.text + "\n")


@app.command()
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
        _print_json({"schema_version": 1, "snippets": [asdict(snippet) for snippet in found]})
        return
    for snippet in found:
        if snippet.file:
            sys.stdout.write(f"# {snippet.file}\n")
        sys.stdout.write(snippet.text.rstrip() + "\n")
        for note in snippet.notes:
            err.print(Text(note))


@app.command()
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
    minutes: Annotated[float | None, typer.Option(min=0, help="local: measure about this long, but at least two blocks.")] = None,
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
        changed = validation.refit()
        err.print("\n".join([*changed, f"{len(changed)} constants changed"]))
        return
    old = None if diff is None else accuracy.read_speedups(diff)
    with _progress(quiet=as_json, doing="leaving out", things="families") as progress:
        if page is not None:
            scored = validation.write_page(page, progress)
        else:
            scored = accuracy.left_out(progress) if leave_one_family_out else accuracy.as_shipped()
    if out is not None:
        _write_atomically(out, validation.table(scored))
    parts = [*tables.accuracy_tables(scored, None)] if old is None else [tables.moved_table(accuracy.moved(scored, old))]
    if as_json:
        _print_json(
            {"schema_version": 1, "summary": tables.accuracy_sentence(scored), "tables": [_table_json(*p) for p in parts]}
        )
        return
    console = _console()
    _print_sentence(console, tables.accuracy_sentence(scored), "bold")
    console.print()
    for title, header, rows in parts:
        console.print(Text(title, style="bold"))
        _print_table(console, header, rows)


def _validate_locally(pairs: Sequence[str], given: dict[str, Any], out: Path | None, as_json: bool) -> None:
    from simulator import reports
    from simulator.reports import local_validation as views
    from simulator.validate.local import LocalOrder, validate_locally

    order = LocalOrder(tuple(pairs), **given)
    if out is not None:
        reports.prepare_directory(out)
    with _progress(quiet=as_json, doing="running", things="steps") as progress:
        found = validate_locally(order, progress)
    if out is not None:
        views.write_local_validation(found, out)
    if as_json:
        _print_json(views.local_summary(found))
    else:
        console = _console()
        first, *rest = views.local_sentences(found)
        style = {"holds": "bold green", "fails": "bold red"}.get(found.verdict, "bold yellow")
        _print_sentence(console, first, style)
        for sentence in rest:
            _print_sentence(console, sentence, indent="  ")
        console.print()
        for title, header, rows in views.local_tables(found):
            console.print(Text(title, style="bold"))
            _print_table(console, header, rows)
        _print_notes(console, [], views.local_notes(found))
        if out is not None:
            console.print(f"Page, numbers and figure: {out}")
    if found.verdict == "fails":
        raise typer.Exit(1)


def _table_json(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[str, Any]:
    return {"title": title, "rows": [dict(zip(header, row, strict=True)) for row in rows]}


@app.command()
def demo(
    hardware: Annotated[str, typer.Option(help="Device on which the counts are priced.")] = "h100_sxm",
    target: Annotated[str, typer.Option(help="Target model priced there.")] = "Llama-3.1-8B",
    draft: Annotated[str, typer.Option(help="Draft model priced there.")] = "Llama-3.2-1B",
    as_json: AsJson = False,
) -> None:
    """Real speculative decoding of two tiny models: passes counted, output as plain; then what a device makes of it."""
    from simulator import demo as demonstration

    answer = demonstration.demonstrate(hardware, target, draft)
    if as_json:
        _print_json(demonstration.summary(answer))
        return
    console = _console()
    _print_sentence(console, demonstration.headline(answer), "bold")
    console.print()
    _print_table(console, *demonstration.counts_table(answer))
    _print_notes(console, [demonstration.counts_note()], [])
    console.print()
    where, *reasons = demonstration.device_sentences(answer)
    _print_sentence(console, where, "bold")
    console.print()
    _print_table(console, *demonstration.device_table(answer))
    for reason in reasons:
        _print_sentence(console, reason)


@app.command()
def trace(
    target: Annotated[str, typer.Option(help="byte_pair, smollm2, a Hugging Face folder, a GGUF file, or owner/name on a hub.")],
    draft: Annotated[str, typer.Option(help="The same, or self, ngram:3-1, exit:25 (layers), skip:12-17 (layers left out).")],
    out: Annotated[Path, typer.Option(help="Trace file, .npz or .parquet; a scenario reads it as acceptance: {trace: FILE}.")],
    prompts: Annotated[str, typer.Option(help="builtin, or a file of JSON lines with prompt and category.")] = "builtin",
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="0 keeps every token.")] = 0,
    top_p: Annotated[float, typer.Option(help="1 keeps every token.")] = 1.0,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Output tokens per prompt.")] = 96,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    dtype: Annotated[str, typer.Option(help="fp32, bf16 or fp16.")] = "fp32",
    device: Annotated[str, typer.Option(help="As torch names it: cpu, cuda, mps.")] = "cpu",
    store_tokens: Annotated[bool, typer.Option("--store-tokens", help="Keep the token ids, not only their hashes.")] = False,
    as_json: AsJson = False,
) -> None:
    """Acceptance trace of a real pair of models: recorded once, replayed exactly at any γ. Killed, it goes on where it was."""
    from simulator import reports
    from simulator import trace as tracing

    order = tracing.TraceOrder(
        target, draft, prompts, temperature, top_k, top_p, max_new_tokens, seed, dtype, device, store_tokens
    )
    with _progress(quiet=as_json, doing="tracing", things="prompts") as progress:
        outcome = tracing.trace_pair(order, out, progress)
    if as_json:
        _print_json(
            {"schema_version": 1, "file": str(out), "provenance": outcome.file.provenance, **reports.trace_json(outcome.summary)}
        )
        return
    console = _console()
    _print_sentence(console, reports.trace_sentence(outcome.summary), "bold")
    console.print()
    for title, header, rows in reports.trace_tables(outcome.summary):
        console.print(Text(title, style="bold"))
        _print_table(console, header, rows)
    if outcome.resumed:
        console.print(f"{outcome.resumed} prompts had been traced before.")
    console.print(f"Trace: {out}")


app.command("calibrate")(calibrate)


@app.command("list")
def list_known(
    kind: Annotated[str | None, typer.Argument(help="hardware, engine, model, acceptance, workload or scenario.")] = None,
    as_json: AsJson = False,
) -> None:
    """Known hardware, models, drafters, engines, acceptance and workload profiles, scenarios."""
    from simulator import reports, resources

    if kind is not None and kind not in resources.KINDS:
        raise SpecError(
            [Problem("KIND", "", f"must be one of {', '.join(resources.KINDS)}", repr(kind), nearest(kind, resources.KINDS))]
        )
    known = {name: reports.known(name) for name in ([kind] if kind else resources.KINDS)}
    if as_json:
        _print_json({"schema_version": 1, **known})
        return
    console = _console()
    for name, entries in known.items():
        if entries:
            console.print(Text(name, style="bold"))
            _print_table(console, tuple(entries[0]), [tuple(str(value) for value in entry.values()) for entry in entries])


@app.command()
def schema(as_json: AsJson = False) -> None:
    """JSON Schema of a scenario, for editors; always JSON."""
    from simulator.scenario import ScenarioFile

    _print_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **ScenarioFile.model_json_schema()})


# -------------------------------------------------------------------------------------------------------------- predict


def _at_point(given: dict[str, Any], answer: Callable[[OperatingPoint, Document], T]) -> T:
    """The answer at the operating point that flags describe; what cannot be answered is a user's mistake."""
    from simulator import prediction

    document = _flags_document(given, prediction.FLAGS)
    point = check(prediction.OperatingPoint, document)
    try:
        return answer(point, document)
    except prediction.UnknownNameError as unknown:
        raise unknown.error from None
    except prediction.UnsupportedError as reason:
        raise SpecError([Problem("", "", str(reason))]) from None


def _flags_document(given: dict[str, Any], flags: dict[str, str]) -> Document:
    """Flags as a document of an operating point, every value read as YAML reads it."""
    fields = {flag: field for field, flag in flags.items()}
    data: dict[str, Any] = {"batch": 1}
    for flag, text in given.items():
        field = fields.get(flag, flag)
        if field.endswith(("rates_per_position", "acceptance_rates")):
            data[field] = tuple(plain_scalar(part.strip()) for part in text.split(",") if part.strip())
        else:
            data[field] = text if field in _TEXT_FIELDS else plain_scalar(text)
    return _FlagDocument("", data, {})


_TEXT_FIELDS = (
    "hardware",
    "target_model",
    "method",
    "draft_model",
    "draft_params",
    "draft_hardware",
    "drafter_weights",
    "engine",
    "precision",
    "dataset",
    "tree_shape",
)


class _FlagDocument(Document):
    """A document whose keys are flags: the target model is `--target`."""

    def where(self, location: tuple[str | int, ...]) -> str:
        from simulator.prediction import FLAGS

        name = str(location[0]) if location else ""
        return "--" + FLAGS.get(name, name).replace("_", "-") if name else ""


def _predict_table(table: Path, given: dict[str, Any], out: Path | None, as_json: bool) -> None:
    import csv
    import io

    from simulator import prediction

    if given:
        raise SpecError(
            [Problem("--" + next(iter(given)).replace("_", "-"), "", "must be left out with --table, whose columns hold it")]
        )
    answers = prediction.predict_table(table)
    text = io.StringIO()
    writer = csv.DictWriter(text, prediction.COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(prediction.as_row(answer) for answer in answers)
    if out is not None:
        _write_atomically(out, text.getvalue())
    if as_json:
        _print_json({"schema_version": 1, "predictions": [_prediction_json(answer) for answer in answers]})
    elif out is None:
        sys.stdout.write(text.getvalue())
    priced = sum(answer.status == "ok" for answer in answers)
    err.print(f"{priced} of {len(answers)} rows priced" + (f", written to {out}" if out else ""))
    for reason, count in _counted(answer.reason for answer in answers if answer.status != "ok"):
        err.print(f"  {count:4d} × {reason}")


def _counted(reasons: Iterable[str]) -> list[tuple[str, int]]:
    from collections import Counter

    return Counter(reasons).most_common(12)


def _prediction_json(answer: Prediction) -> dict[str, Any]:
    fields = asdict(answer)
    fields["causes"] = [{"term": term, "plain_steps": share} for term, share in answer.causes]
    return fields


def _print_prediction(console: Console, answer: Prediction) -> None:
    from simulator import reports

    _print_sentence(console, reports.prediction_sentence(answer), VERDICT_STYLE.get(answer.verdict, "bold"))
    console.print()
    _print_table(console, ("quantity", "value", "80 % interval"), reports.prediction_rows(answer))
    _print_notes(console, [], answer.warnings)


def _print_break_even(console: Console, answer: BreakEven) -> None:
    from simulator import reports

    _print_sentence(console, reports.break_even_sentence(answer), "bold")
    console.print()
    for title, header, rows in reports.break_even_tables(answer):
        console.print(Text(title, style="bold"))
        _print_table(console, header, rows)
    _print_notes(console, [], answer.warnings)


# -------------------------------------------------------------------------------------------------------------- printing


def _console() -> Console:
    width = None if sys.stdout.isatty() else 100
    return Console(highlight=False, width=width)


def _print_table(console: Console, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    rows = list(rows)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for index, name in enumerate(header):
        numbers = index > 0 and any(row[index][:1].isdigit() for row in rows)
        table.add_column(name, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
    console.print()


def _print_sentence(console: Console, text: str, style: str = "", indent: str = "") -> None:
    """Wrapped between words, but not inside ``γ = 5`` or ``80 %``."""
    joined = re.sub(r"(?<=[γτRα*]) = (?=\d)|(?<=\d) (?=%)", lambda space: space[0].replace(" ", "\u00a0"), text)
    lines = textwrap.wrap(joined, console.width, initial_indent=indent, subsequent_indent=indent)
    for line in lines:
        console.print(Text(line.replace("\u00a0", " "), style=style))


def _print_notes(console: Console, notes: Iterable[str], warnings: Iterable[str]) -> None:
    for text in (*notes, *(f"Note: {warning}" for warning in warnings)):
        _print_sentence(console, text, "dim")


def _print_json(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _write_atomically(path: Path, text: str, flag: str = "--out") -> None:
    try:
        write_whole(path, text)
    except OSError as error:
        raise _unwritable(path, flag, error) from None


def _require_writable(path: Path, flag: str) -> None:
    """Fails now rather than after a long run."""
    try:
        if path.is_dir():
            raise IsADirectoryError(0, "is a folder")
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise _unwritable(path, flag, error) from None


def _unwritable(path: Path, flag: str, error: OSError) -> SpecError:
    return SpecError([Problem(flag, "", f"must be a file that can be written: {error.strerror}", str(path))])


@contextmanager
def _progress(quiet: bool, doing: str = "simulating", things: str = "requests") -> Iterator[Progress]:
    """A bar per run on stderr, with the time left."""
    if quiet or not err.is_terminal:
        begun: set[str] = set()

        def announce(label: str, done: int, total: int) -> None:
            if not quiet and label not in begun:
                begun.add(label)
                err.print(f"{doing} {total} {things}: {label}")

        yield announce
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} " + things),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def advance(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = bars.add_task(label, total=total)
            bars.update(tasks[label], completed=min(done, total))

        yield advance


def _clean_up_on_signals() -> None:
    """Ctrl-C and SIGTERM unwind the stack, so that what is half written is removed. Not in threads, nor over others' handlers."""
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminated)


def _terminated(number: int, frame: object) -> None:
    sys.exit(128 + number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code. A user's mistake is one clear message, never a traceback."""
    command = typer.main.get_command(app)
    _clean_up_on_signals()
    try:
        code = command.main(args=None if arguments is None else list(arguments), prog_name="specsim", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except SpecError as error:
        for problem in error.problems:
            err.print(Text(str(problem)))
    except USAGE_ERROR as error:
        err.print(Text(error.format_message()))
    except typer.Abort:
        return 130
    except KeyboardInterrupt:
        return 130
    except (ArithmeticError, MemoryError) as error:
        err.print(Text(f"a number in the input is too large or too small to compute with: {error or type(error).__name__}"))
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  the reader is gone: nothing more to say
        return 0
    return 2


if __name__ == "__main__":
    sys.exit(main())
