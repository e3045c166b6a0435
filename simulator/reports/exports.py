"""A scenario's speculation as an engine's own settings."""

from __future__ import annotations

from pathlib import Path

from simulator.interchange.engine_settings import ENGINES, NotExpressibleError, Setting, Snippet, snippets
from simulator.scenario import Scenario
from simulator.spec import Problem, SpecError, nearest


def setting_of(scenario: Scenario, gamma: int | None = None) -> Setting:
    """What the scenario sets, at γ (its only one where left out). Raises `SpecError` where γ is not one of the scenario's."""
    speculation = scenario.file.speculation
    assert speculation is not None
    known = ", ".join(map(str, scenario.gammas))
    if gamma is None and len(scenario.gammas) > 1:
        raise SpecError([Problem("--gamma", "", f"must be given: the scenario compares {known}")])
    if gamma is not None and gamma not in scenario.gammas:
        raise SpecError([Problem("--gamma", "", f"must be one of the scenario's {known}", str(gamma))])
    deployment = scenario.deployment
    named = speculation.drafter if deployment.drafter is None or speculation.drafter is not None else None
    return Setting(
        method=speculation.method,
        num_speculative_tokens=gamma or scenario.gammas[0],
        drafter=named,
        draft_tensor_parallel_size=deployment.draft_tensor_parallel_size if deployment.separate_drafter is not None else None,
        by_batch=speculation.by_batch,
        tree=deployment.tree,
        heterogeneous_vocabulary=speculation.heterogeneous_vocabulary,
    )


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
