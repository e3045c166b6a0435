"""break_even: the acceptance that speculation needs, against batch, for each γ and context; and the γ that gains most.

α* and τ* come from R alone. The best γ needs acceptance: it is given where the scenario states one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from simulator.acceptance import AcceptanceLaw
from simulator.cost.uncertainty import Z80, UncertainPricer
from simulator.scenario import Scenario
from simulator.simulation import batching_rules
from simulator.spec import SpecError
from simulator.workload import requests_of

GAMMAS = tuple(range(1, 9))
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# Contexts beside the workload's own: powers of four around a chat.
CONTEXTS = (512, 2048, 8192, 32768)
TIE = 0.03


@dataclass(frozen=True)
class BreakEvenPoint:
    """One (γ, batch, context). R = break-even acceptance length τ*, with its 80 % interval; α* None where no rate repays it.

    speedup: τ/R at the scenario's acceptance, None without one. fits: the KV cache holds `batch` such sequences.
    """

    num_speculative_tokens: int
    batch: int
    context_tokens: int
    r: float
    r_low: float
    r_high: float
    break_even_acceptance_rate: float | None
    mean_acceptance_length: float | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    fits: bool


@dataclass(frozen=True)
class BestGamma:
    """The γ to run at (batch, context): the smallest within 3 % of the largest speedup; 0 where none wins."""

    batch: int
    context_tokens: int
    num_speculative_tokens: int
    speedup: float
    fits: bool


@dataclass(frozen=True)
class BreakEven:
    """The answer: every point, the map of best γ (empty without an acceptance), and remarks.

    own_context: mean tokens in the KV cache of the scenario's own requests while they decode.
    """

    scenario: Scenario
    own_context: int
    points: tuple[BreakEvenPoint, ...]
    best: tuple[BestGamma, ...]
    warnings: tuple[str, ...]

    @property
    def contexts(self) -> tuple[int, ...]:
        return tuple(sorted({point.context_tokens for point in self.points}))

    @property
    def batches(self) -> tuple[int, ...]:
        return tuple(sorted({point.batch for point in self.points}))


def break_even(
    scenario: Scenario,
    gammas: tuple[int, ...] = GAMMAS,
    batches: tuple[int, ...] = BATCHES,
    contexts: tuple[int, ...] | None = None,
) -> BreakEven:
    """Break-even acceptance over γ × batch × context, by default at the workload's own context and around it.

    Raises ValueError for a scenario without speculation.
    """
    deployment = scenario.deployment
    if not deployment.speculative:
        raise ValueError("break-even needs a scenario with speculation")
    own = own_context(scenario)
    contexts = contexts or _contexts_around(own, scenario.limits.max_model_len)
    batches = tuple(batch for batch in batches if batch <= scenario.limits.max_num_seqs)
    capacity = batching_rules(scenario, deployment).total_blocks * deployment.engine.block_tokens
    points, warnings = [], list(scenario.warnings)
    for gamma in gammas:
        law = _law(scenario, gamma, warnings)
        pricer = UncertainPricer(deployment, float(law.conditional_rates(gamma).prod()) if law is not None else 0.5)
        points += [_point(pricer, law, gamma, batch, context, capacity) for context in contexts for batch in batches]
    return BreakEven(scenario, own, tuple(points), _best(points), tuple(warnings))


def own_context(scenario: Scenario) -> int:
    """Mean tokens in the KV cache per decoding sequence, to two digits: each token of the workload sees its own context."""
    requests = requests_of(scenario.file.workload, scenario.file.seed, scenario.source)
    limit = scenario.limits.max_model_len
    served = [r for r in requests if r.prompt_tokens + r.output_tokens <= limit] or requests
    tokens = sum(r.output_tokens for r in served)
    mean = sum((r.prompt_tokens + r.output_tokens / 2) * r.output_tokens for r in served) / tokens
    return max(int(float(f"{min(mean, limit):.1e}")), 1)


def _contexts_around(own: int, longest: int) -> tuple[int, ...]:
    """The workload's own context and up to three others that are at least half as long again or shorter."""
    others = [context for context in CONTEXTS if context <= longest and not 1 / 1.5 < context / own < 1.5]
    near = sorted(others, key=lambda context: abs(math.log(context / own)))[:3]
    return tuple(sorted({own, *near}))


def _law(scenario: Scenario, gamma: int, warnings: list[str]) -> AcceptanceLaw | None:
    """The acceptance law at γ; None where the scenario leaves it open, or its trace does not reach γ."""
    try:
        resolved = scenario.acceptance(gamma)
    except SpecError as error:
        warnings.append(f"no acceptance at γ = {gamma}: {error.problems[0].must}")
        return None
    if resolved is None:
        return None
    warnings += [warning for warning in resolved.warnings if warning not in warnings]
    return resolved.law


def _point(
    pricer: UncertainPricer, law: AcceptanceLaw | None, gamma: int, batch: int, context: int, capacity: int
) -> BreakEvenPoint:
    law = law.at_context(context) if law is not None else None
    proposals = law.proposal_share(gamma) if law is not None else 1.0
    r = pricer.base.round(gamma, batch, context, proposals).r
    spread = math.exp(Z80 * pricer.log_std(gamma, batch, context, proposals))
    tau = law.mean_acceptance_length(gamma) if law is not None else None
    gain = tau / r if tau is not None else None
    return BreakEvenPoint(
        gamma, batch, context, r, r / spread, r * spread, pricer.base.break_even_rate(gamma, batch, context, proposals), tau,
        gain, gain / spread if gain is not None else None, gain * spread if gain is not None else None,
        batch * context <= capacity,
    )  # fmt: skip


def _best(points: list[BreakEvenPoint]) -> tuple[BestGamma, ...]:
    """For each (context, batch), of the γ within 3 % of the best speedup the smallest; 0 where none wins."""
    cells: dict[tuple[int, int], list[tuple[float, BreakEvenPoint]]] = {}
    for point in points:
        if point.speedup is not None:
            cells.setdefault((point.context_tokens, point.batch), []).append((point.speedup, point))
    best = []
    for (context, batch), found in sorted(cells.items()):
        top = max(speedup for speedup, _ in found)
        speedup, point = min(((s, p) for s, p in found if s >= (1 - TIE) * top), key=lambda pair: pair[1].num_speculative_tokens)
        best.append(BestGamma(batch, context, point.num_speculative_tokens if speedup > 1 else 0, speedup, point.fits))
    return tuple(best)
