"""Metrics pages of vLLM and SGLang in Prometheus' text format: one page since the server's start, or the difference of two."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from simulator.interchange.observed import Collector, ObservedRun, Reading, counters, lines
from simulator.spec import Problem, SpecError, shown

FORMAT = "prometheus"
_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$")
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
_DRAFTS = "vllm:spec_decode_num_drafts"
_DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens"
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"
_HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": "ttft_mean_s",
    "vllm:request_time_per_output_token_seconds": "tpot_mean_s",
    "vllm:inter_token_latency_seconds": "itl_mean_s",
    "vllm:e2e_request_latency_seconds": "e2e_latency_mean_s",
    "vllm:request_prompt_tokens": "prompt_tokens_mean",
    "vllm:request_generation_tokens": "output_tokens_mean",
}
_GAUGES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_cache_usage",
    "sglang:num_running_reqs": "running",
    "sglang:spec_accept_length": "mean_acceptance_length",
    "sglang:spec_num_steps": "num_speculative_tokens",
}
# Gauges that add up over the engines behind one page (data-parallel ranks); of the others their mean is what one engine shows.
_ADDED_UP = ("running", "waiting")


@dataclass(frozen=True)
class Page:
    """Samples of one scrape: (name without ``_total``, labels) → value, summed over engines. engines: how many each sums up."""

    source: str
    samples: Mapping[tuple[str, tuple[tuple[str, str], ...]], float]
    engines: Mapping[tuple[str, tuple[tuple[str, str], ...]], int]
    models: frozenset[str]

    def value(self, name: str, **labels: str) -> float | None:
        return self.samples.get((name, tuple(sorted(labels.items()))))

    def mean(self, name: str) -> float | None:
        """Of the engines."""
        total = self.value(name)
        return None if total is None else total / self.engines[name, ()]

    def positions(self, name: str) -> dict[int, float]:
        """Values by the label ``position``."""
        found = {}
        for (sample, labels), value in self.samples.items():
            position = dict(labels).get("position")
            if sample == name and position is not None and position.isdecimal() and len(position) < 5:
                found[int(position)] = value
        return found


def is_metrics(line: str) -> bool:
    """Whether a line is of a metrics page of an engine known here."""
    return bool(re.match(r"^(# (HELP|TYPE) )?(vllm|sglang):\w+", line))


def read(before: str | Path, after: str | Path | None = None) -> Iterator[ObservedRun]:
    """One run: everything since the server's start, or what lies between two scrapes. Raises `SpecError`."""
    first = page(before)
    if after is None:
        run = _run(first, None)
        yield run.with_note("one page: its counters hold everything since the server started, warm-up included")
    else:
        yield _run(page(after), first)


def page(path: str | Path) -> Page:
    """The samples of a metrics page. Raises `SpecError` where a line of an engine is no sample, or several models share it."""
    samples: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    engines: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}
    models: set[str] = set()
    for number, text in lines(path):
        if not text.startswith(("vllm:", "sglang:")):
            continue
        match = _SAMPLE.match(text)
        try:
            value = float(match[3]) if match else math.nan
        except ValueError:
            value = math.nan
        if match is None or "le=" in (match[2] or ""):
            if match is None:
                raise SpecError([Problem(f"{path}:{number}", "", "must be a sample: name{labels} value", shown(text))])
            continue
        labels = dict(_LABEL.findall(match[2] or ""))
        if model := labels.pop("model_name", ""):
            models.add(model)
        kept = {key: labels[key] for key in ("position",) if key in labels}
        key = (match[1].removesuffix("_total"), tuple(sorted(kept.items())))
        samples[key], engines[key] = samples.get(key, 0.0) + value, engines.get(key, 0) + 1
    if not samples:
        raise SpecError([Problem(str(path), "", "must be a metrics page of vLLM or SGLang (names start with vllm: or sglang:)")])
    if len(models) > 1:
        raise SpecError([Problem(str(path), "model_name", "must be one model", ", ".join(sorted(models)))])
    return Page(str(path), samples, engines, frozenset(models))


def _run(last: Page, first: Page | None) -> ObservedRun:
    where = last.source if first is None else f"{first.source} to {last.source}"
    how = "since the server's start" if first is None else "second page - first page"
    found = Collector(where)

    def counted(name: str) -> float | None:
        value = last.value(name)
        if value is None or first is None:
            return value
        return _difference(found, name, first.value(name) or 0.0, value)

    for name, ours in _HISTOGRAMS.items():
        total, count = counted(name + "_sum"), counted(name + "_count")
        if total is not None and count:
            found.derived(ours, total / count, f"{name}_sum / {name}_count", how)
    for name, ours in _GAUGES.items():
        gauge = last.value(name) if ours in _ADDED_UP else last.mean(name)
        if gauge is not None and math.isfinite(gauge):
            found.derived(ours, gauge, name, "gauge at the last scrape")
    if "num_speculative_tokens" in found.readings:
        found.derived("num_speculative_tokens", int(found.readings["num_speculative_tokens"].value), "sglang:spec_num_steps", "γ")
    tokens = counted("vllm:generation_tokens")
    if tokens:
        found.derived("output_tokens_total", tokens, "vllm:generation_tokens_total", how)
    counts = None
    drafts = counted(_DRAFTS)
    if drafts is not None:
        counts = counters(found, drafts, counted(_DRAFT_TOKENS), counted(_ACCEPTED))
        _per_position(found, last, first, drafts, how)
    found.raise_problems()
    for model in last.models:
        found.readings["target_model"] = Reading(model, "model_name", where)
    return ObservedRun(FORMAT, where, found.readings, counts)


def _difference(found: Collector, name: str, before: float, after: float) -> float:
    if after < before:
        found.problem(
            name, f"must not fall between the two pages (first {before:g}): the server was restarted, or they are swapped", after
        )
        return 0.0
    return after - before


def _per_position(found: Collector, last: Page, first: Page | None, drafts: float, how: str) -> None:
    accepted = last.positions(_PER_POSITION)
    earlier = first.positions(_PER_POSITION) if first is not None else {}
    if not accepted or not drafts:
        return
    if sorted(accepted) != list(range(len(accepted))):
        found.problem(_PER_POSITION, "must have every position from 0 on", sorted(accepted))
        return
    rates = tuple((accepted[i] - earlier.get(i, 0.0)) / drafts for i in range(len(accepted)))
    field = f"{_PER_POSITION}_total"
    found.readings["acceptance_rates_per_position"] = Reading(rates, field, found.where, f"/ drafts, {how}")
    found.derived("num_speculative_tokens", len(rates), field, "the number of positions the server counts")
