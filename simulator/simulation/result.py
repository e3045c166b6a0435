"""SimulationResult: everything that a run says."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.scenario import Scenario
from simulator.simulation.choice import at_worse_end, chosen
from simulator.simulation.comparison import Comparison
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
        ends = at_worse_end(self.comparisons, lambda each: each.variant.drafting, lambda each: each.worth)
        return chosen(ends, lambda each: each.worth, lambda each: each.variant.shape.nodes)
