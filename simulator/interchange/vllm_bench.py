"""`vllm bench serve --save-result`: one JSON object per run, several when appended, a folder of them after a sweep.

The file does not hold the method, parallelism, device or precision. Acceptance is a difference of the server's counters before
and after, so that other traffic would be in it; the rate is in percent, the rates per position are unconditional fractions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from simulator.interchange.observed import Collector, ObservedRun, Reading, RequestArrays, counters, json_objects
from simulator.printed_numbers import significant
from simulator.spec import Problem, SpecError

FORMAT = "vllm-bench"
_MS = 1e-3
# Totals that differ by more are not of one run; means leave out what single requests do.
TOLERANCE = 0.1
# Of so many turns of each user and more, a mean load below this share of the users is not start and end.
MANY_TURNS, IDLE = 5, 0.6
_PERCENTILES = ("mean", "median", "std", "p50", "p90", "p95", "p99")
_LATENCIES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "e2e_latency"}


def is_run(value: object) -> bool:
    """Whether a JSON value is one run of `vllm bench serve` (SGLang's has mean_e2e_latency_ms beside the same names)."""
    if not isinstance(value, dict) or "mean_e2e_latency_ms" in value:
        return False
    return {"duration", "completed", "total_output_tokens", "mean_ttft_ms"} <= value.keys()


def read(path: str | Path) -> Iterator[ObservedRun]:
    """Each run of a result file, or of every result file under a folder. Raises `SpecError`."""
    folder = Path(path)
    if folder.is_dir():
        found = [run for file in sorted(folder.rglob("*.json")) for run in _runs(file, passing_over=True)]
        if not found:
            raise SpecError([Problem(str(path), "", "must hold result files of vllm bench serve (*.json)")])
        yield from found
    else:
        yield from _runs(folder, passing_over=False)


def _runs(path: Path, passing_over: bool) -> Iterator[ObservedRun]:
    for line, value in json_objects(path):
        for each in value if isinstance(value, list) else [value]:
            if is_run(each):
                yield run(each, f"{path}:{line}")
            elif not passing_over:
                must = "must be a run of vllm bench serve, with duration, completed, total_output_tokens and mean_ttft_ms"
                raise SpecError([Problem(f"{path}:{line}", "", must)])


def run(values: Mapping[str, Any], where: str) -> ObservedRun:
    """One run. Raises `SpecError` with everything that is wrong with it."""
    found = Collector(where)
    _totals(found, values)
    for theirs, ours in _LATENCIES.items():
        for statistic in _PERCENTILES:
            key = f"{statistic}_{theirs}_ms"
            found.number(values, key, f"{ours}_{statistic}_s", _MS, "ms / 1000")
    counts = _acceptance(found, values)
    requests = _requests(found, values)
    found.raise_problems()
    notes: list[str] = []
    if (failed := values.get("failed")) and isinstance(failed, (int, float)):
        notes.append(f"{failed:.0f} requests failed and are in no number here")
    _concurrency(found)
    notes += _contradictions(found)
    return ObservedRun(FORMAT, where, found.readings, counts, requests, tuple(notes))


def _totals(found: Collector, values: Mapping[str, Any]) -> None:
    found.number(values, "duration", "duration_s")
    found.number(values, "completed", "completed")
    found.number(values, "total_output_tokens", "output_tokens_total")
    found.number(values, "output_throughput", "output_tokens_per_s")
    found.number(values, "request_throughput", "requests_per_s")
    found.number(values, "max_concurrency", "max_concurrency")
    if values.get("request_rate") not in ("inf", None) and values["request_rate"] != float("inf"):
        found.number(values, "request_rate", "request_rate_per_s")
        found.number(values, "burstiness", "burstiness")
    completed = values.get("completed")
    if isinstance(completed, int) and completed > 0:
        for total, ours in (("total_input_tokens", "prompt_tokens_mean"), ("total_output_tokens", "output_tokens_mean")):
            found.number(values, total, ours, 1 / completed, f"{total} / completed")
    elif completed is not None:
        found.problem("completed", "must be above 0: no request of this run was served", completed)
    for key, ours in (("model_id", "target_model"), ("backend", "backend"), ("date", "date"), ("dataset_name", "dataset")):
        if isinstance(values.get(key), str):
            found.readings[ours] = Reading(values[key], key, found.where)


def _acceptance(found: Collector, values: Mapping[str, Any]) -> Any:
    names = ("spec_decode_num_drafts", "spec_decode_draft_tokens", "spec_decode_accepted_tokens")
    found.number(values, "spec_decode_acceptance_length", "mean_acceptance_length", conversion="bonus token included")
    found.number(values, "spec_decode_acceptance_rate", "draft_acceptance_rate", 0.01, "percent / 100; accepted / drafted")
    rates = values.get("spec_decode_per_position_acceptance_rates")
    if rates is not None:
        if not isinstance(rates, list) or not all(isinstance(rate, (int, float)) and 0 <= rate <= 1 for rate in rates):
            found.problem("spec_decode_per_position_acceptance_rates", "must be a list of fractions from 0 to 1", rates)
        elif rates:
            key, how = "spec_decode_per_position_acceptance_rates", "unconditional, as printed"
            found.readings["acceptance_rates_per_position"] = Reading(tuple(map(float, rates)), key, found.where, how)
            found.derived("num_speculative_tokens", len(rates), key, "the number of positions the server counts")
    if not any(values.get(name) is not None for name in names):
        return None
    drafts, drafted, accepted = (values.get(name) for name in names)
    return counters(found, drafts, drafted, accepted)


def _requests(found: Collector, values: Mapping[str, Any]) -> RequestArrays | None:
    """The arrays of --save-detailed; a request with an error or without output is left out."""
    prompts, outputs = values.get("input_lens"), values.get("output_lens")
    if not isinstance(prompts, list) or not isinstance(outputs, list):
        return None
    gaps, starts = values.get("itls"), values.get("start_times")
    if len(prompts) != len(outputs) or any(isinstance(each, list) and len(each) != len(prompts) for each in (gaps, starts)):
        found.problem("input_lens", "must be as long as output_lens, itls and start_times", len(prompts))
        return None
    if not all(isinstance(n, int) and n >= 0 for n in (*prompts, *outputs)):
        found.problem("input_lens", "must hold whole numbers, as must output_lens")
        return None
    kept = [i for i, output in enumerate(outputs) if output > 0 and prompts[i] > 0]
    arrivals: list[float] = []
    if isinstance(starts, list) and all(isinstance(s, (int, float)) for s in starts) and kept:
        first = min(starts[i] for i in kept)
        arrivals = [float(starts[i] - first) for i in kept]
    return RequestArrays(tuple(arrivals), tuple(prompts[i] for i in kept), tuple(outputs[i] for i in kept))


def _contradictions(found: Collector) -> Iterator[str]:
    """Totals and latencies that cannot be of one run of one server."""
    values = {name: reading.value for name, reading in found.readings.items()}
    tokens, seconds, per_s = (values.get(name) for name in ("output_tokens_total", "duration_s", "output_tokens_per_s"))
    if tokens and seconds and per_s and abs(per_s * seconds / tokens - 1) > TOLERANCE:
        yield (
            f"output_throughput is {significant(per_s, 4)} tokens/s and total_output_tokens / duration "
            f"{significant(tokens / seconds, 4)}: they are not of one run"
        )
    running, most = values.get("concurrency_mean"), values.get("max_concurrency")
    if not running or not most:
        return
    if running > (1 + TOLERANCE) * most:
        yield (
            f"latencies and request rate need {significant(running)} requests at once (Little's law) and max_concurrency is "
            f"{most:.0f}: they are not of one run"
        )
    elif "request_rate_per_s" not in values and values.get("completed", 0) >= MANY_TURNS * most and running < IDLE * most:
        yield (
            f"requests were sent as fast as {most:.0f} at once allow, and {significant(running)} were served at once on average: "
            "the client held back or the duration holds idle time, so that the load of the run is not what it says"
        )


def _concurrency(found: Collector) -> None:
    """Mean requests in the server by Little's law, from the end-to-end latency or from TTFT and TPOT."""
    values = {name: reading.value for name, reading in found.readings.items()}
    rate, whole = values.get("requests_per_s"), values.get("e2e_latency_mean_s")
    how = "request_throughput · mean_e2el_ms / 1000 (Little's law)"
    if whole is None and {"ttft_mean_s", "tpot_mean_s", "output_tokens_mean"} <= values.keys():
        whole = values["ttft_mean_s"] + values["tpot_mean_s"] * (values["output_tokens_mean"] - 1)
        how = "request_throughput · (mean TTFT + mean TPOT · (tokens - 1)) (Little's law)"
    if rate and whole:
        found.derived("concurrency_mean", rate * whole, "request_throughput", how)
