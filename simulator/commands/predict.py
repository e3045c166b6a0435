"""`predict`: one operating point, or a table of them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from simulator.commands.flags import AsJson, at_point, path_of, takes_point
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

# Different reasons why rows have no answer that are shown on a console.
MOST_REASONS = 12


@takes_point(
    prompt_len="Prompt tokens: with output-len the prefill share counts.",
    output_len="Output tokens.",
    prompts_together="true: requests are sent a batch at a time.",
    dataset="A benchmark whose usual lengths are taken.",
    plain_step_s="Measured seconds of a plain step at this batch.",
    plain_tokens_per_s="Measured throughput without speculation.",
)
def predict(
    point: dict[str, str],
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

    if table is not None:
        _predict_table(table, point, out, as_json)
        return
    if out is not None:
        raise SpecError([Problem("--out", "", "goes with --table only")])
    answer = at_point(point, prediction.predict_document)
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
    for line in reason_lines([f"{answer.reason}" for answer in answers if answer.status != "ok"]):
        err.print(line)


def reason_lines(reasons: Sequence[str]) -> list[str]:
    """Why rows have no answer, the most frequent first, and how many reasons are not shown."""
    counted = Counter(reasons).most_common()
    more = [f"  and {len(counted) - MOST_REASONS} more reasons, each in its row"] if len(counted) > MOST_REASONS else []
    return [f"  {count:4d} × {reason}" for reason, count in counted[:MOST_REASONS]] + more


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
