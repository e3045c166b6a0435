"""Imported runs as files of this project: measured points, an acceptance profile, a request trace, a scenario.

What an engine's file does not hold (device, method, γ, …) is asked for and never guessed: `Settings` are the user's words.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import Any

import yaml

from simulator.draft_tree import read_tree
from simulator.interchange.engine_flags import ServerSettings, method_of
from simulator.interchange.observed import ObservedRun
from simulator.interchange.request_traces import GENERIC
from simulator.spec import Problem, SpecError

SCHEMA_VERSION = 1
WORKLOAD_REQUESTS = 500  # of a workload that is only named: enough for an interval, seconds to simulate
_FEWEST_LENGTHS = 10  # requests from which a median and a 90th percentile say more than a mean


@dataclass(frozen=True)
class Settings:
    """What the user says of the runs, in the words of a scenario."""

    hardware: str | None = None
    engine: str | None = None
    target: str | None = None
    drafter: str | None = None
    method: str | None = None
    precision: str | None = None
    tensor_parallel_size: int | None = None
    sampler: str | None = None
    prompts: str | None = None
    workload: str | None = None
    rate_per_s: float | None = None


def measured(runs: Sequence[ObservedRun], settings: Settings) -> str:
    """The text of a file of measured points, each number with its field and conversion."""
    given = {key: value for key, value in asdict(settings).items() if value is not None}
    document: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
    if given:
        document["settings"] = given
    document["runs"] = [_run(run) for run in runs]
    return "# Imported by specsim: values in SI units, each with the field it came from.\n" + _yaml(document)


def _run(run: ObservedRun) -> dict[str, Any]:
    readings = {
        name: {"value": _plain(reading.value), "field": reading.field, "conversion": reading.conversion}
        for name, reading in sorted(run.readings.items())
    }
    if run.counters is not None:
        counts = run.counters
        readings["counters"] = {
            "value": {
                "drafts": counts.drafts,
                "draft_tokens": counts.draft_tokens,
                "accepted_tokens": counts.accepted_tokens,
                "rounds_without_draft": counts.rounds_without_draft,
            },
            "field": "the engine's counters",
            "conversion": "as counted",
        }
    row: dict[str, Any] = {"format": run.format, "where": run.where, "readings": readings}
    if run.notes:
        row["notes"] = list(run.notes)
    return row


def acceptance_profile(run: ObservedRun, settings: Settings) -> str:
    """The text of an acceptance profile. Raises `SpecError` where the method, the target or γ is not known."""
    missing = [name for name in ("method", "target") if _known(run, settings, name) is None]
    gamma, rates = run.value("num_speculative_tokens"), run.value("acceptance_rates_per_position")
    if rates is None and gamma is None:
        missing.append("num-speculative-tokens")
    if missing:
        must = "must be given for an acceptance profile: the file does not hold it"
        raise SpecError([Problem("--" + name, "", must) for name in missing])
    counts = run.counters
    law: dict[str, Any] = {}
    if rates is not None:
        law["acceptance_rates_per_position"] = [
            _digits(min(rate, earlier)) for rate, earlier in zip(rates, (1.0, *rates), strict=False)
        ]
    else:
        law["mean_acceptance_lengths"] = {int(gamma): _digits(run.mean_acceptance_length)}
    method = _known(run, settings, "method")
    if counts is not None and counts.rounds_without_draft and method in ("ngram", "suffix"):
        law["proposal_rate"] = _digits(counts.proposal_share)
    counted = f"; {counts.accepted_tokens} of {counts.draft_tokens} drafts accepted in {counts.drafts} rounds" if counts else ""
    document = {
        "schema_version": 1,
        "description": f"{_known(run, settings, 'target')}, {method}, imported from {run.format}",
        "method": method,
        "target": _known(run, settings, "target"),
        "drafter": _known(run, settings, "drafter") or "not said",
        "sampler": settings.sampler or "not said",
        "prompts": settings.prompts or "not said",
        "unit": "acceptance rates per position, unconditional" if rates is not None else "τ by γ, bonus token included",
        "source": {
            "citation": f"{run.format}, {_file_name(run.where)}{counted}",
            "url": "none",
            "confidence": "own-measurement",
        },
        **law,
    }
    if run.notes:
        document["notes"] = "; ".join(run.notes)
    return _yaml(document)


def requests_csv(run: ObservedRun) -> str | None:
    """A request trace of the run's own arrivals and lengths; None where the file does not list them."""
    if run.requests is None or not run.requests.arrival_s:
        return None
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(GENERIC)
    rows = zip(run.requests.arrival_s, run.requests.prompt_tokens, run.requests.output_tokens, strict=True)
    writer.writerows((f"{arrival:.6f}", prompt, output) for arrival, prompt, output in sorted(rows))
    return text.getvalue()


