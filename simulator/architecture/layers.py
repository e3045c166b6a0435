"""LayerGroup: equal layers as one device of a tensor-parallel group runs them, which is all that the cost model prices.

Matrices are (n, k): k numbers in, n out; n·k weights, 2·n·k FLOPs a row. Heads and MLP widths are split over the devices;
routers, latent (low-rank) inputs and indexers stay whole on each, as serving engines keep them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from simulator.architecture.mixed_weights import Part

if TYPE_CHECKING:
    from simulator.architecture.shape import ModelArchitecture

Attention = Literal["full", "sliding", "chunked", "mla", "linear", "mamba", "compressed", "none"]
Matrices = tuple[tuple[float, float], ...]
# Attention that keeps a state instead of a cache. Its numbers are kept in 32 bit, as models of these kinds ask for
# (`mamba_ssm_dtype`: Qwen3.5 to 3.8) and SGLang does unasked; vLLM keeps 16 bit where a config says nothing (Qwen3-Next), and the
# inputs of the convolution always (vllm-project/vllm@02d7108 vllm/model_executor/layers/mamba/mamba_utils.py).
RECURRENT = ("linear", "mamba")
STATE_NUMBER_BYTES = 4.0
# Patterns with these letters hold one block a layer: attention, mamba, experts or an MLP.
ONE_BLOCK_LETTERS = frozenset("MED")


@dataclass(frozen=True, slots=True)
class Experts:
    """Routed experts of one layer. matrices: of ONE expert on one device. grouped: routing picks groups of experts first."""

    num_experts: int
    top_k: int
    matrices: Matrices
    grouped: bool

    @property
    def parameters_per_expert(self) -> float:
        return sum(n * k for n, k in self.matrices)


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """`count` equal layers on ONE device of a tensor-parallel group.

    matrices: every dense GEMM of one layer (projections, MLP, shared experts, router); parts: what each belongs to.
    kv_elements_per_token: numbers cached per token and layer. attention_flops_per_row_and_token: scores and values of one query
    row against one token of context. head_dim: width that queries and keys share. window: tokens attended at most, whatever
    limits them (window, chunk, indexer). state_elements: numbers kept per sequence and layer whatever its length. index_*: a
    sparse-attention indexer, which scans all tokens to pick those of `window`; its cached numbers come on top of
    kv_elements_per_token.
    """

    count: int
    attention: Attention
    matrices: Matrices
    experts: Experts | None
    heads: float
    kv_heads: float
    kv_elements_per_token: float
    attention_flops_per_row_and_token: float
    head_dim: int
    window: int | None
    state_elements: float
    parts: tuple[Part, ...]
    index_elements_per_token: float = 0.0
    index_flops_per_row_and_token: float = 0.0

    @property
    def gathers(self) -> bool:
        """Whether each query row reads a list of tokens of its own, so that rows never share a tile of the tensor units."""
        return self.attention == "compressed" or (self.attention == "mla" and self.window is not None)

    @property
    def gathered_tokens(self) -> int:
        """How long that list is at least: of latent attention as long as its indexer's, whose ends are computed and masked."""
        return self.window or 0 if self.attention == "mla" else 0

    def parameters_of(self, part: Part) -> float:
        """Weights of one part of one layer on one device, routed experts apart."""
        return sum(n * k for (n, k), belongs in zip(self.matrices, self.parts, strict=True) if belongs == part)

    @property
    def parameters(self) -> float:
        """Matrix weights of one layer on one device, all routed experts included."""
        routed = self.experts.num_experts * self.experts.parameters_per_expert if self.experts else 0.0
        return sum(n * k for n, k in self.matrices) + routed


@dataclass(frozen=True, slots=True)
class _Layer:
    """What makes two layers equal: letter of the pattern, dense MLP width (0 = none), experts, compression, indexer."""

    letter: str
    mlp_width: int
    has_experts: bool
    compress_ratio: int
    has_indexer: bool


