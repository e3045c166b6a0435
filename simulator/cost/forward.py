"""One forward pass: named parts that sum to the total, each with its bound.

A `ForwardCost` is built once per (model, device, engine, parallelism, types) and then prices many passes; what depends on
the number of rows alone is remembered, so that a simulated step costs microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from simulator.architecture import Experts, LayerGroup, ModelArchitecture
from simulator.cost.roofline import (
    ATTENTION_TILE_ROWS,
    Bound,
    Operation,
    all_reduce_s,
    elementwise_s,
    experts_touched,
    gemm,
    grouped_gemm,
    serial_walk_attention,
    split_kv_attention,
    walk_s,
)
from simulator.cost.tape import known, larger, smaller
from simulator.hardware import Hardware
from simulator.number_format import FORMATS
from simulator.serving_engine import ServingEngine, captured_rows

# Norm, rotary embedding and KV write around attention (or its state), norm and activation around an MLP: engines fuse the rest.
SMALL_KERNELS_PER_MIXER = 3
SMALL_KERNELS_PER_MLP = 2


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
        by_bound[term.bound] = by_bound.get(term.bound, 0.0) + known(term.seconds)
    return max(by_bound, key=lambda bound: by_bound[bound])


@dataclass(frozen=True, slots=True)
class ForwardPass:
    """What one pass is asked to do.

    sequences decode with `rows` query rows together, over `context_tokens` cached tokens together (`windowed_tokens` for
    layers with a window); `longest_tokens` is the longest single context. prefill: (new tokens, tokens cached before) per
    prompt chunk. logit_rows: rows that the LM head computes.
    """

    sequences: int
    rows: int
    context_tokens: float
    windowed_tokens: float
    longest_tokens: float
    prefill: tuple[tuple[int, int], ...] = ()
    logit_rows: int = 0


def uniform_pass(sequences: int, rows_per_sequence: float, context: float, window: int | None) -> ForwardPass:
    """`sequences` of equal context; `rows_per_sequence` may be an average."""
    rows = round(sequences * rows_per_sequence)
    total = sequences * context
    windowed = sequences * smaller(context, window) if window else total
    return ForwardPass(sequences, rows, total, windowed, context, (), rows)


class _OtherTerms(NamedTuple):
    """The terms besides attention, and the host's launches where no captured graph hides them."""

    terms: tuple[CostTerm, ...]
    launch_s: float | None


