"""What must hold between the sections of a scenario. Each check runs when all it looks at is there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from simulator.architecture import ModelArchitecture
from simulator.cost.deployment import Deployment
from simulator.cost.parallelism import parallel_faults
from simulator.hardware import Hardware
from simulator.scenario.file import LimitsSpec, ParallelSpec
from simulator.scenario.limits import Limits
from simulator.scenario.reading import Reading
from simulator.serving_engine import ServingEngine
from simulator.spec import Problem
from simulator.speculation import Speculation, drafts_at_once, tokenizer_problem
from simulator.workload import RequestSource, shares_prefixes


def model_problems(reading: Reading, target: ModelArchitecture | None, drafter: ModelArchitecture | None) -> Iterator[Problem]:
    """Target and drafter must share a vocabulary, γ must fit the drafter, and heads must divide over devices."""
    speculation: Speculation | None = reading.sections.get("speculation")
    if target is not None and drafter is not None and speculation is not None:
        fault = tokenizer_problem(target, drafter)
        if fault and not speculation.heterogeneous_vocabulary:
            hint = (
                "; set heterogeneous_vocabulary where the engine maps between them" if speculation.method == "draft_model" else ""
            )
            yield reading.document.problem(("speculation", "drafter"), fault + hint)
        for shape in speculation.shapes:
            limit, what = drafts_at_once(drafter)
            if limit is not None and shape.depth > limit:
                chain = "num_speculative_tokens" if speculation.num_speculative_tokens is not None else "by_batch"
                chain = chain if getattr(speculation, chain) is not None else "policy"
                must = f"must be at most {limit}, the {what} of drafter {drafter.name}"
                yield reading.document.problem(("speculation", chain if shape.is_chain else "tree"), must, shape.depth)
    yield from _head_problems(reading, target, drafter)


def _head_problems(reading: Reading, target: ModelArchitecture | None, drafter: ModelArchitecture | None) -> Iterator[Problem]:
    parallel: ParallelSpec | None = reading.sections.get("parallel")
    if parallel is None:
        return
    size = parallel.tensor_parallel_size
    draft_size = parallel.draft_tensor_parallel_size
    if draft_size is not None and drafter is None and "speculation" in reading.sections:
        must = "must be left out without a drafter model: it would change nothing"
        yield reading.document.problem(("parallel", "draft_tensor_parallel_size"), must)
    speculation: Speculation | None = reading.sections.get("speculation")
    device = speculation.draft_device if speculation is not None else None
    if draft_size is not None and device is not None:
        must = "must be left out where the draft has a device of its own, which states it"
        yield reading.document.problem(("parallel", "draft_tensor_parallel_size"), must, draft_size)
    sides: list[tuple[tuple[str, ...], int | None, ModelArchitecture | None]] = [
        (("parallel", "tensor_parallel_size"), size, target),
        (("parallel", "draft_tensor_parallel_size"), draft_size, drafter),
    ]
    if device is not None:
        sides.append((("speculation", "draft_device", "tensor_parallel_size"), device.tensor_parallel_size, drafter))
    for key, devices, model in sides:
        if devices is not None and model is not None and (model.num_attention_heads or 0) % devices:
            must = f"must divide the {model.num_attention_heads} attention heads of {model.name}"
            yield reading.document.problem(key, must, devices)


def parallel_problems(
    reading: Reading, engine: ServingEngine | None, target: ModelArchitecture | None, drafter: ModelArchitecture | None
) -> Iterator[Problem]:
    """Stages, ranks, experts and nodes must fit the models, and the engine must run them."""
    parallel: ParallelSpec | None = reading.sections.get("parallel")
    if parallel is None or engine is None or target is None or "speculation" not in reading.sections:
        return
    speculation: Speculation | None = reading.sections["speculation"]
    tensor, draft = parallel.tensor_parallel_size, parallel.draft_tensor_parallel_size
    method = speculation.method if speculation is not None else "none"
    for key, must, got in parallel_faults(parallel.beyond_tensor(), tensor, draft, target, drafter, engine, method):
        yield reading.document.problem(("parallel", key), must, got)


def limit_problems(reading: Reading, engine: ServingEngine | None, target: ModelArchitecture | None) -> Iterator[Problem]:
    """A sequence with its drafts must fit into a step, and the model must know the positions."""
    limits: LimitsSpec | None = reading.sections.get("limits")
    speculation: Speculation | None = reading.sections.get("speculation")
    if limits is None:
        return
    positions = target.max_position_embeddings if target is not None else None
    if limits.max_model_len is not None and positions is not None and limits.max_model_len > positions:
        must = f"must be at most {positions}, the positions of {target.name}"  # type: ignore[union-attr]
        yield reading.document.problem(("limits", "max_model_len"), must, limits.max_model_len)
    budget = limits.max_num_batched_tokens or (engine.max_num_batched_tokens if engine is not None else None)
    largest = max(speculation.shapes, key=lambda shape: shape.nodes, default=None) if speculation is not None else None
    if largest is not None and budget is not None and largest.nodes > budget:
        rows = "num_speculative_tokens + 1" if largest.is_chain else f"the nodes of {largest.name}"
        must = f"must be at least {rows} = {largest.nodes}"
        yield reading.document.problem(("limits", "max_num_batched_tokens"), must, budget)


def sharing_problems(reading: Reading, source: RequestSource | None) -> Iterator[Problem]:
    """Caching of prefixes needs prompts that begin alike."""
    limits: LimitsSpec | None = reading.sections.get("limits")
    if limits is None or limits.prefix_caching is None or "workload" not in reading.sections:
        return
    if not shares_prefixes(reading.sections["workload"], source):
        sharing = "workload.shared_prefix_tokens, workload.sessions, or a trace with hash_ids"
        must = f"must be left out: no two prompts begin alike; that takes {sharing}"
        yield reading.document.problem(("limits", "prefix_caching"), must, limits.prefix_caching)


def memory_problems(reading: Reading, deployment: Deployment, limits: Limits) -> Iterator[Problem]:
    """Weights and the engine's own memory must leave room for one block."""
    if deployment.kv_blocks(limits.gpu_memory_utilization) > 0:
        return
    if deployment.plain().kv_blocks(limits.gpu_memory_utilization) > 0 and deployment.remote_draft is not None:
        name = deployment.remote_draft.hardware.name
        must = f"must hold the drafter and a KV cache on {deployment.remote_draft.tensor_parallel_size} × {name}"
        yield reading.document.problem(("speculation", "draft_device"), must)
        return
    size = deployment.tensor_parallel_size
    fitting = [n for n in (2, 4, 8, 16) if n > size and _fits(deployment, n, limits)]
    hint = f"; tensor_parallel_size {fitting[0]} would fit" if fitting else ""
    have = deployment.hardware.memory_bytes * limits.gpu_memory_utilization / 1e9
    need = (deployment.weight_bytes() + deployment.engine.reserved_bytes.value) / 1e9
    must = (
        f"must fit in memory at tensor_parallel_size {size}: weights and engine need {need:.1f} GB "
        f"of {have:.1f} GB usable on each {deployment.hardware.name}, before any KV cache{hint}"
    )
    yield reading.document.problem(("target", "model"), must)


