"""SGLang: `bench_serving` result lines, the server's log, and the `meta_info` of responses.

"accept len" holds the bonus token. "accept rate" had two meanings: older releases printed accept len / draft tokens (the root
counted), newer ones accepted / drafts proposed. A line that has both tells which, once the number of draft tokens is known.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from simulator.acceptance.rates import AcceptanceCounters, sglang_acceptance_length
from simulator.interchange.observed import Collector, ObservedRun, Reading, RequestArrays, json_objects, lines, printed_number
from simulator.spec import Problem, SpecError

BENCH_FORMAT, LOG_FORMAT, RESPONSE_FORMAT = "sglang-bench", "sglang-log", "sglang-responses"
_MS = 1e-3
_STATISTICS = ("mean", "median", "std", "p90", "p95", "p99")
_LATENCIES = {"ttft_ms": "ttft", "tpot_ms": "tpot", "itl_ms": "itl", "e2e_latency_ms": "e2e_latency"}
_SERVER = {
    "model_path": "target_model",
    "speculative_draft_model_path": "draft_model",
    "speculative_algorithm": "algorithm",
    "tp_size": "tensor_parallel_size",
    "speculative_num_steps": "draft_steps",
    "speculative_eagle_topk": "draft_topk",
    "speculative_num_draft_tokens": "draft_tokens_with_root",
}


def is_bench(value: object) -> bool:
    """Whether a JSON value is one result of `sglang.bench_serving`."""
    return isinstance(value, dict) and {"duration", "completed", "total_output_tokens", "mean_e2e_latency_ms"} <= value.keys()


def read_bench(path: str | Path) -> Iterator[ObservedRun]:
    """Each result line of `bench_serving --output-file`. Raises `SpecError`."""
    for line, value in json_objects(path):
        if not is_bench(value):
            must = "must be a result of sglang.bench_serving, with duration, completed and mean_e2e_latency_ms"
            raise SpecError([Problem(f"{path}:{line}", "", must)])
        yield bench(value, f"{path}:{line}")


def bench(values: Mapping[str, Any], where: str) -> ObservedRun:
    """One result. Raises `SpecError` with everything that is wrong with it."""
    found, notes = Collector(where), []
    for key, ours in (
        ("duration", "duration_s"), ("completed", "completed"), ("total_output_tokens", "output_tokens_total"),
        ("output_throughput", "output_tokens_per_s"), ("request_throughput", "requests_per_s"),
        ("max_concurrency", "max_concurrency"), ("concurrency", "concurrency_mean"),
    ):  # fmt: skip
        found.number(values, key, ours)
    if isinstance(values.get("dataset_name"), str):
        found.readings["dataset"] = Reading(values["dataset_name"], "dataset_name", where)
    rate = values.get("request_rate")
    if isinstance(rate, (int, float)) and not isinstance(rate, bool) and math.isfinite(rate):
        found.number(values, "request_rate", "request_rate_per_s")
    completed = values.get("completed")
    if isinstance(completed, int) and completed > 0:
        for total, ours in (("total_input_tokens", "prompt_tokens_mean"), ("total_output_tokens", "output_tokens_mean")):
            found.number(values, total, ours, 1 / completed, f"{total} / completed")
    else:
        found.problem("completed", "must be above 0: no request of this run was served", completed)
    for theirs, name in _LATENCIES.items():
        for statistic in _STATISTICS:
            found.number(values, f"{statistic}_{theirs}", f"{name}_{statistic}_s", _MS, "ms / 1000")
    found.number(
        values, "accept_length", "mean_acceptance_length", conversion="bonus token included; the server's mean since its start"
    )
    if "mean_acceptance_length" in found.readings:
        notes.append("SGLang's accept_length is the server's mean since it started: earlier requests are in it")
    _server(found, values.get("server_info"))
    found.raise_problems()
    return ObservedRun(BENCH_FORMAT, where, found.readings, None, _requests(values), tuple(notes))


def _server(found: Collector, server: object) -> None:
    """The settings of the server, which the file does hold."""
    if not isinstance(server, dict):
        return
    for key, ours in _SERVER.items():
        if isinstance(value := server.get(key), (str, int)) and not isinstance(value, bool):
            found.readings[ours] = Reading(value, f"server_info.{key}", found.where)
    steps, topk, nodes = (server.get(f"speculative_{name}") for name in ("num_steps", "eagle_topk", "num_draft_tokens"))
    if server.get("speculative_algorithm") is None or not isinstance(steps, int):
        return
    if topk in (None, 1) and nodes in (None, steps + 1):
        found.readings["num_speculative_tokens"] = Reading(steps, "server_info.speculative_num_steps", found.where)
    elif isinstance(topk, int) and isinstance(nodes, int):
        shape = f"steps={steps},topk={topk},draft_tokens={nodes}"
        found.derived("tree_shape", shape, "server_info", "a tree: draft tokens count the root")


def _requests(values: Mapping[str, Any]) -> RequestArrays | None:
    prompts, outputs = values.get("input_lens"), values.get("output_lens")
    if not isinstance(prompts, list) or not isinstance(outputs, list) or len(prompts) != len(outputs):
        return None
    if not all(isinstance(n, int) for n in (*prompts, *outputs)):
        return None
    kept = [i for i, output in enumerate(outputs) if output > 0 and prompts[i] > 0]
    return RequestArrays((), tuple(prompts[i] for i in kept), tuple(outputs[i] for i in kept))


# ----------------------------------------------------------------------------------------------------------------- log

# Data-parallel ranks log a line each.
_RANK = re.compile(r"\bDP(\d+)\b")
_FIELDS = {
    "running": re.compile(r"#running-req: (\d+)"),
    "length": re.compile(r"accept len: ([\d.]+|nan)"),
    "rate": re.compile(r"accept rate: ([\d.]+|nan)"),
    "throughput": re.compile(r"gen throughput \(token/s\): ([\d.]+|nan)"),
    "graph": re.compile(r"cuda graph: (True|False)"),
}


def is_log(line: str) -> bool:
    """Whether a line is SGLang's decode line."""
    return "Decode batch" in line and "#running-req" in line


