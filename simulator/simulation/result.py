"""SimulationResult: everything that a run says."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.draft_policy import PolicySpec
from simulator.draft_tree import Tree
from simulator.scenario import Scenario
from simulator.simulation.comparison import Comparison
from simulator.simulation.server import TIE
from simulator.simulation.variant import Variant
from simulator.workload import Request


@dataclass(frozen=True)
class SimulationResult:
    """Everything that `run` says. `comparisons` is empty for a scenario without speculation."""

    scenario: Scenario
    requests: tuple[Request, ...]
    plain: Variant
    comparisons: tuple[Comparison, ...]
    warnings: tuple[str, ...]

    @property
    def best(self) -> Comparison | None:
        """The shape with the largest gain; among gains within 3 % the one that verifies fewest rows.

        Where acceptance is open, each shape counts by the end of the measured band at which it gains less.
        """
        worst: dict[tuple[str, Tree, PolicySpec], Comparison] = {}
        for comparison in self.comparisons:
            kept = worst.setdefault(comparison.variant.drafting, comparison)
            if comparison.gain.value < kept.gain.value:
                worst[comparison.variant.drafting] = comparison
        if not worst:
            return None
        top = max(comparison.gain.value for comparison in worst.values())
        return min((c for c in worst.values() if c.gain.value >= (1 - TIE) * top), key=lambda c: c.variant.shape.nodes)
