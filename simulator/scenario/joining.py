"""The sections of a scenario joined: one deployment, and limits with the engine's defaults filled in."""

from __future__ import annotations

from simulator.architecture import ModelArchitecture, published_weights, stored_weights, tower_note
from simulator.cost.deployment import Deployment
from simulator.cost.remote_draft import RemoteDraft
from simulator.hardware import Hardware
from simulator.scenario.file import LimitsSpec, TargetSpec
from simulator.scenario.limits import Limits
from simulator.scenario.reading import Reading
from simulator.serving_engine import ServingEngine
from simulator.speculation import (
    DEFAULT_DRAFT_KV_TOKENS,
    MODELLESS_METHODS,
    Speculation,
    default_drafter_weights,
    mixed_warning,
    unread_warning,
    weights_warning,
)
from simulator.workload import RequestSource, shares_prefixes

UNLIMITED_MODEL_LEN = 131072
# vLLM's default of its swap space, for each GPU.
SWAP_SPACE_BYTES = 4 * 2.0**30


def deployment_of(
    reading: Reading,
    hardware: Hardware,
    engine: ServingEngine,
    target: ModelArchitecture,
    drafter: ModelArchitecture | None,
    remote: RemoteDraft | None,
) -> Deployment:
    parallel, spec = reading.sections["parallel"], reading.sections["target"]
    speculation: Speculation | None = reading.sections["speculation"]
    draft_size = parallel.draft_tensor_parallel_size or parallel.tensor_parallel_size
    if drafter is not None and (drafter.num_attention_heads or 0) % draft_size:
        draft_size = 1
    kv_tokens = None
    if speculation is not None and speculation.method == "sparse_kv":
        kv_tokens = speculation.draft_kv_tokens or DEFAULT_DRAFT_KV_TOKENS
    weights = engine.stored(_target_weights(reading, spec))
    model = reading.document.beside(spec.model)
    reading.warnings.extend((*mixed_warning(model, target, weights), *tower_note(model)))
    own = hardware if remote is None else remote.hardware
    drafter_weights = engine.stored(_drafter_weights(reading, speculation, weights, own, drafter))
    return Deployment(
        hardware, engine, target, weights, spec.kv_cache, parallel.tensor_parallel_size,
        speculation.method if speculation else "none", drafter, drafter_weights, draft_size if drafter is not None else 1,
        kv_tokens, parallelism=parallel.beyond_tensor(), remote_draft=remote,
    )  # fmt: skip


def _target_weights(reading: Reading, spec: TargetSpec) -> str:
    model = reading.document.beside(spec.model)
    reading.warnings.extend(weights_warning(spec.weights, stored_weights(model)))
    found = spec.weights or published_weights(model)
    if found is None:
        reading.warnings.extend(unread_warning(model, "bf16", "target.weights"))
    return found or "bf16"


def _drafter_weights(
    reading: Reading, speculation: Speculation | None, weights: str, hardware: Hardware, drafter: ModelArchitecture | None
) -> str:
    if speculation is None or speculation.method in MODELLESS_METHODS:
        return hardware.wide_dtype
    if speculation.drafter_weights is not None:
        return speculation.drafter_weights
    named = None if speculation.drafter is None else reading.document.beside(speculation.drafter)
    stored = None if named is None else stored_weights(named)
    chosen, warning = default_drafter_weights(speculation.method, weights, hardware.wide_dtype, stored, drafter)
    unread = unread_warning(named, chosen, "speculation.drafter_weights")
    reading.warnings.extend(unread or ([warning] if warning else []))
    return chosen


def limits_of(reading: Reading, engine: ServingEngine, target: ModelArchitecture, source: RequestSource | None) -> Limits:
    given: LimitsSpec = reading.sections["limits"]
    return Limits(
        given.max_num_seqs or engine.max_num_seqs,
        given.max_num_batched_tokens or engine.max_num_batched_tokens,
        given.gpu_memory_utilization or engine.gpu_memory_utilization,
        given.max_model_len or target.max_position_embeddings or UNLIMITED_MODEL_LEN,
        _caches_prefixes(reading, engine, source),
        (given.swap_space_bytes or SWAP_SPACE_BYTES) if given.preemption == "swap" else 0.0,
    )


def _caches_prefixes(reading: Reading, engine: ServingEngine, source: RequestSource | None) -> bool:
    given: LimitsSpec = reading.sections["limits"]
    wanted = engine.prefix_caching if given.prefix_caching is None else given.prefix_caching
    return wanted and shares_prefixes(reading.sections["workload"], source)
