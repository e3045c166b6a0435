"""The answer to a question: R and its doubt, speedup, break-even and verdict."""

from __future__ import annotations

import math
from typing import Any, Literal

from simulator import theory
from simulator.acceptance import resolve_acceptance, resolve_tree_acceptance
from simulator.cost.deployment import Deployment
from simulator.cost.doubts import Doubts
from simulator.cost.known_pricers import uncertain_pricer
from simulator.cost.uncertainty import UncertainPricer
from simulator.cost.unmeasured import unmeasured, unmeasured_note
from simulator.prediction.point import ALIASES, OperatingPoint
from simulator.prediction.prediction import Prediction
from simulator.prediction.question import MEMORY_UTILIZATION, Question
from simulator.prediction.resolving import resolve
from simulator.prediction.speedup import measured_plain_step_s, speedup_interval
from simulator.prediction.unsupported import UnsupportedError
from simulator.printed_numbers import significant
from simulator.spec import Document, SpecError, check

# A measured plain step so many times longer or shorter than the modelled one is doubted, or refused.
SURPRISING, INCREDIBLE = 5.0, 100.0


def predict(point: OperatingPoint | None = None, /, **fields: Any) -> Prediction:
    """The prediction at one point, given as an `OperatingPoint` or by its fields.

    Raises `SpecError` for input that is wrong; a sound question that is not priced has status `unsupported`.
    """
    if point is None:
        named = {ALIASES.get(name, name): value for name, value in fields.items()}
        point = check(OperatingPoint, Document("", named))
    return answered(point, Document("", point.model_dump(exclude_none=True)))


def answered(point: OperatingPoint, document: Document) -> Prediction:
    try:
        return predict_document(point, document)
    except UnsupportedError as reason:
        return Prediction(point.id, "unsupported", str(reason))


def predict_document(point: OperatingPoint, document: Document) -> Prediction:
    """As `predict`, with the document that errors point into. Raises `UnsupportedError` for what is not priced."""
    return answer(resolve(point, document), point, document)


def answer(question: Question, point: OperatingPoint, document: Document, doubts: Doubts | None = None) -> Prediction:
    """The prediction of a question whose names are resolved; its deployment may hold other constants than the shipped ones, and
    `doubts` may add up in another way."""
    deployment, gamma, batch = question.deployment, question.gamma, question.batch
    tau, full, notes = accepted(question, document)
    drafts = gamma if deployment.tree is None else deployment.tree.nodes - 1
    unserved = cannot_be_served(deployment, batch, question.context, drafts)
    notes += (unserved,) if unserved else ()
    pricer = uncertain_pricer(deployment, full) if doubts is None else UncertainPricer(deployment, full, doubts)
    cost = pricer.base.round(gamma, batch, question.context)
    measured_s = measured_plain_step_s(point, question, pricer.base)
    if measured_s is not None:
        notes += _surprising(measured_s / cost.plain_step_s, point, document)
    if measured_s is None:
        doubt = pricer.doubt(gamma, batch, question.context, assumed_std=question.extra_std)
    else:
        doubt = pricer.given_plain_step(measured_s, gamma, batch, question.context, assumed_std=question.extra_std)
    plain_s = cost.plain_step_s if measured_s is None else measured_s
    r, high = doubt.r, doubt.r * doubt.spread.high
    low = max(r * doubt.spread.low, min(r, 1.0))  # whose bound rounding must not pass
    speedups = speedup_interval(question, pricer.base, tau, doubt, plain_s) if tau else (None, None, None)
    even_rate = pricer.base.break_even_rate(gamma, batch, question.context, log_shift=math.log(r / cost.r))
    return Prediction(
        id=point.id, status="ok", plain_step_s=plain_s, round_s=r * plain_s, r=r, r_low=low, r_high=high,
        speedup=speedups[0], speedup_low=speedups[1], speedup_high=speedups[2],
        break_even_acceptance_length=r, break_even_acceptance_rate=None if deployment.tree else even_rate,
        verdict="" if unserved else verdict(speedups[1], speedups[2]),
        bound=cost.bound, draft_share=cost.draft_share, verification_cost_ratio=cost.verification_cost_ratio,
        mean_acceptance_length=tau, largest_acceptance_length=gamma + 1.0,
        textbook_speedup=theory.textbook_speedup(tau, gamma, cost.cost_coefficient) if tau else None,
        causes=tuple(cost.causes()), warnings=(*question.warnings, *notes, *unmeasured_note(deployment)),
        unmeasured=unmeasured(deployment).parts,
    )  # fmt: skip


NO_VERDICT = "no verdict"


def cannot_be_served(
    deployment: Deployment, batch: int, context: float, drafts: int, utilization: float = MEMORY_UTILIZATION
) -> str:
    """Why no server could hold so many sequences of so many tokens and drafts, or ""."""
    tokens = deployment.kv_tokens(utilization)
    devices = f"{deployment.devices} × {deployment.hardware.name}"
    if tokens <= 0:
        return f"{NO_VERDICT}: the models do not fit on {devices} at {100 * utilization:.0f} % of memory"
    held = batch * deployment.held_tokens(context, drafts)
    if tokens < held:
        states = ", recurrent states counted" if deployment.state_blocks(drafts) else ""
        return f"{NO_VERDICT}: the KV cache of {devices} holds {tokens:,} tokens, not {held:,.0f}{states}"
    return ""


def verdict(low: float | None, high: float | None) -> Literal["win", "lose", "close", ""]:
    """From an 80 % interval of a speedup: `close` when it contains 1."""
    if low is None or high is None:
        return ""
    return "win" if low > 1 else "lose" if high < 1 else "close"


def _surprising(ratio: float, point: OperatingPoint, document: Document) -> tuple[str, ...]:
    """What to say of a measured plain step so many times as long as the modelled one. Raises `SpecError` beyond a hundred
    times."""
    key = "plain_step_s" if point.plain_step_s is not None else "plain_tokens_per_s"
    size = (
        f"{significant(ratio)} times the modelled plain step"
        if ratio > 1
        else f"only {significant(ratio, 2)} of the modelled plain step"
    )
    if not 1 / INCREDIBLE < ratio < INCREDIBLE:
        unit = "seconds of one step of the whole batch" if key == "plain_step_s" else "tokens of the whole batch per second"
        raise SpecError([document.problem((key,), f"must be {unit}: this is {size}", getattr(point, key))])
    return (f"{key} says {size}: check its unit, the batch and the model",) if not 1 / SURPRISING < ratio < SURPRISING else ()


def accepted(question: Question, document: Document) -> tuple[float | None, float, tuple[str, ...]]:
    """(τ or None, share of rounds accepted in full, notes)."""
    if question.acceptance is None:
        return None, 0.5, ()
    if question.deployment.tree is not None:
        resolved = resolve_tree_acceptance(question.acceptance, document, question.deployment.tree, True, ())
    else:
        resolved = resolve_acceptance(question.acceptance, document, question.gamma, ())
    law = resolved.law.at_context(round(question.context))
    return law.mean_acceptance_length(question.gamma), float(law.conditional_rates(question.gamma).prod()), resolved.warnings
