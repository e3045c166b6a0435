"""Results as data: JSON-able dicts and CSV. Key names end in their unit; numbers have six digits; never NaN or infinity."""

from __future__ import annotations

import csv
import io
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from simulator import theory
from simulator.cost.deployment import Deployment
from simulator.cost.spread import Estimate
from simulator.cost.unmeasured import unmeasured
from simulator.draft_tree import Tree
from simulator.plots.words import acceptance_source, is_known, provenance
from simulator.questions.break_even import BreakEven, BreakEvenPoint
from simulator.questions.method_map import MethodMap
from simulator.reports.tables import break_even_notes, break_even_sentence
from simulator.reports.verdict import answer, headline, subject, verdict_sentence
from simulator.scenario import PrefillInstances, Scenario
from simulator.serving import AcceptanceCounts, unmet_limits
from simulator.simulation import Comparison, SimulationResult, Variant

SCHEMA_VERSION = 1


def run_summary(result: SimulationResult) -> dict[str, Any]:
    """Everything that `run` says, verdict first. Same scenario and seed, same content."""
    chosen = subject(result)
    verdict = {"answer": answer(result), "sentence": " ".join(headline(result))}
    summary = {
        "schema_version": SCHEMA_VERSION,
        "verdict": verdict if chosen is None else {**verdict, **_verdict(chosen)},
        "requests": {
            "asked": len(result.requests),
            "prompt_tokens": sum(request.prompt_tokens for request in result.requests),
            "output_tokens": sum(request.output_tokens for request in result.requests),
            "last_arrival_s": max((request.arrival_s for request in result.requests), default=None),
        },
        "variants": [_variant(result, variant) for variant in (result.plain, *(c.variant for c in result.comparisons))],
        "comparisons": [_comparison(result, comparison) for comparison in result.comparisons],
        **ending(result.scenario, result.warnings),
    }
    data: dict[str, Any] = plain_data(summary)
    return data


def _verdict(comparison: Comparison) -> dict[str, Any]:
    return {
        "metric": comparison.metric,
        "gain": comparison.gain,
        "variant": comparison.variant.label,
        **_drafts(comparison.variant.shape),
        "textbook_speedup": comparison.textbook_speedup,
        "causes": comparison.causes,
    }


def _variant(result: SimulationResult, variant: Variant) -> dict[str, Any]:
    summary, level = variant.summary, result.scenario.file.service_level
    data = {field.name: getattr(summary, field.name) for field in fields(summary)}
    data["acceptance"] = _acceptance(summary.acceptance) if variant.gamma else None
    data["saturated_requests_per_s"] = variant.saturation.per_s
    data["saturated_prefill_share"] = variant.saturation.prefill_share
    data["offered_share"] = None if result.scenario.file.workload.arrivals.users else variant.offered_share
    if level is not None:
        unmet = unmet_limits(summary, level)
        data["unmet_limits"] = {
            name: {"reached_s": reached_s, "limit_s": limit_s} for name, (reached_s, limit_s) in unmet.items()
        }
    head = {
        "label": variant.label,
        "method": variant.deployment.method,
        **_drafts(variant.shape),
        "policy": variant.policy.model_dump(exclude_none=True) if variant.gamma else None,
        "off_share": variant.off_share if variant.gamma else None,
        "graph_share": variant.graph_share,
        "kv_blocks": variant.kv_blocks,
        "kv_cache_tokens": variant.kv_blocks * variant.deployment.engine.block_tokens,
        "engine_statistics": asdict(variant.result.statistics),
    }
    return {**head, **data}


def _drafts(shape: Tree) -> dict[str, Any]:
    """γ, or the depth of a tree, and the tree's steps/width/nodes; no tree for a chain."""
    return {"num_speculative_tokens": shape.depth, "tree": None if shape.is_chain else shape.name.removeprefix("tree ")}


def _acceptance(counts: AcceptanceCounts) -> dict[str, Any]:
    return {
        "rounds": counts.rounds,
        "draft_rounds": counts.draft_rounds,
        "drafted_tokens": counts.drafted,
        "accepted_tokens": counts.accepted,
        "mean_acceptance_length": counts.mean_acceptance_length,
        "mean_acceptance_length_with_drafts": counts.mean_acceptance_length_with_drafts,
        "draft_acceptance_rate": counts.draft_acceptance_rate,
    }


