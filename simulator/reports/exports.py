"""A scenario's speculation as an engine's own settings."""

from __future__ import annotations

from pathlib import Path

from simulator.draft_policy import FIXED, SETTABLE, PolicySpec, whole_table
from simulator.draft_tree import Tree
from simulator.interchange.engine_settings import ENGINES, NotExpressibleError, Setting, Snippet, snippets
from simulator.scenario import Scenario
from simulator.spec import Problem, SpecError, nearest


def setting_of(scenario: Scenario, gamma: int | None = None) -> Setting:
    """What the scenario sets: the chain of γ, or its only shape where left out. Raises `SpecError` where γ is none of its own."""
    own, kinds = scenario.shapes, [policy.kind for _, policy in scenario.variants]
    if len(set(kinds)) > 1 or not {*kinds} <= {*SETTABLE}:
        must = f"must be one that engines take as a setting ({', '.join(SETTABLE)}) to be exported"
        raise SpecError([scenario.document.problem(("speculation", "policy"), must, ", ".join(dict.fromkeys(kinds)))])
    shapes = own if gamma is None else [shape for shape in own if shape == Tree.chain(gamma)]
    if len(shapes) != 1:
        known = ", ".join(shape.name for shape in own)
        must = f"must be one that the scenario compares: {known}" if gamma is not None else f"must be given: it compares {known}"
        raise SpecError([Problem("--gamma", "", must, "" if gamma is None else str(gamma))])
    return setting_for(scenario, shapes[0], scenario.variants[0][1])


def setting_for(scenario: Scenario, shape: Tree, policy: PolicySpec = FIXED) -> Setting:
    """A shape of the scenario's method, drafted by a policy of `SETTABLE`."""
    speculation, deployment = scenario.file.speculation, scenario.deployment
    assert speculation is not None
    table = policy.engine_table(shape.steps)
    return Setting(
        method=speculation.method,
        num_speculative_tokens=shape.depth,
        drafter=speculation.drafter,
        draft_tensor_parallel_size=deployment.draft_tensor_parallel_size if deployment.separate_drafter is not None else None,
        by_batch=None if table is None else whole_table(table, scenario.limits.max_num_seqs),
        tree=None if shape.is_chain else shape,
        heterogeneous_vocabulary=speculation.heterogeneous_vocabulary,
    )


def engine_snippets(scenario: Scenario, shape: Tree, policy: PolicySpec = FIXED) -> tuple[tuple[Snippet, ...], str]:
    """(snippets of the scenario's own engine, or where it has no writer of every engine that can do it; why there are none)."""
    own = _engine_of(scenario)
    if policy.kind not in SETTABLE:
        return (), f"engines do not take {policy.label(shape.steps)} as a setting"
    found: list[Snippet] = []
    reasons = []
    for name in (own,) if own in ENGINES else ENGINES:
        try:
            found += snippets(name, setting_for(scenario, shape, policy))
        except NotExpressibleError as reason:
            reasons.append(str(reason))
    return tuple(found), "" if found else "; ".join(reasons)


def _engine_of(scenario: Scenario) -> str:
    """The engine without the version of its profile."""
    return Path(scenario.file.engine).stem.partition("_")[0]


def exported(scenario: Scenario, engine: str | None = None, gamma: int | None = None) -> tuple[Snippet, ...]:
    """The snippets for an engine, the scenario's own where left out. Raises `SpecError` where it cannot do what is asked."""
    name = engine or _engine_of(scenario)
    if name not in ENGINES:
        where = "--engine"
        raise SpecError([Problem(where, "", f"must be one of {', '.join(ENGINES)}", repr(name), nearest(name, ENGINES))])
    try:
        return snippets(name, setting_of(scenario, gamma))
    except NotExpressibleError as reason:
        raise SpecError([Problem("--engine", "", f"must be an engine that can do this: {reason}", name)]) from None