@lru_cache(maxsize=1024)
def layer_groups(model: ModelArchitecture, tensor_parallel_size: int) -> tuple[LayerGroup, ...]:
    """The layers of `model` in groups of equals, in order of first appearance."""
    counts: dict[_Layer, int] = {}
    for index in range(model.num_hidden_layers):
        layer = _layer(model, index)
        counts[layer] = counts.get(layer, 0) + 1
    return tuple(_group(model, layer, count, tensor_parallel_size) for layer, count in counts.items())


def pattern(model: ModelArchitecture) -> str:
    """One letter a layer, spelt out."""
    if model.layer_pattern is not None:
        return model.layer_pattern
    return ("F" if model.sliding_window is None else "S") * model.num_hidden_layers


def has_experts(model: ModelArchitecture, index: int) -> bool:
    """Whether layer `index` has routed experts."""
    if model.num_experts is None:
        return False
    letters = pattern(model)
    if ONE_BLOCK_LETTERS & set(letters):
        return letters[index] == "E"
    return index >= model.first_k_dense_replace and (index + 1) % model.decoder_sparse_step == 0


def _layer(model: ModelArchitecture, index: int) -> _Layer:
    letters = pattern(model)
    letter, routed = letters[index], has_experts(model, index)
    one_block = bool(ONE_BLOCK_LETTERS & set(letters))
    if routed or (one_block and letter != "D"):
        width = 0
    else:
        width = model.intermediate_sizes[index] if model.intermediate_sizes else model.intermediate_size
    ratio = model.compress_ratios[index] if model.compress_ratios else 0
    return _Layer(letter, width, routed, ratio, _has_indexer(model, index, ratio))


def _has_indexer(model: ModelArchitecture, index: int, ratio: int) -> bool:
    """Which layers own an indexer: with letters C those of the lowest compression, as the others read all their few entries."""
    if model.index_topk is None:
        return False
    letters = pattern(model)
    if "C" in letters:
        return letters[index] == "C" and ratio == min(filter(None, model.compress_ratios or ()), default=0)
    return index < (model.index_layers or model.num_hidden_layers)


def _group(model: ModelArchitecture, layer: _Layer, count: int, size: int) -> LayerGroup:
    group = _mixer(model, layer, size)
    beside = _mlp(model, layer.mlp_width, size)
    parts: list[Part] = ["mlp"] * len(beside)
    experts = None
    if layer.has_experts:
        around = _beside_experts(model, size)
        beside += around
        parts.append("router")
        parts.extend("mlp" for _ in around[1:])
        experts = _experts(model, size)
    return replace(group, count=count, matrices=group.matrices + beside, parts=(*group.parts, *parts), experts=experts)


# ---------------------------------------------------------------------------------------------------- MLPs and experts


def _mlp(model: ModelArchitecture, width: float, size: int, inputs: int | None = None) -> Matrices:
    if not width:
        return ()
    inputs = inputs or model.hidden_size
    return (((model.mlp_matrices - 1) * width / size, inputs), (inputs, width / size))


def _experts(model: ModelArchitecture, size: int) -> Experts:
    assert model.num_experts is not None
    assert model.num_experts_per_tok is not None
    matrices = _mlp(model, model.moe_intermediate_size or 0, size, model.moe_latent_size)
    return Experts(model.num_experts, model.num_experts_per_tok, matrices, (model.n_group or 1) > 1)


def _beside_experts(model: ModelArchitecture, size: int) -> Matrices:
    """Router, projections to and from the experts' latent width, shared experts."""
    assert model.num_experts is not None
    hidden, latent = model.hidden_size, model.moe_latent_size
    around: Matrices = ((latent, hidden), (hidden, latent)) if latent else ()
    return ((model.num_experts, hidden), *around, *_mlp(model, model.shared_expert_width, size))


# -------------------------------------------------------------------------------------- attention and what replaces it


