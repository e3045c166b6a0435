"""The cost model as the step-cost table of `interchange.step_costs`: the best sum of a part by sequences and a part by rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.cost.pricer import StepPricer
from simulator.interchange.step_costs import StepCosts
from simulator.questions.break_even import own_context
from simulator.scenario import Scenario

_MOST_SEQUENCES = 1024


@dataclass(frozen=True)
class TabledSteps:
    """The table, at which context, and the largest error of a step that the sum of two parts cannot follow (a fraction)."""

    table: StepCosts
    context_tokens: float
    worst_error: float


def table_steps(scenario: Scenario, gamma: int, context: int | None = None) -> TabledSteps:
    """Steps that draft γ tokens for every sequence and verify any number of them, at the scenario's mean context unless given.

    Without speculation γ is 0, and rows are sequences. Batches up to the scenario's limit.
    """
    tokens = float(context or own_context(scenario))
    pricer = scenario.deployment.replica().pricer()
    batches = _doubling(min(scenario.limits.max_num_seqs, _MOST_SEQUENCES))
    pairs = [(batch, batch * verified) for batch in batches for verified in range(1, gamma + 2)]
    seconds = np.array([_step_s(pricer, gamma, batch, rows, tokens) for batch, rows in pairs])
    rows = sorted({rows for _, rows in pairs})
    # Parts that never fall: steps up from one probe to the next, none of them below 0, by least squares of relative errors.
    design = np.array(
        [[1.0, *(batch >= other for other in batches[1:]), *(m >= other for other in rows[1:])] for batch, m in pairs],
        dtype=float,
    )
    from scipy.optimize import nnls  # slow to load

    steps, _ = nnls(design / seconds[:, None], np.ones(len(pairs)))
    alpha, theta = np.cumsum(steps[1 : len(batches)]), np.cumsum(steps[len(batches) :])
    table = StepCosts(float(steps[0]), tuple(batches), _from_zero(alpha), tuple(rows), _from_zero(theta))
    found = np.array([table.step_s(batch, m) for batch, m in pairs])
    return TabledSteps(table, tokens, float(np.abs(found / seconds - 1).max()))


def _from_zero(parts: NDArray[np.float64]) -> tuple[float, ...]:
    return (0.0, *parts.tolist())


def _doubling(most: int) -> list[int]:
    """1, 2, 4, … and the most."""
    return sorted({2**power for power in range(most.bit_length()) if 2**power <= most} | {most})


def _step_s(pricer: StepPricer, gamma: int, sequences: int, rows: int, context: float) -> float:
    """Drafting γ tokens for all sequences, and verifying rows - sequences of the drafts, dealt out evenly."""
    drafted, more = divmod(rows - sequences, sequences)
    tokens = round(context)
    verified = [(tokens, drafted + (index < more)) for index in range(sequences)]
    asked = pricer.price(verified, (), 0)
    own = sum(seconds for name, seconds in asked.terms if not name.startswith("draft"))
    return own + (pricer.round(gamma, sequences, context).draft_s if gamma else 0.0)
