"""One cell's answer as rows of a table. A question is one function here; column names end in their unit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from simulator.cost.known_pricers import uncertain_pricer
from simulator.cost.spread import Estimate
from simulator.draft_policy import Fixed, PolicySpec
from simulator.draft_tree import Tree
from simulator.plots.words import is_known
from simulator.prediction import verdict
from simulator.questions.break_even import BreakEven, break_even, own_context
from simulator.questions.capacity import CapacityRow, capacity
from simulator.questions.policy_choice import PolicyChooser
from simulator.questions.steady_load import steady_batch
from simulator.reports.summary import break_even_row, plain_data
from simulator.scenario import Scenario, scenario_of
from simulator.simulation import Comparison, Variant, batching_rules, simulate
from simulator.spec import Document, Problem, Spec, SpecError, check, nearest
from simulator.sweep.keys import QUESTION_KEYS

Row = dict[str, Any]


class AskedAt(Spec):
    """Where `predict` is asked; left out: the scenario's own mean batch and context."""

    batch: Annotated[int, Field(ge=1)] | None = None
    context_len: Annotated[int, Field(ge=1)] | None = None


def answered(question: str, document: Document, asked_at: Mapping[str, Any]) -> list[Row]:
    """The rows of a scenario's answer, numbers to six digits. Raises `SpecError`."""
    where = check(AskedAt, replace(document, data=dict(asked_at)))
    rows: list[Row] = plain_data(QUESTIONS[question](scenario_of(document), where))
    return rows


def _predicted(scenario: Scenario, where: AskedAt) -> list[Row]:
    """R, τ, speedup and break-even at one operating point, a row for each method, γ, tree and policy; no queueing."""
    if not scenario.deployment.speculative:
        raise SpecError([scenario.document.problem(("speculation",), "must be given: predict is about a method")])
    context = where.context_len or own_context(scenario)
    batch = where.batch or steady_batch(scenario)
    rows = []
    for method, one in scenario.methods:
        named = {"method": method} if scenario.alternatives else {}
        for shape, policy in one.variants:
            rules = batching_rules(one, one.deployment, shape.nodes - 1)
            fits = {"fits_kv_cache": batch * rules.held_tokens(context) <= rules.total_blocks * rules.block_tokens}
            rows.append(named | _predicted_variant(one, shape, policy, batch, context) | fits)
    return rows


def _predicted_variant(scenario: Scenario, shape: Tree, policy: PolicySpec, batch: int, context: int) -> Row:
    """The row of a shape, or of what a policy drafts at this batch and context; named where the scenario states policies."""
    if isinstance(policy, Fixed):
        stated = scenario.file.speculation is not None and scenario.file.speculation.policy is not None
        named: Row = {"policy": policy.kind} if stated else {}
        return named | _predicted_shape(scenario, shape, batch, context)
    choice = PolicyChooser(scenario, shape, policy).at(batch, context)
    named, chain = {"policy": choice.label}, Tree.chain(choice.num_speculative_tokens)
    if choice.num_speculative_tokens:
        return named | _predicted_shape(scenario, chain, batch, context)
    resting = Estimate(choice.speedup, choice.speedup_low, choice.speedup_high)
    off = named | _shape(chain) | {"batch_size": batch, "context_tokens": context} | _verdict(resting)
    return off | _estimate("speedup", resting) | {"mean_acceptance_length": 1.0}


def _predicted_shape(scenario: Scenario, shape: Tree, batch: int, context: int) -> Row:
    resolved = scenario.acceptance(shape.steps, shape)
    law = None if resolved is None else resolved.law.at_context(context)
    gamma = shape.depth
    proposals = 1.0 if law is None else law.proposal_share(gamma)
    full = 0.5 if law is None else float(law.conditional_rates(gamma).prod())
    pricer = uncertain_pricer(scenario.deployed(shape), full)
    cost = pricer.base.round(gamma, batch, context, proposals)
    spread = pricer.spread(gamma, batch, context, proposals)
    tau = None if law is None else law.mean_acceptance_length(gamma)
    speedup = None if tau is None else Estimate.lognormal(tau / cost.r, spread.inverse())
    return {
        **_shape(shape),
        "batch_size": batch,
        "context_tokens": context,
        **_verdict(speedup),
        **_estimate("speedup", speedup),
        **_estimate("r", Estimate.lognormal(cost.r, spread)),
        "mean_acceptance_length": tau,
        "break_even_acceptance_rate": (
            None if not shape.is_chain else pricer.base.break_even_rate(gamma, batch, context, proposals)
        ),
        "plain_step_s": cost.plain_step_s,
        "round_s": cost.round_s,
        "draft_share": cost.draft_share,
        "verification_cost_ratio": cost.verification_cost_ratio,
        "bound": cost.bound,
    }


def _verdict(speedup: Estimate | None) -> Row:
    return {"verdict": "" if speedup is None else verdict(speedup.low, speedup.high)}


