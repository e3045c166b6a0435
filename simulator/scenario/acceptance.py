"""The acceptance section: which law it means for a shape, and whether it fits the way of drafting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simulator import resources
from simulator.acceptance import AcceptanceSpec, ResolvedAcceptance, read_profile, resolve_acceptance, resolve_tree_acceptance
from simulator.draft_tree import Tree
from simulator.scenario.reading import Reading
from simulator.spec import Document, Problem
from simulator.speculation import MODELLESS_METHODS, Speculation


def acceptance_law(
    spec: AcceptanceSpec, document: Document, gamma: int, gammas: tuple[int, ...], tree: Tree | None = None, alone: bool = False
) -> ResolvedAcceptance:
    """The law at γ or of a tree. A lone mean acceptance length holds at the largest γ asked for; the others follow from its
    law."""
    if tree is not None and not tree.is_chain:
        return resolve_tree_acceptance(spec, document, tree, alone)
    if spec.mean_acceptance_length is None:
        return resolve_acceptance(spec, document, gamma)
    resolved = resolve_acceptance(spec, document, max(gammas))
    further = resolved.law.extrapolated(gamma)
    return replace(resolved, warnings=(*resolved.warnings, further) if further else resolved.warnings)


def check_acceptance(reading: Reading) -> None:
    """Acceptance needs speculation, and must be possible at every γ asked for."""
    spec: AcceptanceSpec | None = reading.sections.get("acceptance")
    if spec is None or "speculation" not in reading.sections:
        return
    speculation: Speculation | None = reading.sections["speculation"]
    if speculation is None or speculation.method == "none":
        reading.problems.append(
            reading.document.problem(("acceptance",), "must be left out without speculation: it would change nothing")
        )
        return
    if spec.proposal_rate is not None and speculation.method not in MODELLESS_METHODS:
        must = f"must be left out: {speculation.method} always proposes"
        reading.problems.append(reading.document.problem(("acceptance", "proposal_rate"), must, spec.proposal_rate))
    if _is_of_another_method(reading, spec, speculation.method):
        return
    reading.collect(_trees_not_asked_for(reading, spec, speculation))
    for shape in speculation.shapes:
        resolved = reading.attempt(lambda shape=shape: _law_of(reading, spec, speculation, shape))  # type: ignore[misc]
        if resolved is None:
            return
        notes = (*resolved.warnings, *([resolved.law.note] if resolved.law.note else []))
        reading.warnings.extend([note for note in notes if note not in reading.warnings])


def _law_of(reading: Reading, spec: AcceptanceSpec, speculation: Speculation, shape: Tree) -> ResolvedAcceptance:
    return acceptance_law(spec, reading.document, shape.steps, speculation.gammas, shape, alone=len(speculation.shapes) == 1)


def _trees_not_asked_for(reading: Reading, spec: AcceptanceSpec, speculation: Speculation) -> Iterator[Problem]:
    """Acceptance of trees that the scenario does not draft: it would change nothing."""
    for index, entry in enumerate(spec.trees or ()):
        if entry.shape not in speculation.shapes:
            must = f"must be a tree of the speculation section ({entry.shape.name} is not)"
            yield reading.document.problem(("acceptance", "trees", index), must)
    if spec.law_key != "trees" and set(speculation.shapes) <= {entry.shape for entry in spec.trees or ()}:
        must = "must be left out: every shape has its own acceptance in trees"
        yield reading.document.problem(("acceptance", spec.law_key), must)


def _is_of_another_method(reading: Reading, spec: AcceptanceSpec, method: str) -> bool:
    """Whether the acceptance profile was measured for another way of drafting, which says nothing of this one."""
    path = resources.file_of("acceptance", spec.profile) if spec.profile is not None else None
    profile = reading.attempt(lambda: read_profile(path)) if path is not None else None
    if profile is None or profile.spec.method == method:
        return False
    must = f"must be a profile measured for method {method} ({spec.profile} is for {profile.spec.method})"
    reading.problems.append(reading.document.problem(("acceptance", "profile"), must))
    return True
