"""`trace`: an acceptance trace of a real pair."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.commands.flags import AsJson
from simulator.console import console_of_stdout, print_json, print_sentence, print_titled_tables, print_written, progress_bars


def trace(
    target: Annotated[str, typer.Option(help="byte_pair, smollm2, a Hugging Face folder, a GGUF file, or owner/name on a hub.")],
    draft: Annotated[
        str,
        typer.Option(
            help="The same, or self, ngram:3-1, exit:25 (layers), skip:12-17 (those left out), medusa[:FILE] or eagle[:FILE]."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Trace file, .npz or .parquet; a scenario reads it as acceptance: {trace: FILE}.")],
    prompts: Annotated[str, typer.Option(help="builtin, or a file of JSON lines with prompt and category.")] = "builtin",
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="0 keeps every token.")] = 0,
    top_p: Annotated[float, typer.Option(help="1 keeps every token.")] = 1.0,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Output tokens per prompt.")] = 96,
    seed: Annotated[int, typer.Option(min=0, help="Of the tokens sampled.")] = 0,
    dtype: Annotated[str, typer.Option(help="fp32, bf16 or fp16.")] = "fp32",
    device: Annotated[str, typer.Option(help="As torch names it: cpu, cuda, mps.")] = "cpu",
    store_tokens: Annotated[bool, typer.Option("--store-tokens", help="Keep the token ids, not only their hashes.")] = False,
    as_json: AsJson = False,
) -> None:
    """Acceptance trace of a real pair of models: recorded once, replayed exactly at any γ. Killed, it goes on where it was."""
    from simulator import trace as tracing
    from simulator.reports.acceptance_trace import trace_json, trace_sentence, trace_tables

    order = tracing.TraceOrder(
        target, draft, prompts, temperature, top_k, top_p, max_new_tokens, seed, dtype, device, store_tokens
    )
    with progress_bars(quiet=as_json, doing="tracing", things="prompts") as progress:
        outcome = tracing.trace_pair(order, out, progress)
    if as_json:
        print_json({"schema_version": 1, "file": str(out), "provenance": outcome.file.provenance, **trace_json(outcome.summary)})
        return
    console = console_of_stdout()
    print_sentence(console, trace_sentence(outcome.summary), "bold")
    console.print()
    print_titled_tables(console, trace_tables(outcome.summary))
    if outcome.resumed:
        console.print(f"{outcome.resumed} prompts had been traced before.")
    print_written(console, "Trace", out)
