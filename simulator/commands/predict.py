"""`predict`: one operating point, or a table of them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from simulator.commands.flags import AsJson, at_point, path_of
from simulator.console import (
    VERDICT_STYLE,
    console_of_stdout,
    err,
    print_json,
    print_notes,
    print_sentence,
    print_table,
    write_output,
)
from simulator.spec import Problem, SpecError

if TYPE_CHECKING:
    from simulator.prediction import Prediction


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
    attention_backend: Annotated[str | None, typer.Option(help="Attention kernels the server is started with.")] = None,
    deterministic: Annotated[str | None, typer.Option(help="true: kernels that give the same at any batch.")] = None,
    graphs: Annotated[str | None, typer.Option(help="piecewise or none, where steps are not captured whole.")] = None,
    overlap: Annotated[str | None, typer.Option(help="false: no step is prepared ahead.")] = None,
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
        Path | None, typer.Option(parser=path_of, metavar="FILE", help="CSV file for the predictions of --table.")
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
    answer = at_point(given, prediction.predict_document)
    if as_json:
        from simulator.reports.tables import prediction_sentence

        print_json({"schema_version": 1, "sentence": prediction_sentence(answer), **_prediction_json(answer)})
    else:
        _print_prediction(console_of_stdout(), answer)


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
        write_output(out, text.getvalue())
    if as_json:
        print_json({"schema_version": 1, "predictions": [_prediction_json(answer) for answer in answers]})
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
    from simulator.reports.tables import prediction_rows, prediction_sentence

    print_sentence(console, prediction_sentence(answer), VERDICT_STYLE.get(answer.verdict, "bold"))
    console.print()
    print_table(console, ("quantity", "value", "80 % interval"), prediction_rows(answer))
    print_notes(console, [], answer.warnings)