def _comparison(result: SimulationResult, comparison: Comparison) -> dict[str, Any]:
    cost, shape, tau = comparison.round, comparison.shape, comparison.mean_acceptance_length
    return {
        "label": comparison.variant.label,
        **_drafts(comparison.variant.shape),
        "sentence": verdict_sentence(comparison, result),
        "verdict": comparison.verdict,
        "metric": comparison.metric,
        "gain": comparison.gain,
        "requests_to_tell": comparison.requests_to_tell,
        "tpot_gain": comparison.tpot,
        "e2e_latency_gain": comparison.e2e,
        "goodput_gain": comparison.goodput,
        "output_tokens_per_s_gain": comparison.output_tokens,
        "capacity_gain": comparison.capacity,
        "causes": comparison.causes,
        "mean_acceptance_length": tau,
        "round_cost_ratio": comparison.r,
        "decode_speedup": tau / comparison.r.value,
        "textbook_speedup": comparison.textbook_speedup,
        "break_even_acceptance_length": comparison.r.value,
        "break_even_acceptance_rate": comparison.break_even_acceptance_rate,
        "break_even_draft_acceptance_rate": theory.break_even_draft_acceptance_rate(comparison.r.value, shape.nodes - 1),
        "remark": comparison.remark,
        "round": {
            **_drafts(shape),
            "batch": comparison.batch,
            "context_tokens": comparison.context,
            "plain_step_s": cost.plain_step_s,
            "round_s": cost.round_s,
            "draft_s": cost.draft_s,
            "verify_s": cost.verify_s,
            "cost_coefficient": cost.cost_coefficient,
            "verification_cost_ratio": cost.verification_cost_ratio,
            "bound": cost.bound,
            "plain_terms": cost.plain,
            "verify_terms": cost.verify,
            "draft_terms": cost.draft,
        },
    }


# --------------------------------------------------------------------------------------------------------- break-even


def break_even_summary(answer: BreakEven, methods: MethodMap | None = None) -> dict[str, Any]:
    """Every point and the map of the best γ. methods: the map of several methods that stands beside it."""
    summary = {
        "schema_version": SCHEMA_VERSION,
        "sentence": break_even_sentence(answer, methods),
        "own_context_tokens": answer.own_context,
        "notes": break_even_notes(answer),
        "points": [break_even_row(point) for point in answer.points],
        "best": answer.best,
        "policies": answer.policies,
        **ending(answer.scenario, answer.warnings),
    }
    data: dict[str, Any] = plain_data(summary)
    return data


def break_even_csv(answer: BreakEven) -> str:
    """One row per γ or tree, batch and context; blank where α* does not exist or acceptance is not stated."""
    return csv_text([break_even_row(point) for point in answer.points])


