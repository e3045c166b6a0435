"""Vidur on the same requests on the same machine: requests per CPU second of both, and that both simulate the same service.

    python -m venv vidur && vidur/bin/pip install vidur
    python -m benchmarks.beside_vidur vidur/bin/python

Loads A and B of `benchmarks.loads` without speculation, which Vidur does not know; lengths cut to its 4,096 tokens of Llama 3 8B.
Vidur finds step times in tables. Those of its own measurements are fetched from a hub, and both clocks would differ; here they
hold this simulator's prices, so that both simulate one service, as mean latency and steps show. Its engine looks up, batches and
steps as ever: Sarathi's chunked prefill, the nearest to vLLM's, with native look-up, and no metrics or traces written. CPU time
of the simulation alone, start-up apart.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

MOST_TOKENS = 4096  # of a request, in Vidur's Llama 3 8B
CHUNK, SEQUENCES, GRAIN = 2048, 128, 256  # tokens and sequences of a step, and Vidur's grid of contexts
LAYERS = 32
ROUNDS = 3
Table = list[tuple[tuple[int, ...], float]]


def main(arguments: list[str]) -> int:
    if len(arguments) == 2 and arguments[0] == "--serve":
        print(json.dumps(served_by_vidur(Path(arguments[1]))))
        return 0
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    python = arguments[0]
    try:
        found = subprocess.run([python, "-c", "import vidur"], capture_output=True, text=True, check=False)
    except OSError as error:
        print(f"{python}: must be a Python that has Vidur (got {error.strerror})", file=sys.stderr)
        return 2
    if found.returncode:
        print(f"{python}: must be a Python that has Vidur: {python} -m pip install vidur", file=sys.stderr)
        return 2
    for load in ("A", "B"):
        for row in compared(load, python):
            print(row)
    return 0


def compared(load: str, python: str) -> list[str]:
    """A line for each simulator, and their ratio."""
    from benchmarks.loads import scenario
    from simulator.serving import serve
    from simulator.simulation import Server

    asked = scenario(load, 0)
    server = Server.of(asked)
    rules = replace(server.rules, max_num_batched_tokens=CHUNK, max_num_seqs=SEQUENCES)
    requests = tuple(
        replace(r, prompt_tokens=min(r.prompt_tokens, MOST_TOKENS - r.output_tokens))
        for r in asked.requests()
        if r.output_tokens < MOST_TOKENS
    )
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as folder:
        told = {
            "requests": [(r.arrival_s, r.prompt_tokens, r.output_tokens) for r in requests],
            "tables": tables(server.pricer),
            "blocks": rules.total_blocks,
        }
        (Path(folder) / "load.json").write_text(json.dumps(told), encoding="utf-8")
        for _ in range(ROUNDS):
            begin = time.process_time()
            result = serve(requests, rules, server.pricer, server.path, lambda _: 0)
            ours.append(time.process_time() - begin)
            run = subprocess.run([python, __file__, "--serve", folder], capture_output=True, text=True, check=True, cwd=folder)
            theirs.append(json.loads(run.stdout.splitlines()[-1]))
    latency_s = float(result.records.e2e_latency_s.mean())
    lines = [_line(load, f"specsim {version('specsim')}", len(requests), statistics.median(ours), latency_s, len(result.steps))]
    middle = sorted(theirs, key=lambda run: run["cpu_s"])[ROUNDS // 2]
    lines.append(_line(load, f"vidur {middle['version']}", len(requests), middle["cpu_s"], middle["latency_s"], middle["steps"]))
    return [*lines, f"{load}: {middle['cpu_s'] / statistics.median(ours):.0f} times as fast"]


def _line(load: str, name: str, requests: int, cpu_s: float, latency_s: float, steps: int) -> str:
    speed = f"{requests / cpu_s:>9,.0f} requests per CPU second, {1e6 * cpu_s / steps:>6.1f} µs a step of {steps:,}"
    return f"{load}: {name:<16} {speed}, mean end to end {latency_s:.3f} s"


def tables(pricer: Any) -> dict[str, Table]:
    """Milliseconds of one layer as Vidur looks them up: all but attention by rows, attention by sequences and context, and by
    context and chunk."""

    def price(decode: list[tuple[int, int]], prefill: tuple[tuple[int, int], ...] = ()) -> float:
        return 1e3 / LAYERS * float(pricer.price(decode, prefill, len(prefill)).seconds)

    def rows_alone(rows: int) -> float:
        return price([(1, 0)] * rows) if rows <= SEQUENCES else price([], ((rows, 0),))

    contexts = range(0, MOST_TOKENS + 1, GRAIN)
    rows: Table = [((count,), rows_alone(count)) for count in range(1, CHUNK + 65)]
    none: Table = [(key, 0.0) for key, _ in rows]
    decode: Table = [
        ((count, context), price([(max(context, 1), 0)] * count) - rows[count - 1][1])
        for count in range(1, SEQUENCES + 1)
        for context in contexts
    ]
    chunks: Table = [
        ((context, chunk), max(price([], ((chunk, context),)) - rows[chunk - 1][1], 0.0))
        for context in contexts
        for chunk in range(32, CHUNK + 1, 32)
    ]
    nothing = (
        "attn_pre_proj", "attn_post_proj", "mlp_down_proj", "mlp_act", "attn_rope", "attn_kv_cache_save", "input_layernorm",
        "post_attention_layernorm", "add",
    )  # fmt: skip
    return dict.fromkeys(nothing, none) | {"mlp_up_proj": rows, "attn_decode": decode, "attn_prefill": chunks}


def served_by_vidur(folder: Path) -> dict[str, Any]:
    """In an environment that has Vidur. Its names are those of 0.0.26."""
    import csv
    import logging

    logging.disable(logging.CRITICAL)
    from vidur.config import (  # type: ignore[import-not-found]
        CacheConfig,
        ClusterConfig,
        MetricsConfig,
        RandomForrestExecutionTimePredictorConfig,
        ReplicaConfig,
        SarathiSchedulerConfig,
        SimulationConfig,
        TraceRequestGeneratorConfig,
    )
    from vidur.entities import BatchStage  # type: ignore[import-not-found]
    from vidur.execution_time_predictor import sklearn_execution_time_predictor as predictor  # type: ignore[import-not-found]
    from vidur.simulator import Simulator  # type: ignore[import-not-found]

    load = json.loads((folder / "load.json").read_text(encoding="utf-8"))
    prices = {name: {tuple(key): value for key, value in rows} for name, rows in load["tables"].items()}
    predictor.SklearnExecutionTimePredictor._load_predictions_from_hf = lambda _: prices
    trace = folder / "trace.csv"
    with trace.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("Date", "Time", "PromptTokenCount", "CompletionTokenCount"))
        writer.writerows(("day", *request) for request in load["requests"])
    config = SimulationConfig(
        cluster_config=ClusterConfig(
            replica_config=ReplicaConfig(num_pipeline_stages=1, tensor_parallel_size=1),
            cache_config=CacheConfig(block_size=16, num_blocks=load["blocks"], enable_prefix_caching=False),
            replica_scheduler_config=SarathiSchedulerConfig(batch_size_cap=SEQUENCES, chunk_size=CHUNK),
        ),
        request_generator_config=TraceRequestGeneratorConfig(
            trace_file=str(trace), date="day", prefill_scale_factor=1, time_scale_factor=1, max_tokens=MOST_TOKENS
        ),
        execution_time_predictor_config=RandomForrestExecutionTimePredictorConfig(
            prediction_max_tokens_per_request=MOST_TOKENS,
            kv_cache_prediction_granularity=GRAIN,
            attention_decode_batching_overhead_fraction=0.0,
            use_native_execution_time_predictor=True,
            cache_dir=str(folder / "cache"),
        ),
        metrics_config=MetricsConfig(
            write_metrics=False, enable_chrome_trace=False, store_plots=False, store_request_metrics=False,
            store_batch_metrics=False, store_utilization_metrics=False, output_dir=str(folder / "output"),
        ),
    )  # fmt: skip
    simulator = Simulator(config)
    requests = [event._request for _, event in simulator._event_queue]
    begin = time.process_time()
    simulator.run()
    cpu_s = time.process_time() - begin
    latency_s = sum(request.completed_at - request.arrived_at for request in requests) / len(requests)
    return {"cpu_s": cpu_s, "latency_s": latency_s, "steps": BatchStage.generate_id(), "version": version("vidur")}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
