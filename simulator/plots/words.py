"""Words and numbers that figures and reports share: formats, names, and where every constant comes from. No matplotlib."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from simulator.acceptance import band_for
from simulator.cost.deployment import Deployment
from simulator.cost.spread import Estimate
from simulator.cost.uncertainty import links
from simulator.draft_tree import Tree
from simulator.hardware import INTER_NODE, Quantity, quantities_of
from simulator.printed_numbers import significant
from simulator.scenario import Scenario

# An interval that reaches this many times beyond its value says only that there were too few requests.
UNKNOWN_SPREAD = 10


def is_known(estimate: Estimate) -> bool:
    """Whether the interval says anything."""
    return estimate.value < UNKNOWN_SPREAD * estimate.low and estimate.high < UNKNOWN_SPREAD * estimate.value


def interval(estimate: Estimate) -> str:
    """The bounds, or that requests were too few for any.

    >>> interval(Estimate(1.62, 1.5, 1.75))
    '1.50–1.75'
    """
    return f"{significant(estimate.low)}–{significant(estimate.high)}" if is_known(estimate) else "too few"


def short_name(model: str) -> str:
    """A model without its owner.

    >>> short_name("meta-llama/Llama-3.1-8B-Instruct")
    'Llama-3.1-8B-Instruct'
    """
    return model.rsplit("/", 1)[-1]


def devices_of(deployment: Deployment) -> str:
    """The devices of one copy: ``4 × NVIDIA H100 SXM``, without a number where it is one."""
    return f"{deployment.devices} × {deployment.hardware.name}" if deployment.devices > 1 else deployment.hardware.name


def ways_in_words(ways: Iterable[str]) -> str:
    """Several ways to draft in one phrase.

    >>> ways_in_words(["γ = 2", "γ = 3", "γ = 5"]), ways_in_words(["γ = 5", "tree 5/4/8"])
    ('γ = 2, 3 and 5', 'γ = 5 and tree 5/4/8')
    """
    first, *others = ways
    mark = "γ = "
    if first.startswith(mark):
        others = [each.removeprefix(mark) if each.removeprefix(mark).isdigit() else each for each in others]
    *before, last = first, *others
    return f"{', '.join(before)} and {last}" if before else last


def batches_in_words(first: int, last: int) -> str:
    """``1 to 53``, or ``1`` alone."""
    return f"{first} to {last}" if last > first else f"{first}"


def speculation_name(scenario: Scenario) -> str:
    """Every method of the scenario in the field's spelling."""
    return " or ".join(name for name, _ in scenario.methods)


def drafting_name(scenario: Scenario, label: str) -> str:
    """A variant of the scenario with its method: the label says it where there are alternatives."""
    return label if scenario.alternatives else f"{speculation_name(scenario)}, {label}"


def acceptance_source(scenario: Scenario, *, short: bool = False) -> str:
    """Where acceptance comes from, of each method; "" without speculation. short: without what stands in brackets after it."""
    each = {name: _acceptance_sources(one, short) for name, one in scenario.methods}
    return "; ".join(f"{name}: {source}" if scenario.alternatives else source for name, source in each.items())


def short_acceptance_source(scenario: Scenario) -> str:
    """The same in one line, for a caption."""
    return textwrap.shorten(acceptance_source(scenario, short=True), 110, placeholder=" …")


def _acceptance_sources(scenario: Scenario, short: bool) -> str:
    chains = [Tree.chain(max(scenario.gammas))] if scenario.gammas else []
    shapes = (*chains, *(shape for shape in scenario.shapes if not shape.is_chain))
    sources = [_acceptance_source(scenario, shape) for shape in shapes]
    return "; ".join(dict.fromkeys(source.partition(" (")[0] if short else source for source in sources))


def _acceptance_source(scenario: Scenario, shape: Tree) -> str:
    resolved = scenario.acceptance(shape.steps, shape)
    if resolved is not None:
        return resolved.source
    band = band_for(scenario.deployment.method, shape.steps, None if shape.is_chain else shape)
    return (
        "left open"
        if band is None
        else f"left open; lowest and highest measured τ at {shape.name}: {band.low_source}, {band.high_source}"
    )


@dataclass(frozen=True, slots=True)
class Constant:
    """One constant that the prices rest on. holder: `hardware` or `engine`; the unit is the end of `name`."""

    holder: str
    name: str
    quantity: Quantity


def provenance(scenario: Scenario) -> tuple[Constant, ...]:
    """Every constant of the device and of the engine, as they were used."""
    hardware, engine = scenario.deployment.hardware, scenario.deployment.engine
    used = links(scenario.deployment)
    found = [
        ("hardware", *item)
        for holder in (hardware.profile, hardware.coefficients)
        for item in quantities_of(holder)
        # A profile's own coefficients are among the filled-in ones.
        if item[0] not in INTER_NODE and not item[0].startswith("coefficients.")
    ]
    found += [("hardware", *item) for item in used.items()]
    kind = engine.all_reduce_kind(hardware)
    devices = scenario.deployment.tensor_parallel_size
    if devices > 1 and kind in hardware.profile.all_reduce:
        table, cost = hardware.profile.all_reduce[kind], hardware.all_reduce(kind, devices)
        note = table.note or f"{kind} all-reduce"
        for name in ("alpha_s", "bandwidth_bytes_per_s"):
            quantity = Quantity(value=getattr(cost, name), source=table.source, note=note, relative_std=table.doubt)
            found.append(("hardware", f"all_reduce.{kind}.{devices}.{name}", quantity))
    for dtype, factors in hardware.profile.gemm_row_factors.items():
        for rows, value in factors.by_rows.items():
            quantity = Quantity(value=value, source=factors.source, note=factors.note, relative_std=factors.doubt)
            found.append(("hardware", f"gemm_row_factors.{dtype}.{rows}", quantity))
    found += [("engine", *item) for item in quantities_of(engine)]
    return tuple(Constant(*row) for row in found)


def source_counts(constants: tuple[Constant, ...], holder: str) -> str:
    """How many constants of a holder have which source, ``9 fitted, 5 assumed``; datasheet peaks are left out."""
    counts = Counter(constant.quantity.source for constant in constants if constant.holder == holder)
    return ", ".join(f"{count} {source}" for source, count in counts.most_common() if source != "datasheet")