def csv_text(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> str:
    """Rows as CSV, numbers to six digits, blank where a row has nothing to say. columns: left out, those of the first row."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    header = columns if columns is not None else list(rows[0]) if rows else []
    writer.writerow(header)
    writer.writerows([csv_cell(row.get(name)) for name in header] for row in rows)
    return text.getvalue()


def break_even_row(point: BreakEvenPoint) -> dict[str, Any]:
    return {
        **_drafts(point.shape),
        "batch": point.batch,
        "context_tokens": point.context_tokens,
        "break_even_acceptance_rate": point.break_even_acceptance_rate,
        "break_even_acceptance_length": point.r,
        "break_even_acceptance_length_low": point.r_low,
        "break_even_acceptance_length_high": point.r_high,
        "break_even_draft_acceptance_rate": theory.break_even_draft_acceptance_rate(point.r, point.shape.nodes - 1),
        "mean_acceptance_length": point.mean_acceptance_length,
        "speedup": point.speedup,
        "speedup_low": point.speedup_low,
        "speedup_high": point.speedup_high,
        "fits_kv_cache": point.fits,
    }


def csv_cell(value: object) -> str:
    """Numbers to six digits, truth in lower case, blank for None."""
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


# ------------------------------------------------------------------------------------------- what both of them end with


def ending(scenario: Scenario, warnings: Sequence[str]) -> dict[str, Any]:
    """What every summary ends with: the scenario, its settings, where each number comes from, warnings, what was never measured
    (`cost.unmeasured`) and versions."""
    stated = scenario.file.model_dump(mode="json", exclude_none=True)
    return {
        "scenario": {"name": scenario.name, "file": Path(scenario.document.source).name, **stated},
        "settings": settings(scenario),
        "provenance": provenance_data(scenario),
        "warnings": warnings,
        "unmeasured": sorted({part for shape in scenario.shapes for part in unmeasured(scenario.deployed(shape)).parts}),
        "versions": versions(),
    }


def settings(scenario: Scenario) -> dict[str, Any]:
    """What was simulated, in the engines' words, with every default filled in."""
    deployment = scenario.deployment
    return {
        "hardware": deployment.hardware.name,
        "engine": deployment.engine.name,
        "target": deployment.target.name,
        "weights": deployment.weights,
        "kv_cache": deployment.kv_cache,
        "tensor_parallel_size": deployment.tensor_parallel_size,
        **asdict(deployment.parallelism),
        "router": scenario.file.parallel.router or "round_robin",
        "further_replicas": [{"hardware": hardware.name, "count": count} for hardware, count in scenario.further_hardware],
        "disaggregated_prefill": None if scenario.prefill is None else _prefill(scenario.prefill),
        "devices": sum(count for _, count in scenario.hardware_counts(deployment)),
        **_drafting_settings(scenario),
        **({"alternatives": [_drafting_settings(one) for one in scenario.alternatives]} if scenario.alternatives else {}),
        "block_tokens": deployment.engine.block_tokens,
        **asdict(scenario.limits),
    }


def _drafting_settings(scenario: Scenario) -> dict[str, Any]:
    """How one method drafts."""
    deployment = scenario.deployment
    return {
        "method": deployment.method,
        "drafter": None if deployment.drafter is None else deployment.drafter.name,
        "drafter_weights": None if deployment.drafter is None else deployment.drafter_weights,
        "draft_tensor_parallel_size": None if deployment.drafter is None else deployment.draft_tensor_parallel_size,
        "draft_device": _draft_device(deployment),
        "num_speculative_tokens": scenario.gammas,
        "trees": [shape for shape in scenario.shapes if not shape.is_chain],
    }


def _prefill(instances: PrefillInstances) -> dict[str, Any]:
    """Instances that compute prompts, with every default filled in."""
    told = {field.name: getattr(instances, field.name) for field in fields(instances)}
    return told | {"hardware": instances.hardware.name}


def _draft_device(deployment: Deployment) -> dict[str, Any] | None:
    """The draft's own device, where it has one."""
    where = deployment.remote_draft
    if where is None:
        return None
    return {
        "hardware": where.hardware.name,
        "tensor_parallel_size": where.tensor_parallel_size,
        "link_latency_s": where.link_latency_s,
        "overlap": where.overlap,
    }


def provenance_data(scenario: Scenario) -> dict[str, Any]:
    """Every constant with its value and source; where acceptance, shapes and requests come from."""
    deployment, workload = scenario.deployment, scenario.file.workload
    models = [model for model in (deployment.target, deployment.drafter) if model is not None]
    cited = getattr(scenario.source, "citation", "")
    return {
        "hardware_profile": deployment.hardware.profile_id,
        "hardware_sources": deployment.hardware.profile.sources,
        "engine": deployment.engine.name,
        "engine_versions": deployment.engine.versions,
        "engine_sources": deployment.engine.sources,
        "constants": [
            {
                "holder": constant.holder,
                "name": constant.name,
                "value": constant.quantity.value,
                "source": constant.quantity.source,
                "relative_std": constant.quantity.doubt,
                "note": constant.quantity.note,
            }
            for constant in provenance(scenario)
        ],
        "acceptance": acceptance_source(scenario) or None,
        "requests": workload.requests.trace if workload.requests is not None else "lengths stated in the scenario",
        "requests_citation": cited or None,
        "models": [{"name": model.name, "sources": model.sources} for model in models],
    }


def versions() -> dict[str, str]:
    """Versions that decide the bytes of a result."""
    packages = {"simulator": "specsim", "numpy": "numpy", "simpy": "simpy"}
    return {"python": platform.python_version(), **{name: _version(package) for name, package in packages.items()}}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def plain_data(value: Any) -> Any:
    """Dicts, lists, text and finite numbers of six digits; an unknown bound of an interval and other infinities become None."""
    if isinstance(value, Estimate):
        low, high = (value.low, value.high) if is_known(value) else (None, None)
        return {"value": plain_data(value.value), "low": plain_data(low), "high": plain_data(high)}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain_data(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain_data(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_data(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