def scenario(
    runs: Sequence[ObservedRun], settings: Settings, server: ServerSettings | None = None, trace_file: str | None = None
) -> str:
    """A scenario of what was imported: the server's settings, the runs' traffic and acceptance, and the user's words.

    Without acceptance in the runs it asks for the break-even. Raises `SpecError` for everything that is missing.
    """
    speculative = next((run for run in runs if run.speculative), None)
    traffic = next((run for run in runs if not run.speculative and holds_traffic(run)), speculative)
    parts = _sections(settings, server, speculative)
    missing = [
        flag
        for flag, known in (
            ("hardware", settings.hardware),
            ("engine", parts["engine"]),
            ("target", parts["target"].get("model")),
            ("method", parts["speculation"].get("method")),
            ("num-speculative-tokens", parts["speculation"].keys() & {"num_speculative_tokens", "by_batch", "tree"}),
            ("workload", settings.workload or trace_file or (traffic is not None and holds_traffic(traffic))),
        )
        if not known
    ]
    if missing:
        raise SpecError([Problem("--" + name, "", "must be given for a scenario: no file holds it") for name in missing])
    if speculative is not None:
        parts["acceptance"] = acceptance_section(speculative)
    if settings.workload is not None:
        arrivals = (
            {"process": "trace"} if settings.rate_per_s is None else {"process": "poisson", "rate_per_s": settings.rate_per_s}
        )
        parts["workload"] = {"arrivals": arrivals, "requests": {"trace": settings.workload}}
        parts["workload"]["num_requests"] = WORKLOAD_REQUESTS
    elif traffic is not None:
        parts["workload"] = workload_section(traffic, trace_file)
    order = ("hardware", "parallel", "engine", "kernels", "target", "speculation", "acceptance", "workload", "limits")
    document = {name: parts[name] for name in order if parts.get(name)} | {"seed": 1}
    sources = [_file_name(run.where) for run in runs] + ([] if server is None else [f"a command for {server.engine}"])
    return f"# Imported from {', '.join(sources)}.\n" + _yaml(document)


def _sections(settings: Settings, server: ServerSettings | None, speculative: ObservedRun | None) -> dict[str, Any]:
    """Sections of a scenario: the server's, then what the runs say, then the user's words, which win."""
    parts: dict[str, Any] = {"target": {}, "speculation": {}, "parallel": {}, "limits": {}}
    parts |= {name: dict(section) for name, section in (server.sections if server is not None else {}).items()}
    if speculative is not None:
        stated = parts["speculation"].keys() & {"num_speculative_tokens", "by_batch", "tree"}
        if not stated and (gamma := speculative.value("num_speculative_tokens")) is not None:
            parts["speculation"]["num_speculative_tokens"] = int(gamma)
        elif not stated and (shape := speculative.value("tree_shape")) is not None:
            tree = read_tree(shape)
            parts["speculation"]["tree"] = {"steps": tree.steps, "topk": tree.width, "draft_tokens": tree.nodes}
        for key, name in (("method", "method"), ("drafter", "drafter")):
            if (value := _known(speculative, Settings(), name)) is not None:
                parts["speculation"].setdefault(key, value)
        if (size := speculative.value("tensor_parallel_size")) is not None and size > 1:
            parts["parallel"].setdefault("tensor_parallel_size", int(size))
        if (model := speculative.value("target_model")) is not None:
            parts["target"].setdefault("model", model)
    parts["hardware"], parts["engine"] = settings.hardware, settings.engine or (server.engine if server is not None else None)
    for section, key, value in (
        ("target", "model", settings.target),
        ("target", "weights", settings.precision),
        ("speculation", "method", settings.method),
        ("speculation", "drafter", settings.drafter),
        ("parallel", "tensor_parallel_size", settings.tensor_parallel_size),
    ):
        if value is not None:
            parts[section][key] = value
    return parts