def _mixer(model: ModelArchitecture, layer: _Layer, size: int) -> LayerGroup:
    """One layer without its MLP."""
    if layer.letter in "NED":
        return LayerGroup(1, "none", (), None, 0.0, 0.0, 0.0, 0.0, 0, None, 0.0, ())
    if layer.letter == "L":
        return _linear(model, size)
    if layer.letter == "M":
        return _mamba(model, size)
    if model.o_lora_rank is not None:
        return _compressed(model, layer, size)
    return _latent(model, layer, size) if model.kv_lora_rank is not None else _grouped_query(model, layer, size)


def _parts(matrices: Matrices, output: int) -> tuple[Part, ...]:
    """Of a mixer whose projections back to the residual stream are the last, or those from index `output` on."""
    first = len(matrices) + output
    return tuple("attention" if index < first else "attention_output" for index in range(len(matrices)))


def _grouped_query(model: ModelArchitecture, layer: _Layer, size: int) -> LayerGroup:
    """Multi-head, grouped-query and multi-query attention, over all tokens, a window, a chunk, or what an indexer picks.

    Heads that read their target's cache project queries alone.
    """
    heads, kv_heads, dim = _share(model.num_attention_heads, size), model.kv_heads_per_device(size), model.head_dim
    projections = 2
    if layer.letter == "F" and model.global_head_dim is not None:
        kv_heads, dim = _share(model.num_global_key_value_heads or model.num_key_value_heads, size), model.global_head_dim
        projections = 1 if model.attention_k_eq_v else 2
    if model.kv_source == "target":
        projections = 0
    query_heads = heads * (2 if model.attn_output_gate else 1)
    matrices = (((query_heads + projections * kv_heads) * dim, model.attention_input_size), (model.hidden_size, heads * dim))
    attention: Attention = "full"
    window = model.index_topk if layer.has_indexer else None
    if layer.letter == "S":
        attention = "chunked" if model.attention_chunk_size else "sliding"
        window = model.attention_chunk_size or model.sliding_window
    group = LayerGroup(
        1, attention, matrices, None, heads, kv_heads, 2 * kv_heads * dim, 4 * heads * dim, dim, window, 0.0, _parts(matrices, -1)
    )
    return _with_indexer(model, group, 1) if layer.has_indexer else group


def _latent(model: ModelArchitecture, layer: _Layer, size: int) -> LayerGroup:
    """Multi-head latent attention in absorbed form: queries meet the cached latent itself (DeepSeek-V2, 2024, section 2.1).

    The up-projections of keys and values move to the query and the output, one small matrix a head, so that the weights
    are the same and no key or value is ever expanded. The latent is cached whole on each device.
    """
    heads, hidden = _share(model.num_attention_heads, size), model.hidden_size
    latent, rope = model.kv_lora_rank or 0, model.qk_rope_head_dim or 0
    nope, value, rank = model.qk_nope_head_dim or 0, model.v_head_dim or 0, model.q_lora_rank
    queries = ((rank, hidden), (heads * (nope + rope), rank)) if rank else ((heads * (nope + rope), hidden),)
    gate: Matrices = ((heads * value, hidden),) if model.attn_output_gate else ()
    matrices: Matrices = (
        *queries, (latent + rope, hidden), (heads * latent, nope), (heads * value, latent), *gate, (hidden, heads * value),
    )  # fmt: skip
    group = LayerGroup(
        1, "mla", matrices, None, heads, 1.0, latent + rope, 2 * heads * (2 * latent + rope), latent + rope, model.index_topk,
        0.0, _parts(matrices, -1),
    )  # fmt: skip
    return _with_indexer(model, group, 1) if layer.has_indexer else group


