"""`predict`: one operating point, or a table of them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from simulator.commands.flags import (
    AcceptanceRateFlag,
    AcceptanceRatesPerPositionFlag,
    AsJson,
    AttentionBackendFlag,
    ConditionalAcceptanceRatesFlag,
    DataParallelSizeFlag,
    DeterministicFlag,
    DrafterWeightsFlag,
    DraftFlag,
    DraftHardwareFlag,
    DraftKvTokensFlag,
    DraftLayersFlag,
    DraftLinkLatencySFlag,
    DraftOverlapFlag,
    DraftParamsFlag,
    DraftTensorParallelSizeFlag,
    EngineFlag,
    ExpertParallelFlag,
    GraphsFlag,
    HardwareFlag,
    MaxModelLenFlag,
    MeanAcceptanceLengthFlag,
    MethodFlag,
    NodesFlag,
    NumSpeculativeTokensFlag,
    OverlapFlag,
    PeerToPeerFlag,
    PipelineParallelSizeFlag,
    PrecisionFlag,
    TargetFlag,
    TensorParallelSizeFlag,
    TreeShapeFlag,
    YearFlag,
    at_point,
    path_of,
)
from simulator.console import (
    VERDICT_STYLE,
    console_of_stdout,
    err,
    print_json,
    print_notes,
    print_sentence,
    print_table,
    require_writable,
    write_output,
    written_too,
)
from simulator.spec import Problem, SpecError

if TYPE_CHECKING:
    from simulator.prediction import Prediction


def predict(
    ctx: typer.Context,
    hardware: HardwareFlag = None,
    target: TargetFlag = None,
    method: MethodFlag = None,
    num_speculative_tokens: NumSpeculativeTokensFlag = None,
    batch: Annotated[str | None, typer.Option(help="Sequences decoding at once (default 1).")] = None,
    draft: DraftFlag = None,
    draft_params: DraftParamsFlag = None,
    drafter_weights: DrafterWeightsFlag = None,
    draft_layers: DraftLayersFlag = None,
    draft_kv_tokens: DraftKvTokensFlag = None,
    tree_shape: TreeShapeFlag = None,
    engine: EngineFlag = None,
    year: YearFlag = None,
    attention_backend: AttentionBackendFlag = None,
    deterministic: DeterministicFlag = None,
    graphs: GraphsFlag = None,
    overlap: OverlapFlag = None,
    peer_to_peer: PeerToPeerFlag = None,
    max_model_len: MaxModelLenFlag = None,
    precision: PrecisionFlag = None,
    tensor_parallel_size: TensorParallelSizeFlag = None,
    draft_tensor_parallel_size: DraftTensorParallelSizeFlag = None,
    pipeline_parallel_size: PipelineParallelSizeFlag = None,
    data_parallel_size: DataParallelSizeFlag = None,
    expert_parallel: ExpertParallelFlag = None,
    nodes: NodesFlag = None,
    draft_hardware: DraftHardwareFlag = None,
    draft_link_latency_s: DraftLinkLatencySFlag = None,
    draft_overlap: DraftOverlapFlag = None,
    context_len: Annotated[str | None, typer.Option(help="Mean tokens in the KV cache per sequence.")] = None,
    prompt_len: Annotated[str | None, typer.Option(help="Prompt tokens: with output-len the prefill share counts.")] = None,
    output_len: Annotated[str | None, typer.Option(help="Output tokens.")] = None,
    dataset: Annotated[str | None, typer.Option(help="A benchmark whose usual lengths are taken.")] = None,
    mean_acceptance_length: MeanAcceptanceLengthFlag = None,
    acceptance_rate: AcceptanceRateFlag = None,
    acceptance_rates_per_position: AcceptanceRatesPerPositionFlag = None,
    conditional_acceptance_rates: ConditionalAcceptanceRatesFlag = None,
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
    if out is not None:
        require_writable(out, "--out")
    answers = prediction.predict_table(table)
    text = io.StringIO()
    writer = csv.DictWriter(text, prediction.COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(prediction.as_row(answer) for answer in answers)
    with written_too(out, lambda path: write_output(path, text.getvalue())):
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