def _simulated(scenario: Scenario, where: AskedAt) -> list[Row]:  # noqa: ARG001  a simulation finds its own batch
    """A row for each variant, the one without speculation first."""
    result = simulate(scenario)
    return [_variant(result.plain, None), *(_variant(each.variant, each) for each in result.comparisons)]


def _variant(variant: Variant, comparison: Comparison | None) -> Row:
    summary = variant.summary
    row: Row = {"variant": variant.label, **_shape(variant.shape), "verdict": comparison.verdict if comparison else ""}
    row |= {"metric": comparison.metric if comparison else "", **_estimate("gain", comparison.gain if comparison else None)}
    for name, gain in (("tpot_gain", comparison and comparison.tpot), ("e2e_gain", comparison and comparison.e2e)):
        row[name] = gain.value if gain else None
    row["capacity_gain"] = comparison.capacity.value if comparison else None
    for latency in ("ttft_s", "tpot_s", "e2e_latency_s", "queueing_s"):
        distribution = getattr(summary, latency)
        for statistic in ("mean", "p50", "p99"):
            name = latency.removesuffix("_s")
            row[f"{name}_{statistic}_s"] = None if distribution is None else getattr(distribution, statistic)
    return row | {
        "output_tokens_per_s": summary.output_tokens_per_s,
        "goodput_per_s": summary.goodput_per_s,
        "saturated_requests_per_s": variant.saturation.per_s,
        "mean_decode_batch": summary.load.mean_decode_sequences,
        "mean_acceptance_length": comparison.mean_acceptance_length if comparison else None,
        "round_cost_ratio": comparison.r.value if comparison else None,
        "break_even_acceptance_rate": comparison.break_even_acceptance_rate if comparison else None,
        "preemptions": summary.preemptions,
        "finished": summary.finished,
        "rejected": sum(summary.rejected.values()),
    }


def _broken_even(scenario: Scenario, where: AskedAt) -> list[Row]:  # noqa: ARG001  it has batches and contexts of its own
    """A row for each γ or tree, batch and context, and for what each policy drafts there."""
    if not scenario.deployment.speculative:
        raise SpecError([scenario.document.problem(("speculation",), "must be given: break-even is about a method")])
    return [
        ({"method": method} if scenario.alternatives else {}) | row
        for method, one in scenario.methods
        for row in _broken_even_by(break_even(one))
    ]


def _broken_even_by(answer: BreakEven) -> Iterator[Row]:
    """The rows of one method."""
    for point in answer.points:
        yield {"batch_size" if name == "batch" else name: value for name, value in break_even_row(point).items()}
    for each in answer.policies:
        yield {
            "policy": each.label,
            **_shape(Tree.chain(each.num_speculative_tokens)),
            "batch_size": each.batch,
            "context_tokens": each.context_tokens,
            "speedup": each.speedup,
            "speedup_low": each.speedup_low,
            "speedup_high": each.speedup_high,
        }


def _planned(scenario: Scenario, where: AskedAt) -> list[Row]:  # noqa: ARG001  the search finds its own rates
    """A row for each variant: the rate within the service level, by means and by simulation, and the fleet for the demand."""
    return [_capacity(row) for row in capacity(scenario).rows]


def _capacity(row: CapacityRow) -> Row:
    sustained, fleet = row.sustained, row.fleet
    return {
        "variant": row.label,
        "verdict": row.verdict or "",
        **_estimate("gain", row.gain),
        **_estimate("rate_per_s", None if sustained is None else sustained.rate),
        "rate_by_means_per_s": None if row.analytic is None else row.analytic.rate_per_s,
        "limited_by": "" if sustained is None else sustained.limited_by,
        "copies": None if fleet is None else fleet.copies,
        "devices": None if fleet is None else fleet.devices,
        "cost_per_hour": None if fleet is None else fleet.cost_per_hour,
        "cost_per_million_tokens": None if fleet is None else fleet.cost_per_million_tokens,
    }


def _shape(shape: Tree) -> Row:
    return {"gamma": shape.depth, "tree": "" if shape.is_chain else shape.name.removeprefix("tree ")}


def _estimate(name: str, estimate: Estimate | None) -> Row:
    """Without bounds where requests were too few for any."""
    values: tuple[float | None, ...] = (None, None, None)
    if estimate is not None:
        values = (estimate.value, estimate.low, estimate.high) if is_known(estimate) else (estimate.value, None, None)
    return dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))


QUESTIONS: dict[str, Callable[[Scenario, AskedAt], list[Row]]] = {
    "run": _simulated,
    "predict": _predicted,
    "break-even": _broken_even,
    "capacity": _planned,
}
# Analytic questions take milliseconds a cell.
ANALYTIC = ("predict", "break-even")


def keys_of_question(question: str) -> tuple[str, ...]:
    """Keys beside those of a scenario that a sweep of this question may set."""
    return QUESTION_KEYS if question == "predict" else ()


def question_of(name: str, where: str) -> str:
    """A known question. Raises `SpecError` naming the nearest."""
    if name in QUESTIONS:
        return name
    must = f"must be one of {', '.join(QUESTIONS)}"
    raise SpecError([Problem(where, "", must, repr(name), nearest(name, QUESTIONS))])
