"""What drafting costs, by method: one function a method, and one name in `speculation.METHODS`.

Each takes the drafter, γ, the running sequences and their contexts, and returns named terms. Sources: Leviathan et al. 2023
(draft model), Li et al. 2024 and 2025 (EAGLE, EAGLE-3), Saxena 2023 (prompt lookup).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simulator.cost.forward import CostTerm, ForwardCost, ForwardPass, uniform_pass
from simulator.serving_engine import ServingEngine


@dataclass(frozen=True)
class Drafter:
    """What drafts: `passes` prices the draft model or head (None for n-gram). full_acceptance_rate: share of rounds in
    which every draft is accepted, which widens the next first pass under the `catch_up` rule."""

    method: str
    engine: ServingEngine
    passes: ForwardCost | None = None
    full_acceptance_rate: float = 0.5

    @property
    def step_overhead_s(self) -> float:
        overheads = self.engine.draft_step_overhead_s
        return overheads[self.method if self.method in overheads else "default"].value


def drafting_terms(drafter: Drafter, gamma: int, sequences: int, context_tokens: float) -> list[CostTerm]:
    """Seconds to draft `gamma` tokens for each of `sequences`, whose contexts sum to `context_tokens`."""
    if sequences == 0:
        return []
    return METHODS[drafter.method](drafter, gamma, sequences, context_tokens / sequences)


def draft_prefill_terms(drafter: Drafter, prefill: tuple[tuple[int, int], ...]) -> list[CostTerm]:
    """The draft's own pass over prompt chunks, which fills its cache."""
    if drafter.passes is None or not prefill:
        return []
    cost = drafter.passes.price(ForwardPass(0, 0, 0.0, 0.0, 0.0, prefill, 0))
    fusion_s = drafter.passes.fusion_s(sum(tokens for tokens, _ in prefill))
    return [CostTerm("prefill_draft", cost.seconds + fusion_s, cost.bound)]


def idle_terms(drafter: Drafter, sequences: int, context_tokens: float) -> list[CostTerm]:
    """Residual cost of a step that drafts nothing: the draft's cache still takes in the new token of each sequence."""
    if drafter.passes is None or sequences == 0:
        return []
    window = drafter.passes.window
    cost = drafter.passes.price(uniform_pass(sequences, 1, context_tokens / sequences, window))
    headless = tuple(term for term in cost.terms if term.name != "lm_head")
    seconds = sum(term.seconds for term in headless) + drafter.passes.fusion_s(sequences)
    return [CostTerm("draft_cache_upkeep", seconds + drafter.step_overhead_s, cost.bound)]


def _sequential(drafter: Drafter, gamma: int, sequences: int, context: float) -> list[CostTerm]:
    """γ passes one after the other. The first also takes in what the last round emitted; the rest see one row each."""
    passes = drafter.passes
    assert passes is not None
    first_rows, count = _first_pass(drafter, gamma)
    first = passes.price(_first(sequences, first_rows, context, passes.window))
    later = passes.price(uniform_pass(sequences, 1, context + (count + 1) / 2, passes.window))
    fusion_s = passes.fusion_s(round(sequences * first_rows))
    terms = [
        CostTerm("draft_first_pass", first.seconds + fusion_s, first.bound),
        CostTerm("draft_later_passes", (count - 1) * later.seconds, later.bound),
        CostTerm("draft_launches", count * drafter.step_overhead_s, "host"),
    ]
    return [term for term in terms if term.seconds > 0]


def _first_pass(drafter: Drafter, gamma: int) -> tuple[float, int]:
    """(rows per sequence in the first pass, number of passes) by the engine's rule for the draft's cache."""
    if drafter.engine.draft_cache == "padded":
        return gamma + 1, gamma
    if drafter.engine.draft_cache == "catch_up":
        return 1 + drafter.full_acceptance_rate, gamma
    return 1, gamma + 1


def _first(sequences: int, rows_per_sequence: float, context: float, window: int | None) -> ForwardPass:
    """Only each sequence's last row needs logits."""
    asked = uniform_pass(sequences, rows_per_sequence, context, window)
    return ForwardPass(
        asked.sequences,
        max(asked.rows, sequences),
        asked.context_tokens,
        asked.windowed_tokens,
        asked.longest_tokens,
        (),
        sequences,
    )


def _ngram(drafter: Drafter, gamma: int, sequences: int, context: float) -> list[CostTerm]:
    """A search of the sequence's own tokens on the CPU; no pass."""
    return [CostTerm("draft_lookup", sequences * drafter.engine.ngram_lookup_s.value, "host")]


METHODS: dict[str, Callable[[Drafter, int, int, float], list[CostTerm]]] = {
    "draft_model": _sequential,
    "eagle": _sequential,
    "eagle3": _sequential,
    "ngram": _ngram,
}