def read_log(path: str | Path, draft_tokens: int | None = None) -> Iterator[ObservedRun]:
    """One run: the decode lines of a server log. `draft_tokens` counts the root, as the server's flag does; needed where the
    lines print a rate and no length. Each line covers the same number of passes, so lines weigh alike. Raises `SpecError`."""
    found = Collector(str(path))
    means: dict[str, _Mean] = defaultdict(_Mean)
    by_rank: dict[tuple[str, str], _Mean] = defaultdict(_Mean)
    decode_lines = eager = 0
    for number, text in lines(path):
        if not is_log(text):
            continue
        decode_lines += 1
        rank = _RANK.search(text)
        for name, pattern in _FIELDS.items():
            match = pattern.search(text)
            if match is not None and name == "graph":
                eager += match[1] == "False"
            elif match is not None and match[1] != "nan":
                mean = by_rank[name, rank[1] if rank else ""] if name in ("running", "throughput") else means[name]
                mean.add(printed_number(match[1], f"{path}:{number}", name))
    if not decode_lines:
        raise SpecError([Problem(str(path), "", "must hold lines of SGLang such as 'Decode batch, #running-req: …'")])
    notes = _acceptance_of_lines(found, means["length"], means["rate"], draft_tokens)
    ranks = len({rank for _, rank in by_rank})
    how = f"mean of {decode_lines} decode lines" + (f", added up over {ranks} ranks" if ranks > 1 else "")
    running, throughput = (
        sum(mean.value for (name, _), mean in by_rank.items() if name == asked) for asked in ("running", "throughput")
    )
    found.derived("concurrency_mean", running, "#running-req", how)
    if throughput:
        found.derived("output_tokens_per_s", throughput, "gen throughput", how)
    if eager:
        notes.append(f"{eager} of {decode_lines} decode lines ran without a CUDA graph")
    found.raise_problems()
    return iter([ObservedRun(LOG_FORMAT, str(path), found.readings, None, None, tuple(notes))])


class _Mean:
    """The mean of numbers that come one by one; 0 of none."""

    def __init__(self) -> None:
        self.sum, self.count = 0.0, 0

    def add(self, value: float) -> None:
        self.sum += value
        self.count += 1

    @property
    def value(self) -> float:
        return self.sum / self.count if self.count else 0.0


def _acceptance_of_lines(found: Collector, lengths: _Mean, rates: _Mean, draft_tokens: int | None) -> list[str]:
    """τ from the lengths; from rates alone only where the release's meaning of a rate can be told."""
    if lengths.count:
        length = lengths.value
        found.derived("mean_acceptance_length", length, "accept len", f"bonus token included, mean of {lengths.count} lines")
        if draft_tokens is not None:
            found.derived("num_speculative_tokens", draft_tokens - 1, "--draft-tokens", "a chain: draft tokens - 1, the root")
            if not 1 <= length <= draft_tokens:
                found.problem("accept len", f"must be from 1 to {draft_tokens}, the draft tokens with the root", f"{length:.3g}")
        return [_meaning_of_rate(length, rates.value, draft_tokens)] if rates.count and draft_tokens is not None else []
    if rates.count:
        found.problem(
            "accept rate",
            "must stand beside accept len: releases differ in what it divides by, and neither can be told from the rate alone",
        )
    return []