@dataclass
class ForwardCost:
    """Prices passes of one model. `weights`, `kv_cache`: stored types (names of `number_format.FORMATS`).

    layers: how many of the model's first layers run (layer-skip drafts), all where None.
    """

    architecture: ModelArchitecture
    hardware: Hardware
    engine: ServingEngine
    tensor_parallel_size: int
    weights: str
    kv_cache: str
    _dense: dict[int, Operation] = field(default_factory=dict, init=False, repr=False)
    _heads: dict[int, Operation] = field(default_factory=dict, init=False, repr=False)
    _by_rows: dict[int, tuple[CostTerm, CostTerm, tuple[CostTerm, ...]]] = field(default_factory=dict, init=False, repr=False)
    _fusions: dict[int, float] = field(default_factory=dict, init=False, repr=False)
    _decoding: dict[tuple[int, int, int], _OtherTerms] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        model = self.architecture
        self.groups = model.layer_groups(self.tensor_parallel_size)
        windows = {group.window for group in self.groups if group.window is not None}
        self.window = min(windows) if windows else None
        self.regime = self.engine.attention_regime(self.hardware)
        self.format = FORMATS[self.weights]
        self.compute_dtype = self.hardware.compute_dtype(self.weights)
        self.row_law = self.engine.row_law(self.weights, self.hardware)
        self.kv_number_bytes = FORMATS[self.kv_cache].bytes
        self.has_experts = any(group.experts is not None for group in self.groups)
        self.has_state = any(group.attention in ("linear", "mamba") for group in self.groups)
        one_block = set(model.layer_pattern or "") & set("MED")
        self.mixers = sum(group.count for group in self.groups if group.attention != "none")
        self.mlps = sum(group.count for group in self.groups if not one_block or group.attention == "none")

    def price(self, asked: ForwardPass) -> PassCost:
        """The pass, term by term: layers, experts, LM head, attention, states, small kernels, all-reduce, launches."""
        if asked.prefill:
            others = self._other_terms(asked)
        else:
            key = (asked.sequences, asked.rows, asked.logit_rows)
            found = self._decoding.get(key)
            others = found if found is not None else self._decoding.setdefault(key, self._other_terms(asked))
        # What depends on contexts comes last, so that all else is one sum.
        terms = (*others.terms, self._attention_term(asked))
        if others.launch_s is not None:
            device_s = sum(term.seconds for term in terms)
            terms = (*terms, CostTerm("launch_wait", larger(others.launch_s - device_s, 0.0), "host"))
        return PassCost(terms)

    def _other_terms(self, asked: ForwardPass) -> _OtherTerms:
        """What does not depend on the contexts of decoding sequences."""
        new_tokens = asked.rows + sum([tokens for tokens, _ in asked.prefill])
        captured = captured_rows(self.engine, new_tokens)
        rows = captured or new_tokens
        layers, small_kernels, all_reduce = self._terms_by_rows(rows)
        head = self.lm_head(asked.logit_rows)
        terms = [layers, CostTerm("lm_head", head.seconds, head.bound), small_kernels]
        if self.has_experts:
            terms.append(self._expert_term(asked, new_tokens))
        if self.has_state:
            terms.append(self._state_term(asked))
        terms += all_reduce
        launch_s = self.architecture.num_hidden_layers * self.engine.launch_per_layer_s.value if captured is None else None
        return _OtherTerms(tuple(terms), launch_s)

    def _terms_by_rows(self, rows: int) -> tuple[CostTerm, CostTerm, tuple[CostTerm, ...]]:
        """Layers, small kernels, and the all-reduce where there is one: what depends on the number of rows alone."""
        found = self._by_rows.get(rows)
        if found is None:
            layers, (small_s, small_bound) = self.layer_gemms(rows), self._small_kernels(rows)
            reduced = (CostTerm("all_reduce", self._all_reduce_s(rows), "network"),) if self.tensor_parallel_size > 1 else ()
            layers_term = CostTerm("layers", layers.seconds, layers.bound)
            found = self._by_rows[rows] = layers_term, CostTerm("small_kernels", small_s, small_bound), reduced
        return found

    def layer_gemms(self, rows: int) -> Operation:
        """All dense matrices of all layers for `rows` rows."""
        found = self._dense.get(rows)
        if found is None:
            found = self._dense[rows] = self.matrices_s(
                rows, [(n, k, group.count) for group in self.groups for n, k in group.matrices]
            )
        return found

    def lm_head(self, rows: int) -> Operation:
        """LM head over `rows` rows, in 16 bit unless the format quantizes it too."""
        if rows == 0:
            return Operation(0.0, "memory")
        found = self._heads.get(rows)
        if found is None:
            n, k = self.architecture.lm_head_shape(self.tensor_parallel_size)
            head_format = FORMATS["fp32"] if self.weights == "fp32" else self.format
            law = self.row_law if head_format.head_bits < 16 else None
            dtype = (
                "fp32"
                if self.weights == "fp32" and "fp32" in self.hardware.profile.peak_flops_per_s
                else self.hardware.wide_dtype
            )
            found = self._heads[rows] = gemm(rows, n, k, head_format.head_bytes, self.hardware, dtype, law)
        return found

    def fusion_s(self, rows: int) -> float:
        """A draft head's fusion of target states for `rows` rows; 0 for other models."""
        found = self._fusions.get(rows)
        if found is None:
            shapes = [(n, k, 1) for n, k in self.architecture.fusion_shapes(self.tensor_parallel_size)]
            found = self._fusions[rows] = self.matrices_s(rows, shapes).seconds
        return found

    def heads_s(self, rows: int) -> Operation:
        """All matrices of Medusa, Hydra or MLP-speculator heads, once."""
        return self.matrices_s(rows, [(n, k, 1) for n, k in self.architecture.head_shapes(self.tensor_parallel_size)])

    def matrices_s(self, rows: int, shapes: Sequence[tuple[float, float, int]]) -> Operation:
        """(n, k, how many) GEMMs one after the other."""
        total_s, by_bound = 0.0, {}  # type: float, dict[Bound, float]
        for n, k, count in shapes:
            operation = gemm(rows, n, k, self.format.bytes, self.hardware, self.compute_dtype, self.row_law)
            total_s += count * operation.seconds
            by_bound[operation.bound] = by_bound.get(operation.bound, 0.0) + count * operation.seconds
        return Operation(total_s, max(by_bound, key=lambda bound: by_bound[bound], default="memory"))

    def _small_kernels(self, rows: int) -> tuple[float, Bound]:
        moved = 4.0 * rows * self.architecture.hidden_size
        each_s = elementwise_s(moved, self.hardware)
        launch = each_s <= self.hardware.coefficients.elementwise_overhead_s.value
        count = self.mixers * SMALL_KERNELS_PER_MIXER + self.mlps * SMALL_KERNELS_PER_MLP
        return count * each_s, "latency" if launch else "memory"

    def _all_reduce_s(self, rows: int) -> float:
        """One after each mixer and each MLP."""
        kind = self.engine.all_reduce_kind(self.hardware)
        cost = self.hardware.all_reduce(kind, self.tensor_parallel_size)
        message = 2.0 * rows * self.architecture.hidden_size
        once = all_reduce_s(message, cost.alpha_s, cost.bandwidth_bytes_per_s, cost.large_message_bandwidth_bytes_per_s)
        return (self.mixers + self.mlps) * once

    # ------------------------------------------------------------------------------------------- experts, recurrent states

    def _expert_term(self, asked: ForwardPass, new_tokens: int) -> CostTerm:
        """Routed experts: the union that all tokens touch is read, every token's own experts are computed."""
        routed = routed_tokens(asked, self.hardware.coefficients.expert_row_correlation.value)
        seconds, by_bound = 0.0, {}  # type: float, dict[Bound, float]
        for group in self.groups:
            if group.experts is not None:
                operation = self._experts(group.experts, routed, new_tokens)
                seconds += group.count * operation.seconds
                by_bound[operation.bound] = by_bound.get(operation.bound, 0.0) + group.count * operation.seconds
        return CostTerm("experts", seconds, max(by_bound, key=lambda bound: by_bound[bound]))

    def _experts(self, experts: Experts, routed: float, tokens: int) -> Operation:
        correlation = self.hardware.coefficients.grouped_routing_correlation.value if experts.grouped else 1.0
        touched = experts_touched(experts.num_experts, experts.top_k, max(routed * correlation, 1.0))
        return grouped_gemm(
            tokens * experts.top_k, touched, experts.parameters_per_expert, self.format.bytes, self.hardware, self.compute_dtype
        )

    def _state_term(self, asked: ForwardPass) -> CostTerm:
        """Linear-attention and state-space layers: a floor, the states' traffic, and rows that follow one another.

        Verification keeps a state per drafted position to roll back to, and so moves the states once for every row.
        """
        coefficients = self.hardware.coefficients
        extra_rows = asked.rows / asked.sequences - 1 if asked.sequences else 0.0
        prompt_tokens = sum(tokens for tokens, _ in asked.prefill)
        seconds = 0.0
        for group in self.groups:
            if group.attention not in ("linear", "mamba"):
                continue
            moved = 2 * group.state_elements * 4.0 * (asked.rows + len(asked.prefill))
            compute_s = 4.0 * group.state_elements * prompt_tokens / self.hardware.attention_flops_per_s()
            floor_s = coefficients.state_overhead_s.value
            floor_s += coefficients.state_row_s.value * extra_rows * math.sqrt(max(asked.sequences, 1))
            seconds += group.count * max(floor_s, moved / self.hardware.bandwidth_bytes_per_s + compute_s)
        return CostTerm("states", seconds, "latency")

    # ------------------------------------------------------------------------------------------------------- attention

    def _attention_term(self, asked: ForwardPass) -> CostTerm:
        """Every group of layers over the tokens that it sees."""
        seconds, bounds = 0.0, {}  # type: float, dict[Bound, float]
        for group in self.groups:
            if group.attention in ("none", "linear", "mamba"):
                continue
            context, longest = self._seen(asked, group.window)
            operation = self._attention(group, asked, context, longest)
            seconds += group.count * operation.seconds
            bounds[operation.bound] = bounds.get(operation.bound, 0.0) + group.count * known(operation.seconds)
        return CostTerm("attention", seconds, max(bounds, key=lambda bound: bounds[bound], default="memory"))

    def _seen(self, asked: ForwardPass, window: int | None) -> tuple[float, float]:
        """(cached tokens of all decoding sequences together, of the longest) under a window."""
        if window is None:
            return asked.context_tokens, asked.longest_tokens
        if window == self.window or not asked.sequences:
            return asked.windowed_tokens, smaller(asked.longest_tokens, window)
        mean = asked.context_tokens / asked.sequences
        return asked.sequences * smaller(mean, window), smaller(asked.longest_tokens, window)

    def _attention(self, group: LayerGroup, asked: ForwardPass, context: float, longest: float) -> Operation:
        """One layer. Which kernel runs depends on whether any sequence brings more than one query row."""
        several_rows = asked.rows > asked.sequences or bool(asked.prefill)
        if several_rows and self.regime == "serial_walk" and group.attention in ("full", "sliding", "chunked"):
            return self._walk(group, asked, context, longest)
        reread = asked.rows / asked.sequences if several_rows and self.regime == "kv_reread" and asked.sequences else 1.0
        return self._split(group, asked, context, reread)

    def _split(self, group: LayerGroup, asked: ForwardPass, context: float, reread: float) -> Operation:
        share = group.heads / group.kv_heads
        bytes_per_token = group.kv_elements_per_token * self.kv_number_bytes
        # Factors are joined before they meet the context, which a span of rounds has many of.
        kv_bytes, blocks, flops = context * (reread * bytes_per_token), 0.0, 0.0
        if asked.sequences:
            rows = asked.rows / asked.sequences / reread
            # Rows × heads of one KV head fill tiles of the tensor units.
            tile_rows = math.ceil(rows * share / ATTENTION_TILE_ROWS) * ATTENTION_TILE_ROWS / share
            flops_per_token = tile_rows * reread * group.attention_flops_per_row_and_token
            hidden = flops_per_token / self.hardware.attention_flops_per_s() <= (
                reread * bytes_per_token / self.hardware.attention_bandwidth_bytes_per_s
            )
            # Alone, arithmetic that takes less than the stream at one context does so at any.
            if asked.prefill or group.index_flops_per_row_and_token or not hidden:
                flops = context * flops_per_token
            flops += asked.context_tokens * (rows * group.index_flops_per_row_and_token)
            kv_bytes += asked.context_tokens * (group.index_elements_per_token * self.kv_number_bytes)
            blocks = asked.sequences * reread * group.kv_heads
        for new, before in asked.prefill:
            seen = _seen_tokens(new, before, group.window)
            kv_bytes += (min(before, group.window or before) + new) * bytes_per_token
            flops += new * (
                seen * group.attention_flops_per_row_and_token + (before + new / 2) * group.index_flops_per_row_and_token
            )
        # Prefill blocks are full waves of arithmetic, already in their FLOPs.
        return split_kv_attention(kv_bytes, blocks, flops, self.hardware)

    def _walk(self, group: LayerGroup, asked: ForwardPass, context: float, longest: float) -> Operation:
        dim, heads = group.head_dim, group.heads
        sequences = asked.sequences
        blocks_each = math.ceil(asked.rows / sequences / ATTENTION_TILE_ROWS) if sequences else 1
        total_s = heads * blocks_each * (sequences * walk_s(context / sequences, dim, self.hardware)) if sequences else 0.0
        longest_s = walk_s(longest, dim, self.hardware) if sequences else 0.0
        blocks = heads * blocks_each * sequences
        for new, before in asked.prefill:
            tiles = math.ceil(new / ATTENTION_TILE_ROWS)
            total_s += heads * tiles * walk_s(_seen_tokens(new, before, group.window), dim, self.hardware)
            longest_s = max(longest_s, walk_s(min(before + new, group.window or before + new), dim, self.hardware))
            blocks += heads * tiles
        # To within rounding, as a mean context times its sequences is.
        equal = not asked.prefill and (abs(context - sequences * longest) <= 1e-9 * sequences * longest)
        return serial_walk_attention(longest_s, total_s, math.ceil(blocks), equal, self.hardware)


def routed_tokens(asked: ForwardPass, correlation: float) -> float:
    """Tokens that choose experts as if independently: each sequence's first row, and `correlation` of every further one.

    >>> routed_tokens(ForwardPass(4, 16, 0, 0, 0), 0.5)
    10.0
    """
    prompts = sum(1 + correlation * (tokens - 1) for tokens, _ in asked.prefill)
    return asked.sequences + correlation * (asked.rows - asked.sequences) + prompts


def _seen_tokens(new: int, before: int, window: int | None) -> float:
    """Cached tokens that a prompt chunk's rows attend to on average, causal mask and window included."""
    seen = before + (new + 1) / 2
    return min(seen, float(window)) if window else seen
