"""The parts that a scenario names: device, engine, models and trace, each looked up on its own."""

from __future__ import annotations

from pathlib import Path

from simulator.architecture import ModelArchitecture, find_model
from simulator.cost.remote_draft import RemoteDraft
from simulator.engine_start import as_it_starts, mixed_heads_note, overlap_note, start_faults, started
from simulator.hardware import Hardware, find_hardware, override
from simulator.interchange.request_traces import request_source
from simulator.kernel_switches import KernelSwitches
from simulator.scenario.file import LimitsSpec
from simulator.scenario.reading import Reading
from simulator.serving_engine import ServingEngine, find_engine
from simulator.spec import SpecError
from simulator.speculation import (
    HEAD_FAMILIES,
    MODELLESS_METHODS,
    SELF_METHODS,
    Speculation,
    built_head,
    drafter_problem,
    self_draft,
)
from simulator.workload import RequestSource, RequestTrace, WorkloadSpec, source_problems


def find_device(reading: Reading) -> Hardware:
    choice = reading.sections["hardware"]
    if isinstance(choice, str):
        return find_hardware(reading.document.beside(choice), reading.document.where(("hardware",)))
    base = find_hardware(reading.document.beside(choice.base), reading.document.where(("hardware", "base")), "hardware.base")
    return override(base, choice, reading.document)


def find_serving_engine(reading: Reading) -> ServingEngine:
    return find_engine(reading.document.beside(reading.sections["engine"]), reading.document.where(("engine",)))


def start_engine(reading: Reading, engine: ServingEngine | None, target: ModelArchitecture | None) -> ServingEngine | None:
    """The engine with the kernels that the scenario chooses."""
    switches: KernelSwitches = reading.sections["kernels"]
    if engine is None:
        return engine
    faults = start_faults(engine, switches)
    problems = [reading.document.problem(("kernels", key), must, got, known) for key, must, got, known in faults]
    if problems:
        raise SpecError(problems)
    if target is not None:
        reading.warnings.extend(mixed_heads_note(engine, switches, target))
    speculation: Speculation | None = reading.sections.get("speculation")
    if speculation is not None:
        reading.warnings.extend(overlap_note(engine, switches, speculation.method))
    if (switches := as_it_starts(engine, switches, target)) == KernelSwitches():
        return engine
    limits: LimitsSpec | None = reading.sections.get("limits")
    stated = limits.max_model_len if limits is not None else None
    return started(engine, switches, stated or (target.max_position_embeddings if target is not None else None))


def find_draft_device(reading: Reading) -> RemoteDraft | None:
    """The draft's own device, where it has one."""
    speculation: Speculation | None = reading.sections["speculation"]
    where = None if speculation is None else speculation.draft_device
    if where is None:
        return None
    location = ("speculation", "draft_device", "hardware")
    hardware = find_hardware(reading.document.beside(where.hardware), reading.document.where(location), ".".join(location))
    return RemoteDraft(hardware, where.tensor_parallel_size, where.link_latency_s, where.overlap)


def find_further_hardware(reading: Reading) -> tuple[tuple[Hardware, int], ...]:
    found = []
    for index, kind in enumerate(reading.sections["parallel"].further_replicas):
        location = ("parallel", "further_replicas", index, "hardware")
        where = reading.document.where(location)
        found.append(
            (find_hardware(reading.document.beside(kind.hardware), where, "parallel.further_replicas.hardware"), kind.count)
        )
    return tuple(found)


def find_target(reading: Reading) -> ModelArchitecture:
    name = reading.document.beside(reading.sections["target"].model)
    found = find_model(name, reading.document.where(("target", "model")), "target.model", "target model")
    if found.kind == "draft_head":
        raise SpecError([reading.document.problem(("target", "model"), "must be a whole model, not a draft head", found.name)])
    return found


NO_DRAFTER = "no drafter named"


def find_drafter(reading: Reading, target: ModelArchitecture | None) -> ModelArchitecture | None:
    """The drafter by name; for a head method without one, built from the target with a warning."""
    speculation: Speculation | None = reading.sections["speculation"]
    if speculation is None or speculation.method in MODELLESS_METHODS:
        return None
    location = ("speculation", "drafter")
    if speculation.method in SELF_METHODS:
        layers = None if target is None else target.num_hidden_layers
        if layers is not None and (speculation.draft_layers or 0) > layers:
            must = f"must be at most {layers}, the layers of {target.name}"  # type: ignore[union-attr]
            raise SpecError([reading.document.problem(("speculation", "draft_layers"), must, speculation.draft_layers)])
        return None if target is None else self_draft(target, speculation.method, speculation.draft_layers)
    if speculation.drafter is None:
        if target is None or speculation.method not in HEAD_FAMILIES:
            return None
        reading.warnings.append(
            f"{NO_DRAFTER}: {speculation.method} drafting by a module built from the target, of the usual shape"
        )
        return built_head(target, speculation.method, max(shape.depth for shape in speculation.shapes))
    found = find_model(
        reading.document.beside(speculation.drafter), reading.document.where(location), "speculation.drafter", "drafter"
    )
    fault = drafter_problem(speculation.method, found)
    if fault:
        raise SpecError([reading.document.problem(location, fault, speculation.drafter)])
    return found


def read_source(reading: Reading) -> RequestSource | None:
    """The trace or profile that `workload.requests.trace` means."""
    workload: WorkloadSpec = reading.sections["workload"]
    location = ("workload", "requests", "trace")
    source = None
    if workload.requests is not None:
        folder = Path(reading.document.source).parent
        named = workload.requests.columns
        columns = named.model_dump() if named is not None else None
        tokenizer = workload.requests.tokenizer
        where = reading.document.where(location)
        source = request_source(workload.requests.trace, folder, where, columns=columns, tokenizer=tokenizer)
    reading.collect(source_problems(workload, source, reading.document, ("workload",)))
    if isinstance(source, RequestTrace):
        reading.warnings.extend(source.notes)
    return source