def _meaning_of_rate(length: float, rate: float, draft_tokens: int) -> str:
    """Which of the two meanings the lines follow, told by which turns the mean rate into the mean length."""
    errors = {
        counts_root: abs(sglang_acceptance_length(rate, draft_tokens, counts_root=counts_root) - length)
        for counts_root in (True, False)
    }
    if min(errors.values()) > 0.05:
        return (
            f"accept rate {rate:.2f} and accept len {length:.2f} fit neither meaning at {draft_tokens} draft tokens: "
            "the draft length varied, or the number of draft tokens is another"
        )
    older = errors[True] < errors[False]
    return "accept rate divides by " + ("all draft tokens, the root counted (older release)" if older else "the drafts proposed")


# ----------------------------------------------------------------------------------------------------------- responses


def meta_info(value: object) -> Mapping[str, Any] | None:
    """The speculation counters of one response, or None."""
    inner = value.get("meta_info", value) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) and "spec_verify_ct" in inner else None


def read_responses(path: str | Path) -> Iterator[ObservedRun]:
    """One run: responses with `meta_info`, one JSON object a line or in a list. Their histogram of drafts accepted per
    verification gives the rates per position exactly. Raises `SpecError`."""
    found = Collector(str(path))
    rounds = accepted = drafted = responses = 0
    histogram: list[int] = []
    for line, value in json_objects(path):
        found.where = f"{path}:{line}"
        for each in value if isinstance(value, list) else [value]:
            info = meta_info(each)
            if info is None:
                continue
            counts = _whole(found, info)
            if counts is None:
                continue
            rounds, accepted, drafted, responses = rounds + counts[0], accepted + counts[1], drafted + counts[2], responses + 1
            histogram = _added(histogram, info.get("spec_correct_drafts_histogram") or info.get("spec_accept_histogram") or [])
    found.where = str(path)
    if not responses:
        found.problem(
            "meta_info", "must hold spec_verify_ct, spec_num_correct_drafts and spec_num_proposed_drafts in some response"
        )
    found.raise_problems()
    counters = AcceptanceCounters(rounds, drafted, accepted)
    how = f"summed over {responses} responses"
    found.derived("mean_acceptance_length", 1 + accepted / rounds, "spec_num_correct_drafts, spec_verify_ct", how)
    notes = []
    if sum(histogram) == rounds and sum(n * count for n, count in enumerate(histogram)) == accepted and len(histogram) > 1:
        rates = tuple(sum(histogram[depth:]) / rounds for depth in range(1, len(histogram)))
        found.derived("acceptance_rates_per_position", rates, "spec_correct_drafts_histogram", f"unconditional, {how}")
    elif histogram:
        notes.append("the histogram of accepted drafts does not add up to the counters and is not used")
    return iter([ObservedRun(RESPONSE_FORMAT, str(path), found.readings, counters, None, tuple(notes))])


def _whole(found: Collector, info: Mapping[str, Any]) -> tuple[int, int, int] | None:
    accepted = info.get("spec_num_correct_drafts", info.get("spec_accepted_drafts", info.get("spec_accept_token_num")))
    drafted = info.get("spec_num_proposed_drafts", info.get("spec_proposed_drafts", info.get("spec_draft_token_num")))
    values = (info["spec_verify_ct"], accepted, drafted)
    if not all(isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in values):
        found.problem("meta_info", "must have whole counts: verifications, accepted and proposed drafts", values)
        return None
    rounds, right, proposed = values
    if right > proposed or rounds > proposed:
        found.problem("meta_info", "must have accepted drafts and verifications at most equal to proposed drafts", values)
        return None
    return (rounds, right, proposed) if rounds else None


def _added(histogram: list[int], more: object) -> list[int]:
    if not isinstance(more, list) or not all(isinstance(count, int) and count >= 0 for count in more):
        return histogram
    size = max(len(histogram), len(more))
    return [(histogram[i] if i < len(histogram) else 0) + (more[i] if i < len(more) else 0) for i in range(size)]