def _fits(deployment: Deployment, size: int, limits: Limits) -> bool:
    wider = replace(
        deployment, tensor_parallel_size=size, draft_tensor_parallel_size=max(size, deployment.draft_tensor_parallel_size)
    )
    return wider.kv_blocks(limits.gpu_memory_utilization) > 0


def further_replica_problems(
    reading: Reading, deployment: Deployment, limits: Limits, further: Sequence[tuple[Hardware, int]]
) -> Iterator[Problem]:
    """Weights must leave room for a KV cache on every kind of device."""
    for index, (hardware, _) in enumerate(further):
        if replace(deployment.replica(), hardware=hardware).kv_blocks(limits.gpu_memory_utilization) < 1:
            must = f"must hold a replica of {deployment.target.name} and a KV cache on {deployment.replica().devices} of them"
            yield reading.document.problem(("parallel", "further_replicas", index, "hardware"), must, hardware.name)


def router_problems(reading: Reading, deployment: Deployment, limits: Limits, further: bool) -> Iterator[Problem]:
    """A router needs replicas to choose from, and something to tell them by."""
    router = reading.sections["parallel"].router
    if router is not None and deployment.independent_replicas == 1 and not further:
        must = "must be left out: there is one replica"
        if deployment.parallelism.data_parallel_size > 1:
            must += f", as the ranks of {deployment.target.name} step together"
        yield reading.document.problem(("parallel", "router"), must, router)
    elif router == "prefix_aware" and not limits.prefix_caching:
        must = "must be another router: no replica keeps prefixes (limits.prefix_caching, and prompts that begin alike)"
        yield reading.document.problem(("parallel", "router"), must, router)
