"""How an operating point's models lie on devices: tensor parallelism, and a device of the draft's own."""

from __future__ import annotations

import math
from dataclasses import replace

from simulator.cost.deployment import Deployment
from simulator.cost.parallelism import parallel_faults
from simulator.cost.remote_draft import RemoteDraft
from simulator.hardware import Hardware, HardwareOverride, find_hardware, override
from simulator.prediction.point import OperatingPoint
from simulator.prediction.question import DEFAULT_CONTEXT, MEMORY_UTILIZATION
from simulator.prediction.unsupported import UnsupportedError, found_or_unsupported
from simulator.spec import Document, SpecError
from simulator.speculation import REMOTE_METHODS


def on_devices(
    point: OperatingPoint, deployment: Deployment, gamma: int, document: Document, warnings: list[str]
) -> tuple[Deployment, float]:
    """Tensor parallelism as given, else the number of devices, else the smallest that fits, with the sequences asked about if
    any does; and the doubt of a guess."""
    given = point.tensor_parallel_size or point.gpu_count
    _check_heads(point, deployment, given, document)
    if given is not None:
        return _with_parallel(deployment, given, point.draft_tensor_parallel_size or given), 0.0
    sizes = [size for size in (1, 2, 4, 8) if (deployment.target.num_attention_heads or 0) % size == 0]
    drafting = point.draft_tensor_parallel_size if deployment.remote_draft is None else None
    tried = (_with_parallel(deployment, size, drafting or size) for size in sizes if size >= (drafting or 1))
    fitting = [each for each in tried if each.kv_cache_bytes(MEMORY_UTILIZATION) > 0]
    if not fitting:
        raise UnsupportedError(f"{deployment.target.name} does not fit on up to 8 × {deployment.hardware.name}")
    context = point.context_len or (point.prompt_len or 0) + (point.output_len or 0) or DEFAULT_CONTEXT
    # What holds the models may hold too little of the KV cache asked about.
    holding = [each for each in fitting if each.kv_tokens(MEMORY_UTILIZATION) >= point.batch * context]
    why = "the smallest that fits" if not holding or holding[0] is fitting[0] else "the smallest that holds so many tokens"
    fitting = holding or fitting
    warnings.append(f"tensor parallelism unknown: {fitting[0].tensor_parallel_size} taken, {why}")
    if len(fitting) == 1:
        return fitting[0], 0.0
    ratios = [d.pricer().round(gamma, point.batch, point.context_len or DEFAULT_CONTEXT).r for d in fitting[:2]]
    return fitting[0], abs(math.log(ratios[1] / ratios[0])) / 2


def as_joined(hardware: Hardware, point: OperatingPoint, document: Document) -> Hardware:
    """The devices, joined as the point says. Raises `SpecError` for devices that have links of their own."""
    if point.peer_to_peer is None:
        return hardware
    if hardware.profile.link_topology != "pcie":
        must = f"must be left out: {hardware.name} is not joined by PCIe alone"
        raise SpecError([document.problem(("peer_to_peer",), must, point.peer_to_peer)])
    if point.peer_to_peer == hardware.profile.peer_to_peer:
        return hardware
    return override(hardware, HardwareOverride(base=hardware.profile_id, peer_to_peer=point.peer_to_peer), document)


def check_parallel(deployment: Deployment, document: Document) -> None:
    draft = None if deployment.remote_draft is not None else deployment.draft_tensor_parallel_size
    faults = parallel_faults(
        deployment.parallelism, deployment.tensor_parallel_size, draft,
        deployment.target, deployment.drafter, deployment.engine, deployment.method,
    )  # fmt: skip
    problems = [document.problem((key,), must, got) for key, must, got in faults]
    if problems:
        raise SpecError(problems)


def remote_draft_of(point: OperatingPoint, document: Document) -> RemoteDraft | None:
    """The draft's own device. Raises `SpecError` where the rest of its description is missing or without use."""
    if point.draft_hardware is None:
        for name in ("draft_link_latency_s", "draft_overlap"):
            if getattr(point, name) is not None:
                raise SpecError([document.problem((name,), "goes with draft_hardware only", getattr(point, name))])
        return None
    if point.method not in REMOTE_METHODS:
        must = f"goes with method {', '.join(REMOTE_METHODS)}: {point.method} needs the target's own states or text"
        raise SpecError([document.problem(("draft_hardware",), must, point.draft_hardware)])
    if point.draft_link_latency_s is None:
        raise SpecError([document.problem(("draft_link_latency_s",), "must be given with draft_hardware: seconds, one way")])
    (hardware,) = found_or_unsupported(lambda: find_hardware(point.draft_hardware or "", document.where(("draft_hardware",)), ""))
    return RemoteDraft(hardware, point.draft_tensor_parallel_size or 1, point.draft_link_latency_s, bool(point.draft_overlap))


def _check_heads(point: OperatingPoint, deployment: Deployment, size: int | None, document: Document) -> None:
    """Attention heads divide over devices. Raises `SpecError` where they do not."""
    sides = (
        ("tensor_parallel_size" if point.tensor_parallel_size else "gpu_count", size, deployment.target),
        ("draft_tensor_parallel_size", point.draft_tensor_parallel_size, deployment.drafter),
    )
    for key, devices, model in sides:
        if devices is not None and model is not None and (model.num_attention_heads or 0) % devices:
            must = f"must divide the {model.num_attention_heads} attention heads of {model.name}"
            raise SpecError([document.problem((key,), must, devices)])


def _with_parallel(deployment: Deployment, size: int, draft_size: int) -> Deployment:
    """The same on so many devices; a drafter whose heads do not divide over them stays on one."""
    if deployment.drafter is not None and (deployment.drafter.num_attention_heads or 0) % draft_size:
        draft_size = 1
    return replace(deployment, tensor_parallel_size=size, draft_tensor_parallel_size=draft_size)