def _compressed(model: ModelArchitecture, layer: _Layer, size: int) -> LayerGroup:
    """One cached entry for `compress_ratio` tokens, key and value in one, beside a sliding window of single tokens.

    Ratio 0: the window alone. With a ratio, the window is a fixed number of entries per sequence and so counted as its state.
    The output projection is of low rank, in groups of heads (DeepSeek-V4; sizes inferred from the names of its fields).
    """
    heads, dim, hidden, ratio = _share(model.num_attention_heads, size), model.head_dim, model.hidden_size, layer.compress_ratio
    rank, groups, out_rank = model.q_lora_rank or 0, _share(model.o_groups or 1, size), model.o_lora_rank or 0
    matrices: Matrices = (
        (rank, hidden), (heads * dim, rank), (dim, hidden),
        (groups * out_rank, heads * dim / groups), (hidden, groups * out_rank),
    )  # fmt: skip
    flops, parts = 4 * heads * dim, _parts(matrices, -2)
    if ratio == 0:
        return LayerGroup(1, "sliding", matrices, None, heads, 1.0, dim, flops, dim, model.sliding_window, 0.0, parts)
    state = dim * (model.sliding_window or 0)
    group = LayerGroup(1, "compressed", matrices, None, heads, 1.0, dim / ratio, flops / ratio, dim, None, state, parts)
    if not layer.has_indexer:
        return group
    return replace(_with_indexer(model, group, ratio), window=ratio * (model.index_topk or 0))


def _with_indexer(model: ModelArchitecture, group: LayerGroup, ratio: int) -> LayerGroup:
    """Indexer queries from the query latent, one key, one weight a head; whole on each device (DeepSeek-V3.2, 2025).

    Its key is cached once for `ratio` tokens and scored against every query row.
    """
    heads, dim, hidden = model.index_n_heads or 0, model.index_head_dim or 0, model.hidden_size
    return replace(
        group,
        matrices=(*group.matrices, (heads * dim, model.q_lora_rank or hidden), (dim, hidden), (heads, hidden)),
        parts=(*group.parts, "attention", "attention", "attention"),
        index_elements_per_token=dim / ratio,
        index_flops_per_row_and_token=2 * heads * dim / ratio,
    )


def _linear(model: ModelArchitecture, size: int) -> LayerGroup:
    """Gated delta rule: a state of key × value numbers per head, and the last inputs of a short convolution.

    Projections: queries, keys, values, output gate, update strength, and the decay, which is one number a head (Qwen3-Next) or,
    with `linear_gate_rank`, one a channel through two low-rank matrices (Kimi delta attention).
    """
    key_heads = _share(model.linear_num_key_heads or 0, size)
    value_heads = _share(model.linear_num_value_heads or 0, size)
    key_dim, value_dim = model.linear_key_head_dim or 0, model.linear_value_head_dim or 0
    keys, values, hidden, rank = key_heads * key_dim, value_heads * value_dim, model.hidden_size, model.linear_gate_rank
    decay: Matrices = ((value_heads, hidden),) if rank is None else ((rank, hidden), (keys, rank))
    state = value_heads * key_dim * value_dim + (2 * keys + values) * ((model.linear_conv_kernel_dim or 1) - 1)
    matrices = ((2 * keys + 2 * values, hidden), (value_heads, hidden), *decay, (hidden, values))
    parts = _parts(matrices, -1)
    return LayerGroup(1, "linear", matrices, None, value_heads, key_heads, 0.0, 0.0, key_dim, None, state, parts)


def _mamba(model: ModelArchitecture, size: int) -> LayerGroup:
    """Mamba-2: one input matrix for gate, x, B, C and step; a state of head_dim × ssm_state_size per head (Dao, Gu 2024)."""
    heads, groups = _share(model.mamba_num_heads or 0, size), _share(model.n_groups or 0, size)
    dim, states, hidden = model.mamba_head_dim or 0, model.ssm_state_size or 0, model.hidden_size
    inner, convolved = heads * dim, heads * dim + 2 * groups * states
    state = inner * states + convolved * ((model.conv_kernel or 1) - 1)
    matrices = ((inner + convolved + heads, hidden), (hidden, inner))
    return LayerGroup(1, "mamba", matrices, None, heads, groups, 0.0, 0.0, dim, None, state, _parts(matrices, -1))


def _share(count: int, size: int) -> float:
    """Heads on one device; at least one, replicated once devices outnumber them."""
    return max(count / size, 1.0)
