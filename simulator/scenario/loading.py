"""From a path or a parsed document to a scenario, or to every mistake in it.

All mistakes of a file are reported together: a section that is wrong does not keep the others from being checked.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from simulator import resources
from simulator.scenario.acceptance import check_acceptance
from simulator.scenario.alternatives import SECTION, alternative_document, named_as_written
from simulator.scenario.file import ScenarioFile
from simulator.scenario.joining import deployment_of, limits_of
from simulator.scenario.names import (
    find_device,
    find_draft_device,
    find_drafter,
    find_further_hardware,
    find_serving_engine,
    find_target,
    read_source,
    start_engine,
)
from simulator.scenario.prefill_instances import find_prefill_instances, prefill_problems
from simulator.scenario.reading import Reading
from simulator.scenario.remarks import remark
from simulator.scenario.scenario import Scenario
from simulator.scenario.section_checks import (
    further_replica_problems,
    limit_problems,
    memory_problems,
    model_problems,
    parallel_problems,
    router_problems,
    sharing_problems,
)
from simulator.spec import Document, Problem, SpecError, check_sections, load_yaml


def load_scenario(path: str | Path) -> Scenario:
    """A scenario by path or by the id of a shipped one. Raises `SpecError` with every mistake found."""
    return scenario_of(scenario_document(path))


def scenario_document(path: str | Path) -> Document:
    """The same as it is written. Raises `SpecError` where there is no such file or it is no YAML."""
    found, shipped = resources.file_of("scenario", str(path)), resources.ids("scenario")
    if found is None and not str(path).endswith((".yaml", ".yml")) and "/" not in str(path):
        raise resources.unknown("", "scenario", "scenario", str(path), shipped)
    if found is None and Path(path).stem in shipped:
        # Written as in a checkout, from another folder.
        raise SpecError([Problem(str(path), "", "no such file; shipped scenarios go by name", nearest=Path(path).stem)])
    return load_yaml(found or path)


def scenario_of(document: Document) -> Scenario:
    """The scenario in a parsed document. Raises `SpecError` with every mistake found."""
    if not isinstance(document.data, dict):
        raise SpecError(
            [document.problem((), "must be a mapping of sections such as hardware, target and workload", document.data)]
        )
    sections, problems = check_sections(ScenarioFile, document)
    scenario = _resolved(Reading(document, sections, problems))
    if problems or scenario is None:
        raise SpecError(sorted(dict.fromkeys(problems), key=_line))
    return _with_alternatives(scenario)


def _with_alternatives(scenario: Scenario) -> Scenario:
    """The scenario with its alternatives resolved. Raises `SpecError` with the mistakes of all of them."""
    document, stated = scenario.document, scenario.file.alternatives or ()
    found: list[Scenario] = []
    problems: list[Problem] = []
    if stated and not scenario.deployment.speculative:
        problems.append(document.problem((SECTION,), "must stand beside a speculation section: they are compared with it"))
    for index, alternative in enumerate(stated):
        if alternative.speculation.method == "none":
            location = (SECTION, index, "speculation", "method")
            problems.append(document.problem(location, "must draft: no speculation is always compared", "none"))
            continue
        try:
            found.append(scenario_of(alternative_document(document, index)))
        except SpecError as error:
            problems += named_as_written(error.problems, index)
    if problems:
        raise SpecError(sorted(dict.fromkeys(problems), key=_line))
    return replace(scenario, alternatives=tuple(found))


def _resolved(reading: Reading) -> Scenario | None:
    """The scenario of sound sections; None where any is not, or where the rest of what is needed is not known."""
    hardware = reading.attempt(lambda: find_device(reading))
    found = reading.attempt(lambda: find_serving_engine(reading))
    target = reading.attempt(lambda: find_target(reading))
    engine = reading.attempt(lambda: start_engine(reading, found, target))
    drafter = reading.attempt(lambda: find_drafter(reading, target))
    remote = reading.attempt(lambda: find_draft_device(reading))
    further = reading.attempt(lambda: find_further_hardware(reading))
    source = reading.attempt(lambda: read_source(reading))
    check_acceptance(reading)
    reading.collect(model_problems(reading, target, drafter))
    reading.collect(parallel_problems(reading, engine, target, drafter))
    reading.collect(limit_problems(reading, engine, target))
    reading.collect(sharing_problems(reading, source))
    if hardware is None or engine is None or target is None or further is None or reading.problems:
        return None
    deployment = deployment_of(reading, hardware, engine, target, drafter, remote)
    limits = limits_of(reading, engine, target, source)
    reading.collect(memory_problems(reading, deployment, limits))
    reading.collect(further_replica_problems(reading, deployment, limits, further))
    reading.collect(router_problems(reading, deployment, limits, bool(further)))
    prefill = reading.attempt(lambda: find_prefill_instances(reading, deployment, limits))
    reading.collect(prefill_problems(reading, deployment, limits, prefill))
    remark(reading, deployment, limits, further, prefill)
    name = Path(reading.document.source).stem
    file = ScenarioFile.model_construct(**reading.sections)
    return Scenario(name, reading.document, file, deployment, limits, source, tuple(reading.warnings), further, prefill)


def _line(problem: Problem) -> int:
    tail = problem.where.rpartition(":")[2]
    return int(tail) if tail.isdigit() else 0
