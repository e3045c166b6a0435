"""method_map: which way to draft, and with which γ, at each batch and context; for a scenario with alternatives.

Each method is priced as it would be alone (`break_even`), against a plain step without any drafter. At a point compete only the
methods whose memory leaves room for the batch: a method that does not fit there cannot be run there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simulator.draft_tree import Tree
from simulator.questions.break_even import BATCHES, BestGamma, BreakEven, break_even, contexts_around, own_context
from simulator.scenario import Scenario
from simulator.simulation import TIE, Server, batching_rules

NONE = "none"


@dataclass(frozen=True)
class MethodCell:
    """One batch and context. method: `NONE` where no way to draft gains; num_speculative_tokens: γ, or the depth of its tree.

    speedup: decoding against no speculation, with its 80 % interval; of none the best factor that a method reaches, which is at
    most 1. near: other methods within 3 % of it. fits: the KV cache holds such a batch.
    """

    batch: int
    context_tokens: int
    method: str
    num_speculative_tokens: int
    speedup: float
    speedup_low: float
    speedup_high: float
    near: tuple[str, ...]
    fits: bool
    tree: Tree | None = None

    @property
    def drafts(self) -> str:
        """``γ = 3``, or ``5/4/8`` of a tree; "" where nothing is drafted."""
        if self.tree is not None:
            return self.tree.name.removeprefix("tree ")
        return f"γ = {self.num_speculative_tokens}" if self.num_speculative_tokens else ""


@dataclass(frozen=True)
class MethodMap:
    """The answer. methods: those compared, in the scenario's order, `NONE` last; left_out: such as state no acceptance, of which
    no γ is best."""

    scenario: Scenario
    own_context: int
    methods: tuple[str, ...]
    left_out: tuple[str, ...]
    cells: tuple[MethodCell, ...]

    @property
    def batches(self) -> tuple[int, ...]:
        return tuple(sorted({cell.batch for cell in self.cells}))

    @property
    def contexts(self) -> tuple[int, ...]:
        return tuple(sorted({cell.context_tokens for cell in self.cells}))


@dataclass(frozen=True)
class _Offer:
    """What a method can do at a point."""

    method: str
    best: BestGamma
    low: float
    high: float


def method_map(scenario: Scenario) -> MethodMap | None:
    """The best method and γ over batch × context; None where fewer than two methods state their acceptance."""
    stated = {name: one for name, one in scenario.methods if one.file.acceptance is not None}
    if len(stated) < 2:
        return None
    own = own_context(scenario)
    contexts = contexts_around(own, scenario.limits.max_model_len)
    answers = {name: break_even(one, contexts=contexts) for name, one in stated.items()}
    answers = {name: answer for name, answer in answers.items() if answer.best}
    if len(answers) < 2:
        return None
    rules = batching_rules(scenario, Server.of(scenario).deployment, 0)
    holds = rules.total_blocks * rules.block_tokens
    batches = [batch for batch in BATCHES if batch <= scenario.limits.max_num_seqs]
    offers = _offers(answers)
    cells = [
        _cell(batch, context, offers[batch, context], batch * rules.held_tokens(context) <= holds)
        for context in contexts
        for batch in batches
    ]
    left_out = tuple(name for name, _ in scenario.methods if name not in answers)
    return MethodMap(scenario, own, (*answers, NONE), left_out, tuple(cells))


def _offers(answers: Mapping[str, BreakEven]) -> dict[tuple[int, int], list[_Offer]]:
    found: dict[tuple[int, int], list[_Offer]] = {}
    for name, answer in answers.items():
        points = {(point.batch, point.context_tokens, point.shape): point for point in answer.points}
        for best in answer.best:
            at = (best.batch, best.context_tokens)
            # Where none of its γ wins, the least bad one is what stands against no speculation.
            rows = [point for (*place, _), point in points.items() if tuple(place) == at and point.speedup is not None]
            chosen = next((row for row in rows if row.speedup == best.speedup), rows[0])
            found.setdefault(at, []).append(_Offer(name, best, chosen.speedup_low or 0.0, chosen.speedup_high or 0.0))
    return found


def _cell(batch: int, context: int, offers: Sequence[_Offer], plain_fits: bool) -> MethodCell:
    able = [offer for offer in offers if offer.best.fits]
    ranked = sorted(able or offers, key=lambda offer: -offer.best.speedup)
    top = ranked[0]
    if not able and plain_fits:
        return MethodCell(batch, context, NONE, 0, 1.0, 1.0, 1.0, (), True)
    best, wins = top.best, top.best.num_speculative_tokens > 0
    rivals = [(offer.method, offer.best.speedup) for offer in (ranked[1:] if wins else ranked)] + [(NONE, 1.0)] * wins
    near = tuple(method for method, speedup in rivals if speedup >= (1 - TIE) * max(best.speedup, 1.0))
    return MethodCell(
        batch, context, top.method if wins else NONE, best.num_speculative_tokens, best.speedup, top.low, top.high,
        near, bool(able) or plain_fits, best.tree,
    )  # fmt: skip
