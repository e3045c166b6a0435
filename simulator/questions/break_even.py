"""break_even: the acceptance that speculation needs, against batch, for each γ and context; and the γ that gains most.

α* and τ* come from R alone. The best γ needs acceptance: it is given where the scenario states one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from simulator.acceptance import AcceptanceLaw
from simulator.cost.uncertainty import UncertainPricer
from simulator.cost.unmeasured import unmeasured_note
from simulator.draft_policy import Fixed
from simulator.draft_tree import Tree
from simulator.questions.policy_choice import PolicyChoice, PolicyChooser
from simulator.scenario import Scenario
from simulator.serving import BatchingRules
from simulator.simulation import batching_rules, chosen
from simulator.spec import SpecError
from simulator.workload import mean_context_tokens

GAMMAS = tuple(range(1, 9))
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# Contexts beside the workload's own: powers of four around a chat.
CONTEXTS = (512, 2048, 8192, 32768)
TREES_HAVE_NO_RATE = (
    "trees are named steps/width/nodes; they break even at an acceptance length τ* only: an acceptance rate α* is of chains"
)


@dataclass(frozen=True)
class BreakEvenPoint:
    """One (γ or tree, batch, context). R = break-even acceptance length τ*, with its 80 % interval; α* None where no rate
    repays it, and for trees, which have no single rate. num_speculative_tokens: γ, or the depth of a tree.

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
    tree: Tree | None = None

    @property
    def shape(self) -> Tree:
        """What a round drafts: a tree, or a chain of γ."""
        return self.tree or Tree.chain(self.num_speculative_tokens)


@dataclass(frozen=True)
class BestGamma:
    """The γ or tree to run at (batch, context): of those within 3 % of the largest speedup the one of fewest rows; 0 where
    none wins."""

    batch: int
    context_tokens: int
    num_speculative_tokens: int
    speedup: float
    fits: bool
    tree: Tree | None = None

    @property
    def name(self) -> str:
        """``off``, ``3``, or ``5/4/8`` of a tree."""
        if self.num_speculative_tokens == 0:
            return "off"
        return str(self.num_speculative_tokens) if self.tree is None else self.tree.name.removeprefix("tree ")


@dataclass(frozen=True)
class BreakEven:
    """The answer: every point, the map of best γ (empty without an acceptance), what the scenario's policies draft, and remarks.

    own_context: mean tokens in the KV cache of the scenario's own requests while they decode. policies: other than fixed.
    """

    scenario: Scenario
    own_context: int
    points: tuple[BreakEvenPoint, ...]
    best: tuple[BestGamma, ...]
    policies: tuple[PolicyChoice, ...]
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
    """Break-even acceptance over (γ and the scenario's trees) × batch × context, by default at the workload's own context and
    around it.

    A scenario of trees alone asks for no γ: its acceptance says nothing of chains.
    Raises ValueError for a scenario without speculation.
    """
    deployment = scenario.deployment
    if not deployment.speculative:
        raise ValueError("break-even needs a scenario with speculation")
    own = own_context(scenario)
    contexts = contexts or contexts_around(own, scenario.limits.max_model_len)
    batches = tuple(batch for batch in batches if batch <= scenario.limits.max_num_seqs)
    points, warnings = [], list(scenario.warnings)
    trees = [shape for shape in scenario.shapes if not shape.is_chain]
    if trees:
        warnings.append(TREES_HAVE_NO_RATE)
    for shape in (*(map(Tree.chain, gammas) if scenario.gammas else ()), *trees):
        law = _law(scenario, shape, warnings)
        full = float(law.conditional_rates(shape.depth).prod()) if law is not None else 0.5
        pricer = UncertainPricer(scenario.deployed(shape), full)
        warnings += [note for note in unmeasured_note(pricer.deployment) if note not in warnings]
        rules = batching_rules(scenario, deployment, shape.nodes - 1)
        points += [_point(pricer, law, shape, batch, context, rules) for context in contexts for batch in batches]
    chosen = _chosen(scenario, batches, contexts) if scenario.file.acceptance is not None else ()
    return BreakEven(scenario, own, tuple(points), _best(points), tuple(chosen), tuple(warnings))


def _chosen(scenario: Scenario, batches: Sequence[int], contexts: Sequence[int]) -> Iterator[PolicyChoice]:
    for shape, policy in scenario.variants:
        if not isinstance(policy, Fixed):
            chooser = PolicyChooser(scenario, shape, policy)
            yield from (chooser.at(batch, context) for context in contexts for batch in batches)


def own_context(scenario: Scenario) -> int:
    """Mean tokens in the KV cache per decoding sequence, to two digits: each token of the workload sees its own context."""
    requests = scenario.requests()
    limit = scenario.limits.max_model_len
    served = [r for r in requests if r.prompt_tokens + r.output_tokens <= limit] or requests
    mean = mean_context_tokens(served)
    return max(int(float(f"{min(mean, limit):.1e}")), 1)


def contexts_around(own: int, longest: int) -> tuple[int, ...]:
    """The workload's own context and up to three others that are at least half as long again or shorter."""
    others = [context for context in CONTEXTS if context <= longest and not 1 / 1.5 < context / own < 1.5]
    near = sorted(others, key=lambda context: abs(math.log(context / own)))[:3]
    return tuple(sorted({own, *near}))


def _law(scenario: Scenario, shape: Tree, warnings: list[str]) -> AcceptanceLaw | None:
    """The acceptance law of a shape; None where the scenario leaves it open, or its trace does not reach γ."""
    try:
        resolved = scenario.acceptance(shape.steps, shape)
    except SpecError as error:
        warnings.append(f"no acceptance at {shape.name}: {error.problems[0].must}")
        return None
    if resolved is None:
        return None
    warnings += [warning for warning in resolved.warnings if warning not in warnings]
    return resolved.law


def _point(
    pricer: UncertainPricer, law: AcceptanceLaw | None, shape: Tree, batch: int, context: int, rules: BatchingRules
) -> BreakEvenPoint:
    gamma, tree = shape.depth, None if shape.is_chain else shape
    law = law.at_context(context) if law is not None else None
    proposals = law.proposal_share(gamma) if law is not None else 1.0
    r = pricer.base.round(gamma, batch, context, proposals).r
    spread = pricer.spread(gamma, batch, context, proposals)
    tau = law.mean_acceptance_length(gamma) if law is not None else None
    gain = tau / r if tau is not None else None
    return BreakEvenPoint(
        gamma, batch, context, r, r * spread.low, r * spread.high,
        None if tree else pricer.base.break_even_rate(gamma, batch, context, proposals), tau,
        gain, gain / spread.high if gain is not None else None, gain / spread.low if gain is not None else None,
        batch * rules.held_tokens(context) <= rules.total_blocks * rules.block_tokens, tree,
    )  # fmt: skip


def _best(points: list[BreakEvenPoint]) -> tuple[BestGamma, ...]:
    """For each (context, batch), of the shapes within 3 % of the best speedup that of fewest rows; 0 where none wins."""
    cells: dict[tuple[int, int], list[tuple[float, BreakEvenPoint]]] = {}
    for point in points:
        if point.speedup is not None:
            cells.setdefault((point.context_tokens, point.batch), []).append((point.speedup, point))
    best = []
    for (context, batch), found in sorted(cells.items()):
        taken = chosen(found, lambda pair: pair[0], lambda pair: pair[1].shape.nodes)
        assert taken is not None
        speedup, point = taken
        gamma, tree = (point.num_speculative_tokens, point.tree) if speedup > 1 else (0, None)
        best.append(BestGamma(batch, context, gamma, speedup, point.fits, tree))
    return tuple(best)
