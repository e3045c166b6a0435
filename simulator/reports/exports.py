"""A scenario's speculation as an engine's own settings."""

from __future__ import annotations

from pathlib import Path

from simulator.draft_tree import Tree
from simulator.interchange.engine_settings import ENGINES, NotExpressibleError, Setting, Snippet, snippets
from simulator.scenario import Scenario
from simulator.spec import Problem, SpecError, nearest


def setting_of(scenario: Scenario, gamma: int | None = None) -> Setting:
    """What the scenario sets: the chain of γ, or its only shape where left out. Raises `SpecError` where γ is none of its own."""
    speculation = scenario.file.speculation
    assert speculation is not None
    _expressible(scenario)
    shapes = speculation.shapes if gamma is None else [shape for shape in speculation.shapes if shape == Tree.chain(gamma)]
    if len(shapes) != 1:
        known = ", ".join(shape.name for shape in speculation.shapes)
        must = f"must be one that the scenario compares: {known}" if gamma is not None else f"must be given: it compares {known}"
        raise SpecError([Problem("--gamma", "", must, "" if gamma is None else str(gamma))])
    deployment, shape = scenario.deployment, shapes[0]
    return Setting(
        method=speculation.method,
        num_speculative_tokens=shape.depth,
        drafter=speculation.drafter,
        draft_tensor_parallel_size=deployment.draft_tensor_parallel_size if deployment.separate_drafter is not None else None,
        by_batch=speculation.engine_table,
        tree=None if shape.is_chain else shape,
        heterogeneous_vocabulary=speculation.heterogeneous_vocabulary,
    )


def _expressible(scenario: Scenario) -> None:
    """Raises `SpecError` for policies that no engine takes as a setting, and for several of them."""
    speculation = scenario.file.speculation
    assert speculation is not None
    kinds = [policy.kind for policy in speculation.policies]
    if len(kinds) > 1 or kinds[0] not in ("fixed", "by_batch", "off_above"):
        must = "must be one that engines take as a setting (fixed, by_batch, off_above) to be exported"
        raise SpecError([scenario.document.problem(("speculation", "policy"), must, ", ".join(kinds))])


def exported(scenario: Scenario, engine: str | None = None, gamma: int | None = None) -> tuple[Snippet, ...]:
    """The snippets for an engine, the scenario's own where left out. Raises `SpecError` where it cannot do what is asked."""
    name = engine or Path(scenario.file.engine).stem.partition("_")[0]
    if name not in ENGINES:
        where = "--engine"
        raise SpecError([Problem(where, "", f"must be one of {', '.join(ENGINES)}", repr(name), nearest(name, ENGINES))])
    try:
        return snippets(name, setting_of(scenario, gamma))
    except NotExpressibleError as reason:
        raise SpecError([Problem("--engine", "", f"must be an engine that can do this: {reason}", name)]) from None
