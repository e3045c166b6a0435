"""One speculative round against one plain step: RoundCost, and R, the ratio everything turns on.

R = round / plain step at equal batch and context;  decode speedup = τ / R;  R is the break-even acceptance length.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.cost.roofline import Bound
from simulator.cost.tape import added
from simulator.cost.terms import CostTerm, dominant_bound


@dataclass(frozen=True, slots=True)
class RoundCost:
    """Drafting, verification and overhead of one round, and the plain step it replaces. All terms sum to the totals.

    draft, verify, plain: terms. `verify` and `plain` hold sampling and host time too, so that like is compared with like.
    """

    num_speculative_tokens: int
    draft: tuple[CostTerm, ...]
    verify: tuple[CostTerm, ...]
    plain: tuple[CostTerm, ...]

    @property
    def draft_s(self) -> float:
        return added([term.seconds for term in self.draft])

    @property
    def verify_s(self) -> float:
        return added([term.seconds for term in self.verify])

    @property
    def round_s(self) -> float:
        return self.draft_s + self.verify_s

    @property
    def plain_step_s(self) -> float:
        return added([term.seconds for term in self.plain])

    @property
    def r(self) -> float:
        """Round cost ratio = break-even acceptance length."""
        return self.round_s / self.plain_step_s

    @property
    def draft_share(self) -> float:
        return self.draft_s / self.round_s

    @property
    def verification_cost_ratio(self) -> float:
        """v = T(γ+1 rows) / T(1 row)."""
        return self.verify_s / self.plain_step_s

    @property
    def cost_coefficient(self) -> float:
        """c: one draft pass over one plain step. An output: it moves with batch."""
        return self.draft_s / self.num_speculative_tokens / self.plain_step_s

    @property
    def bound(self) -> Bound:
        return dominant_bound((*self.draft, *self.verify))

    def causes(self) -> list[tuple[str, float]]:
        """Terms of R - 1, largest first: (what, share of a plain step)."""
        plain = {term.name: term.seconds for term in self.plain}
        grown = [(f"verify: {t.name}", t.seconds - plain.get(t.name, 0.0)) for t in self.verify]
        grown += [(f"draft: {t.name.removeprefix('draft_')}", t.seconds) for t in self.draft]
        return sorted(((name, s / self.plain_step_s) for name, s in grown if s != 0), key=lambda item: -abs(item[1]))
