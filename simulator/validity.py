"""What makes an answer, or a benchmark, say less than it seems to: settings and acceptance that something is wrong with.

Depths beyond those a head was trained for, and acceptance profiles of other models, are said where names are resolved.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.acceptance import band_for, measured_lengths
from simulator.cost.deployment import Deployment
from simulator.cost.parallelism import share
from simulator.cost.unmeasured import unmeasured_note
from simulator.draft_tree import Tree
from simulator.scenario import Scenario
from simulator.serving_engine import captured_rows

# A τ - 1 less than this part of the least that was measured for the method is doubted.
FAR_BELOW = 0.5


def standing_notes(scenario: Scenario) -> tuple[str, ...]:
    """What is doubtful about a scenario wherever it is asked about: its names and settings, and parts of its ways to draft that
    no measured run had."""
    deployed = [one.deployed(shape) for one in (scenario, *scenario.alternatives) for shape in one.shapes]
    return tuple(dict.fromkeys((*scenario.remarks, *(note for each in deployed for note in unmeasured_note(each)))))


def doubts_at(deployment: Deployment, shape: Tree, batch: float, context: float, tau: float | None) -> Iterator[str]:
    """What is doubtful about speculating with `shape` for `batch` sequences of `context` tokens at a mean acceptance of `tau`."""
    yield from unmeasured_note(deployment)
    yield from _uncaptured(deployment, shape, batch)
    yield from _beyond_the_window(deployment, context)
    if tau is not None:
        yield from unlikely_acceptance(deployment.method, shape, tau)


def _uncaptured(deployment: Deployment, shape: Tree, batch: float) -> Iterator[str]:
    """Verification of more rows than any captured graph covers."""
    engine = deployment.engine
    if engine.graphs is None:
        return
    sequences = max(share(round(batch), deployment.parallelism.data_parallel_size), 1)
    rows = sequences * shape.nodes
    if captured_rows(engine, rows, sequences) is None:
        plain = (
            "plain steps have one" if captured_rows(engine, sequences, sequences) is not None else "plain steps have none either"
        )
        yield (
            f"verification of {sequences} sequences is {rows} rows, which no captured graph covers ({plain}): it is launched "
            "kernel by kernel"
        )


def _beyond_the_window(deployment: Deployment, context: float) -> Iterator[str]:
    drafter = deployment.separate_drafter
    positions = drafter.max_position_embeddings if drafter is not None else None
    if drafter is not None and positions is not None and context > positions:
        yield (
            f"the mean context of {context:,.0f} tokens lies beyond the {positions:,} positions that drafter {drafter.name} was "
            "trained for: acceptance measured on shorter text does not hold here"
        )


def unlikely_acceptance(method: str, shape: Tree, tau: float) -> Iterator[str]:
    """τ far below every shipped measurement of the method."""
    asked = method, shape.depth, None if shape.is_chain else shape
    if any(not _far_below(tau, measured) for measured in measured_lengths(*asked)):
        return
    band = band_for(*asked)
    if band is not None and _far_below(tau, band.low):
        measured = f"{band.low:.2f}" if band.low == band.high else f"{band.low:.2f} to {band.high:.2f}"
        yield (
            f"τ = {tau:.2f} is far below what is measured elsewhere for {method} ({measured}): "
            "random-token prompts, a drafter of another target, or a fault"
        )


def _far_below(tau: float, measured: float) -> bool:
    return tau < measured - FAR_BELOW * (measured - 1)
