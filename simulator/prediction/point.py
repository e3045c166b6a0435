"""OperatingPoint: one question, as it is asked."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simulator.kernel_switches import Graphs
from simulator.number_format import BY_NAME, WeightFormat
from simulator.spec import Document, Spec
from simulator.workload import MAX_TOKENS

Positive = Annotated[float, Field(ge=1e-9, le=1e9)]
Count = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Rates = tuple[Annotated[float, Field(ge=0, le=1)], ...]


class OperatingPoint(Spec):
    """One question: hardware, models, method, γ, batch and context. Field names are the columns of `predict --table`.

    batch: sequences that decode on the whole deployment, all data-parallel ranks together. draft_hardware: a device of the
    draft's own, of which there are draft_tensor_parallel_size; draft_link_latency_s, draft_overlap: as in
    `speculation.DraftDevice`. year: of the engine's release, where no version is named (`ServingEngine.until`). peer_to_peer:
    whether cards joined by PCIe reach each other's memory, where that is not as their drivers have it. attention_backend,
    deterministic, graphs, overlap: as in `kernel_switches.KernelSwitches`. max_model_len: tokens of the longest sequence
    admitted, where kernels depend on it; left out: the model's positions.
    prompts_together: a batch's requests are sent at once, so that their prompts share passes; else each comes as another ends.
    """

    id: str = ""
    hardware: str
    gpu_count: Count | None = None
    peer_to_peer: bool | None = None
    tensor_parallel_size: Count | None = None
    precision: str | None = None
    engine: str = "generic"
    year: Annotated[int, Field(ge=2000, le=2100)] | None = None
    attention_backend: str | None = None
    deterministic: bool | None = None
    graphs: Graphs | None = None
    overlap: bool | None = None
    max_model_len: Count | None = None
    target_model: str
    method: str
    draft_model: str | None = None
    draft_params: str | None = None
    drafter_weights: Annotated[WeightFormat, BY_NAME] | None = None
    draft_layers: Count | None = None
    draft_kv_tokens: Annotated[int, Field(ge=16, le=MAX_TOKENS)] | None = None
    draft_tensor_parallel_size: Count | None = None
    pipeline_parallel_size: Annotated[int, Field(ge=1, le=64)] | None = None
    data_parallel_size: Annotated[int, Field(ge=1, le=256)] | None = None
    expert_parallel: bool | None = None
    nodes: Annotated[int, Field(ge=1, le=256)] | None = None
    draft_hardware: str | None = None
    draft_link_latency_s: Annotated[float, Field(ge=0, le=10)] | None = None
    draft_overlap: bool | None = None
    num_speculative_tokens: Annotated[int, Field(ge=1, le=64)] | None = None
    tree_shape: str | None = None
    batch: Count
    dataset: str | None = None
    context_len: Annotated[float, Field(ge=1, le=MAX_TOKENS)] | None = None
    prompt_len: Count | None = None
    output_len: Count | None = None
    prompts_together: bool | None = None
    mean_acceptance_length: Annotated[float, Field(ge=1)] | None = None
    acceptance_rate: Annotated[float, Field(ge=0, le=1)] | None = None
    acceptance_rates_per_position: Rates | None = None
    conditional_acceptance_rates: Rates | None = None
    plain_step_s: Positive | None = None
    plain_tokens_per_s: Positive | None = None


SWITCHES = ("attention_backend", "deterministic", "graphs", "overlap")
ACCEPTANCE_FIELDS = ("mean_acceptance_length", "acceptance_rate", "acceptance_rates_per_position", "conditional_acceptance_rates")
REQUIRED = ("hardware", "target_model", "method", "batch")
FLAGS = {"target_model": "target", "draft_model": "draft"}
# Other spellings of columns, and of arguments of `predict`.
ALIASES = {flag: field for field, flag in FLAGS.items()} | {"mean_acceptance_rates_per_position": "acceptance_rates_per_position"}


def is_table(document: Document) -> bool:
    """Whether the point is a row of a table, whose columns may say more than one row needs."""
    return bool(document.source)