def holds_traffic(run: ObservedRun) -> bool:
    """Whether the run says how many requests of which length it served."""
    return bool(run.value("completed")) and run.value("prompt_tokens_mean") is not None


def acceptance_section(run: ObservedRun) -> dict[str, Any]:
    """The `acceptance:` section that says what the run counted."""
    rates = run.value("acceptance_rates_per_position")
    if rates is not None:
        return {"acceptance_rates_per_position": [_digits(rate) for rate in rates]}
    return {"mean_acceptance_length": _digits(run.mean_acceptance_length)}


def workload_section(run: ObservedRun, trace_file: str | None = None) -> dict[str, Any]:
    """The `workload:` section of the run's traffic, of its own requests where `trace_file` holds them. Raises `SpecError`."""
    completed = int(run.value("completed") or 0)
    if trace_file is not None:
        return {"arrivals": {"process": "trace"}, "requests": {"trace": trace_file}}
    lengths = {side: _length(run, side) for side in ("prompt", "output")}
    missing = [f"{side}_tokens_mean" for side, value in lengths.items() if value is None] + ([] if completed else ["completed"])
    if missing:
        raise SpecError([Problem(run.where, name, "must be in the file: a scenario needs its traffic") for name in missing])
    return {"arrivals": _arrivals(run, completed), "lengths": lengths, "num_requests": completed}


def _arrivals(run: ObservedRun, completed: int) -> dict[str, Any]:
    rate, users, burstiness = run.value("request_rate_per_s"), run.value("max_concurrency"), run.value("burstiness")
    if rate is None:
        return {"process": "closed_loop", "users": int(min(users or completed, completed))}
    if burstiness is not None and burstiness > 0 and burstiness != 1:
        # vLLM's burstiness is the shape of gamma gaps, the inverse of the squared coefficient of variation.
        return {"process": "gamma", "rate_per_s": float(rate), "burstiness": _digits(1 / burstiness)}
    return {"process": "poisson", "rate_per_s": float(rate)}


def _length(run: ObservedRun, side: str) -> Any:
    """Tokens as a distribution where requests are listed, else their mean; None where the file has neither."""
    if run.requests is not None and len(run.requests.prompt_tokens) >= _FEWEST_LENGTHS:
        tokens = run.requests.prompt_tokens if side == "prompt" else run.requests.output_tokens
        middle, high = round(median(tokens)), round(quantiles(tokens, n=10)[-1])
        if high > middle:
            return {"distribution": "lognormal", "median": max(middle, 1), "p90": high}
        return max(middle, 1)
    mean = run.value(f"{side}_tokens_mean")
    return None if mean is None else max(1, round(mean))


def _known(run: ObservedRun, settings: Settings, name: str) -> Any:
    """What the user said, else what the file says."""
    own: Mapping[str, str] = {"target": "target_model", "drafter": "draft_model", "tensor_parallel_size": "tensor_parallel_size"}
    given = getattr(settings, name)
    if given is not None:
        return given
    algorithm = run.value("algorithm")
    if name == "method":
        return None if algorithm is None else method_of(algorithm)
    return run.value(own[name]) if name in own else None


def _file_name(where: str) -> str:
    return where.replace("\\", "/").rpartition("/")[2]


def _digits(value: float) -> float:
    return float(f"{value:.6g}")


def _plain(value: Any) -> Any:
    """For YAML, without the last digits of a unit's conversion."""
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return float(f"{value:.12g}") if isinstance(value, float) else value


def _yaml(document: Mapping[str, Any]) -> str:
    text: str = yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True, default_flow_style=None, width=120)
    return text
