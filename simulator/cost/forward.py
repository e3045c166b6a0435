"""One forward pass: named parts that sum to the total, each with its bound.

A `ForwardCost` is built once per (model, device, engine, parallelism, types) and then prices many passes; what depends on
the number of rows alone is remembered, so that a simulated step costs microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from simulator.architecture import DTYPE_BYTES, ModelArchitecture
from simulator.cost.roofline import (
    ATTENTION_TILE_ROWS,
    Bound,
    Operation,
    all_reduce_s,
    elementwise_s,
    gemm,
    serial_walk_attention,
    split_kv_attention,
    walk_s,
)
from simulator.hardware import Hardware
from simulator.serving_engine import ServingEngine, captured_rows

# Norm before attention, norm before the MLP, rotary embedding, KV write, activation: engines fuse the rest.
SMALL_KERNELS_PER_LAYER = 5


@dataclass(frozen=True, slots=True)
class CostTerm:
    """A named part of a cost, in seconds, and what bounds it."""

    name: str
    seconds: float
    bound: Bound


@dataclass(frozen=True, slots=True)
class PassCost:
    """One forward pass: `terms` sum to `seconds`."""

    terms: tuple[CostTerm, ...]

    @property
    def seconds(self) -> float:
        return sum(term.seconds for term in self.terms)

    @property
    def bound(self) -> Bound:
        """The bound that holds most of the time."""
        return dominant_bound(self.terms)


def dominant_bound(terms: Iterable[CostTerm]) -> Bound:
    """The bound under which most seconds are spent."""
    by_bound: dict[Bound, float] = {}
    for term in terms:
        by_bound[term.bound] = by_bound.get(term.bound, 0.0) + term.seconds
    return max(by_bound, key=lambda bound: by_bound[bound])


@dataclass(frozen=True, slots=True)
class ForwardPass:
    """What one pass is asked to do.

    sequences decode with `rows` query rows together, over `context_tokens` cached tokens together (`windowed_tokens` for
    layers with a sliding window); `longest_tokens` is the longest single context. prefill: (new tokens, tokens cached
    before) per prompt chunk. logit_rows: rows that the LM head computes.
    """

    sequences: int
    rows: int
    context_tokens: float
    windowed_tokens: float
    longest_tokens: float
    prefill: tuple[tuple[int, int], ...] = ()
    logit_rows: int = 0


def decode_pass(
    contexts: Sequence[float], rows_per_sequence: int, window: int | None, prefill: tuple[tuple[int, int], ...] = ()
) -> ForwardPass:
    """Every sequence decodes with `rows_per_sequence` rows, all of which get logits.

    >>> decode_pass([100, 300], 4, None).rows
    8
    """
    rows = len(contexts) * rows_per_sequence
    windowed = sum(min(context, window) for context in contexts) if window else sum(contexts)
    return ForwardPass(len(contexts), rows, sum(contexts), windowed, max(contexts, default=0), prefill, rows)


def uniform_pass(sequences: int, rows_per_sequence: float, context: float, window: int | None) -> ForwardPass:
    """`sequences` of equal context; `rows_per_sequence` may be an average."""
    rows = round(sequences * rows_per_sequence)
    return ForwardPass(sequences, rows, sequences * context, sequences * min(context, window or context), context, (), rows)


@dataclass
class ForwardCost:
    """Prices passes of one model. `weights`, `kv_cache`: stored types (keys of `architecture.DTYPE_BYTES`)."""

    architecture: ModelArchitecture
    hardware: Hardware
    engine: ServingEngine
    tensor_parallel_size: int
    weights: str
    kv_cache: str
    _layer_gemms: dict[int, Operation] = field(default_factory=dict, init=False, repr=False)
    _heads: dict[int, Operation] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        model, size = self.architecture, self.tensor_parallel_size
        self.window = model.sliding_window if model.sliding_layers else None
        self.regime = self.engine.attention_regime(self.hardware)
        self.heads = max(model.num_attention_heads / size, 1.0)
        self.kv_heads = model.kv_heads_per_device(size)
        self.kv_bytes = model.kv_bytes_per_token_and_layer(self.kv_cache, size)
        self.full_layers = model.num_hidden_layers - model.sliding_layers
        self.compute_dtype = self.hardware.compute_dtype(self.weights)

    def price(self, asked: ForwardPass) -> PassCost:
        """The pass, term by term: layers, LM head, attention, small kernels, all-reduce, waiting for launches."""
        new_tokens = asked.rows + sum(tokens for tokens, _ in asked.prefill)
        captured = captured_rows(self.engine, new_tokens)
        rows = captured or new_tokens
        layers, head = self.layer_gemms(rows), self.lm_head(asked.logit_rows)
        small_s = self._small_kernels_s(rows)
        terms = [
            CostTerm("layers", layers.seconds, layers.bound),
            CostTerm("lm_head", head.seconds, head.bound),
            *self._attention_terms(asked),
            CostTerm("small_kernels", small_s, "latency" if self._small_kernel_is_launch(rows) else "memory"),
        ]
        if self.tensor_parallel_size > 1:
            terms.append(CostTerm("all_reduce", self._all_reduce_s(rows), "network"))
        if captured is None:
            device_s = sum(term.seconds for term in terms)
            launch_s = self.architecture.num_hidden_layers * self.engine.launch_per_layer_s.value
            terms.append(CostTerm("launch_wait", max(launch_s - device_s, 0.0), "host"))
        return PassCost(tuple(terms))

    def layer_gemms(self, rows: int) -> Operation:
        """All matrices of all layers for `rows` rows, and the fusion matrix of a draft head."""
        found = self._layer_gemms.get(rows)
        if found is None:
            found = self._layer_gemms[rows] = self._sum_gemms(rows)
        return found

    def lm_head(self, rows: int) -> Operation:
        """LM head over `rows` rows; 16-bit weights unless the model is in 32 bit."""
        if rows == 0:
            return Operation(0.0, "memory")
        found = self._heads.get(rows)
        if found is None:
            n = self.architecture.output_vocab_size / self.tensor_parallel_size
            wide = self.hardware.wide_dtype
            head_bytes = max(2.0, DTYPE_BYTES[self.weights])
            found = self._heads[rows] = gemm(rows, n, self.architecture.hidden_size, head_bytes, self.hardware, wide)
        return found

    def layer_shapes(self) -> tuple[tuple[float, float, int], ...]:
        """(n, k, how many) of every GEMM on one device: q/k/v, output, MLP in, MLP out."""
        model, size = self.architecture, self.tensor_parallel_size
        layers = model.num_hidden_layers
        return (
            ((self.heads + 2 * self.kv_heads) * model.head_dim, model.attention_input_size, layers),
            (model.hidden_size, self.heads * model.head_dim, layers),
            ((model.mlp_matrices - 1) * model.intermediate_size / size, model.hidden_size, layers),
            (model.hidden_size, model.intermediate_size / size, layers),
        )

    def fusion_s(self, rows: int) -> float:
        """A draft head's fusion of target states for `rows` rows; 0 for other models."""
        width = self.architecture.fc_input_size
        if not width:
            return 0.0
        return gemm(
            rows, self.architecture.hidden_size, width, DTYPE_BYTES[self.weights], self.hardware, self.compute_dtype
        ).seconds

    def _sum_gemms(self, rows: int) -> Operation:
        total_s, by_bound = 0.0, {}  # type: float, dict[Bound, float]
        for n, k, count in self.layer_shapes():
            operation = gemm(rows, n, k, DTYPE_BYTES[self.weights], self.hardware, self.compute_dtype)
            total_s += count * operation.seconds
            by_bound[operation.bound] = by_bound.get(operation.bound, 0.0) + count * operation.seconds
        return Operation(total_s, max(by_bound, key=lambda bound: by_bound[bound]))

    def _small_kernels_s(self, rows: int) -> float:
        moved = 4.0 * rows * self.architecture.hidden_size
        return self.architecture.num_hidden_layers * SMALL_KERNELS_PER_LAYER * elementwise_s(moved, self.hardware)

    def _small_kernel_is_launch(self, rows: int) -> bool:
        moved = 4.0 * rows * self.architecture.hidden_size
        return elementwise_s(moved, self.hardware) <= self.hardware.coefficients.elementwise_overhead_s.value

    def _all_reduce_s(self, rows: int) -> float:
        kind = self.engine.all_reduce_kind(self.hardware)
        cost = self.hardware.all_reduce(kind, self.tensor_parallel_size)
        message = 2.0 * rows * self.architecture.hidden_size
        once = all_reduce_s(message, cost.alpha_s, cost.bandwidth_bytes_per_s, cost.large_message_bandwidth_bytes_per_s)
        return 2 * self.architecture.num_hidden_layers * once

    # ------------------------------------------------------------------------------------------------------- attention

    def _attention_terms(self, asked: ForwardPass) -> list[CostTerm]:
        """Full layers and sliding layers, each read its own number of cached tokens."""
        parts: list[tuple[int, float, float, int | None]] = [(self.full_layers, asked.context_tokens, asked.longest_tokens, None)]
        if self.window:
            parts.append(
                (self.architecture.sliding_layers, asked.windowed_tokens, min(asked.longest_tokens, self.window), self.window)
            )
        seconds, bounds = 0.0, {}  # type: float, dict[Bound, float]
        for layers, context, longest, window in parts:
            operation = self._attention(asked, context, longest, window) if layers else Operation(0.0, "memory")
            seconds += layers * operation.seconds
            bounds[operation.bound] = bounds.get(operation.bound, 0.0) + layers * operation.seconds
        return [CostTerm("attention", seconds, max(bounds, key=lambda bound: bounds[bound]))]

    def _attention(self, asked: ForwardPass, context: float, longest: float, window: int | None) -> Operation:
        """One layer. Which kernel runs depends on whether any sequence brings more than one query row."""
        several_rows = asked.rows > asked.sequences or bool(asked.prefill)
        if several_rows and self.regime == "serial_walk":
            return self._walk(asked, context, longest, window)
        reread = asked.rows / asked.sequences if several_rows and self.regime == "kv_reread" and asked.sequences else 1.0
        return self._split(asked, context, reread, window)

    def _split(self, asked: ForwardPass, context: float, reread: float, window: int | None) -> Operation:
        model, group = self.architecture, self.heads / self.kv_heads
        blocks, tokens, flops = 0.0, context * reread, 0.0
        if asked.sequences:
            rows = asked.rows / asked.sequences / reread
            tile_rows = math.ceil(rows * group / ATTENTION_TILE_ROWS) * ATTENTION_TILE_ROWS
            flops = 4.0 * tile_rows * context * reread * self.kv_heads * model.head_dim
            blocks = asked.sequences * reread * self.kv_heads
        for new, before in asked.prefill:
            seen = _seen_tokens(new, before, window)
            tokens += min(before, window or before) + new
            flops += 4.0 * new * seen * self.heads * model.head_dim
            blocks += self.kv_heads * math.ceil(new * group / ATTENTION_TILE_ROWS)
        # Prefill blocks are full waves of arithmetic, already in their FLOPs.
        waves = blocks if not asked.prefill else asked.sequences * reread * self.kv_heads
        return split_kv_attention(tokens * self.kv_bytes, waves, flops, self.hardware)

    def _walk(self, asked: ForwardPass, context: float, longest: float, window: int | None) -> Operation:
        dim, heads = self.architecture.head_dim, self.heads
        sequences = asked.sequences
        blocks_each = math.ceil(asked.rows / sequences / ATTENTION_TILE_ROWS) if sequences else 1
        total_s = heads * blocks_each * (sequences * walk_s(context / sequences, dim, self.hardware)) if sequences else 0.0
        longest_s = walk_s(longest, dim, self.hardware) if sequences else 0.0
        blocks = heads * blocks_each * sequences
        for new, before in asked.prefill:
            tiles = math.ceil(new / ATTENTION_TILE_ROWS)
            total_s += heads * tiles * walk_s(_seen_tokens(new, before, window), dim, self.hardware)
            longest_s = max(longest_s, walk_s(min(before + new, window or before + new), dim, self.hardware))
            blocks += heads * tiles
        equal = not asked.prefill and math.isclose(context, sequences * longest)
        return serial_walk_attention(longest_s, total_s, math.ceil(blocks), equal, self.hardware)


def _seen_tokens(new: int, before: int, window: int | None) -> float:
    """Cached tokens that a prompt chunk's rows attend to on average, causal mask and window included."""
    seen = before + (new + 1) / 2
    return min(seen, float(window)) if window else seen
