"""One forward pass: named parts that sum to the total, each with its bound.

A `ForwardCost` is built once per (model, device, engine, parallelism, types) and then prices many passes; what depends on
the number of rows alone is remembered, so that a simulated step costs microseconds.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from simulator.architecture import Experts, LayerGroup, ModelArchitecture
from simulator.cost.collectives import all_reduce, all_to_all_s, stage_transfer_s
from simulator.cost.parallelism import ONE_GROUP, Parallelism, busiest
from simulator.cost.roofline import (
    ATTENTION_TILE_ROWS,
    Bound,
    Operation,
    cache_copies_s,
    elementwise_s,
    experts_touched,
    gemm,
    gemms,
    grouped_gemm,
    serial_walk_attention,
    split_kv_attention,
    walk_s,
)
from simulator.cost.tape import added, known, larger, looked_up, smaller
from simulator.hardware import Hardware
from simulator.number_format import FORMATS
from simulator.serving_engine import ServingEngine, captured_rows

# Norm, rotary embedding and KV write around attention (or its state), norm and activation around an MLP: engines fuse the rest.
SMALL_KERNELS_PER_MIXER = 3
SMALL_KERNELS_PER_MLP = 2
# Kernels launched one by one in a pass without a graph, counted in layers' sources: attention with its projections, norms, rotary
# embedding and cache write; latent attention with twice the projections and norms, two products in the latent space, and copies
# that join latent and rotary parts; a linear-attention or state-space mixer with its convolution, gates and chunk kernels; a
# dense MLP; experts with router, sort, two grouped GEMMs, activation and sum. `launch_per_layer_s` is for a dense layer with
# attention on one device.
LAUNCHES = {"attention": 6, "latent": 18, "recurrent": 20, "mlp": 4, "experts": 12}
_MIXERS = {"linear": "recurrent", "mamba": "recurrent", "mla": "latent"}


class CostTerm(NamedTuple):
    """A named part of a cost, in seconds, and what bounds it."""

    name: str
    seconds: float
    bound: Bound


class PassCost(NamedTuple):
    """One forward pass: `terms` sum to `seconds`."""

    terms: tuple[CostTerm, ...]

    @property
    def seconds(self) -> float:
        return added([term.seconds for term in self.terms])

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


class ForwardPass(NamedTuple):
    """What one pass is asked to do.

    sequences decode with `rows` query rows together, over `context_tokens` cached tokens together (`windowed_tokens` for
    layers with a window); `longest_tokens` is the longest single context. prefill: (new tokens, tokens cached before) per
    prompt chunk. logit_rows: rows that the LM head computes. load: tokens of the mean data-parallel rank over those of this one.
    """

    sequences: int
    rows: int
    context_tokens: float
    windowed_tokens: float
    longest_tokens: float
    prefill: tuple[tuple[int, int], ...] = ()
    logit_rows: int = 0
    load: float = 1.0


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

    parallelism: pipeline stages, data-parallel ranks, experts, nodes. A pass is then that of one rank and one microbatch, through
    all stages, while the other ranks do as much.
    """

    architecture: ModelArchitecture
    hardware: Hardware
    engine: ServingEngine
    tensor_parallel_size: int
    weights: str
    kv_cache: str
    parallelism: Parallelism = ONE_GROUP
    _dense: dict[int, Operation] = field(default_factory=dict, init=False, repr=False)
    _heads: dict[int, Operation] = field(default_factory=dict, init=False, repr=False)
    _fusions: dict[int, float] = field(default_factory=dict, init=False, repr=False)
    _by_rows: dict[int, tuple[CostTerm, CostTerm]] = field(default_factory=dict, init=False, repr=False)
    _exchanges: dict[int, list[CostTerm]] = field(default_factory=dict, init=False, repr=False)
    _decoding: dict[tuple[int, int, int, float], _OtherTerms] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        model = self.architecture
        self.groups = model.layer_groups(self.tensor_parallel_size)
        windows = {group.window for group in self.groups if group.window is not None}
        self.window = min(windows) if windows else None
        self.regime = self.engine.attention_regime(self.hardware)
        self.format = FORMATS[self.weights]
        self.compute_dtype = self.hardware.compute_dtype(self.weights)
        self.row_law = self.engine.row_law(self.weights, self.hardware)
        self.expert_tile_rows = self.engine.expert_tile_rows(self.weights, self.hardware)
        self.kv_number_bytes = FORMATS[self.kv_cache].bytes
        self.moe_layers = sum(group.count for group in self.groups if group.experts is not None)
        self.has_experts = self.moe_layers > 0
        self.expert_parameters = self._expert_parameters()
        self.recurrent_layers = sum(group.count for group in self.groups if group.attention in ("linear", "mamba"))
        one_block = set(model.layer_pattern or "") & set("MED")
        self.mixers = sum(group.count for group in self.groups if group.attention != "none")
        self.mlps = sum(group.count for group in self.groups if not one_block or group.attention == "none")

    def with_engine(self, engine: ServingEngine) -> ForwardCost:
        """The same under other constants of the same engine: what is remembered of matrices holds for both."""
        changed = copy.copy(self)
        changed.engine = engine
        changed._exchanges, changed._decoding = {}, {}
        return changed

    @cached_property
    def launched_layers(self) -> float:
        """Layers that launch as many kernels as all of this model's, in dense layers with attention."""
        launches = sum(group.count * self._launches(group) for group in self.groups)
        launches += (self.mlps - self.moe_layers) * LAUNCHES["mlp"]
        if self.tensor_parallel_size > 1:
            launches += self.mixers + self.mlps  # an all-reduce after each
        return launches / (LAUNCHES["attention"] + LAUNCHES["mlp"])

    def _launches(self, group: LayerGroup) -> int:
        """Kernels of one layer, a dense MLP left out. In 8 or 4 bit the rows of every matrix but a router are scaled first."""
        count, scaled = 0, len(group.matrices)
        if group.attention != "none":
            count += LAUNCHES[_MIXERS.get(group.attention, "attention")]
        if group.experts is not None:
            count += LAUNCHES["experts"] + (LAUNCHES["mlp"] if self.architecture.shared_expert_width else 0)
            scaled += 1  # two grouped ones, no router
        quantized = self.format.quantized and self.compute_dtype != self.hardware.wide_dtype
        return count + (scaled if quantized else 0)

    def price(self, asked: ForwardPass) -> PassCost:
        """The pass, term by term: layers, experts, LM head, attention, states, small kernels, all-reduce, launches."""
        if asked.prefill:
            others = self._other_terms(asked)
        else:
            key = (asked.sequences, asked.rows, asked.logit_rows, asked.load)
            found = self._decoding.get(key)
            others = found if found is not None else self._decoding.setdefault(key, self._other_terms(asked))
        # What depends on contexts comes last, so that all else is one sum.
        terms = (*others.terms, self.attention_term(asked))
        if others.launch_s is not None:
            device_s = added([term.seconds for term in terms])
            terms = (*terms, CostTerm("launch_wait", larger(others.launch_s - device_s, 0.0), "host"))
        return PassCost(terms)

    def _other_terms(self, asked: ForwardPass) -> _OtherTerms:
        """What does not depend on the contexts of decoding sequences."""
        engine, prompts = self.engine, bool(asked.prefill)
        new_tokens = asked.rows + sum([tokens for tokens, _ in asked.prefill])

        def captured(tokens: int) -> int | None:
            return captured_rows(engine, tokens, asked.sequences, prompts)

        rows = looked_up(lambda tokens: captured(tokens) or tokens, new_tokens)
        layers, small_kernels = _terms_at(self._terms_by_rows, rows)
        terms = [layers, *_terms_at(self._head_term, asked.logit_rows), small_kernels]
        if self.has_experts:
            terms.append(self._expert_term(asked, new_tokens))
        if self.recurrent_layers:
            terms.append(self._state_term(asked))
        if self.engine.latent_layer_overhead_s is not None:
            latent = sum(group.count for group in self.groups if group.attention == "mla")
            terms.append(CostTerm("unfused_kernels", latent * self.engine.latent_layer_overhead_s.value, "latency"))
        terms += self._network_terms(rows, new_tokens - asked.rows, asked.load)
        launches_s, launch_s = self.launched_layers * engine.launch_per_layer_s.value, None
        # A number that is not known yet was large as the tape was recorded: what is captured then always is.
        if captured(int(known(new_tokens))) is None:
            launch_s = looked_up(lambda tokens: launches_s if captured(tokens) is None else 0.0, new_tokens)
        return _OtherTerms(tuple(terms), launch_s)

    def _head_term(self, rows: int) -> tuple[CostTerm]:
        head = self.lm_head(rows)
        return (CostTerm("lm_head", head.seconds, head.bound),)

    def _terms_by_rows(self, rows: int) -> tuple[CostTerm, CostTerm]:
        """Layers and small kernels, which depend on the number of rows alone."""
        found = self._by_rows.get(rows)
        if found is None:
            layers, (small_s, small_bound) = self.layer_gemms(rows), self._small_kernels(rows)
            layers_term = CostTerm("layers", layers.seconds, layers.bound)
            found = self._by_rows[rows] = layers_term, CostTerm("small_kernels", small_s, small_bound)
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
        return gemms(rows, shapes, self.format.bytes, self.hardware, self.compute_dtype, self.row_law)

    def _small_kernels(self, rows: int) -> tuple[float, Bound]:
        moved = 4.0 * rows * self.architecture.hidden_size
        each_s = elementwise_s(moved, self.hardware)
        launch = each_s <= self.hardware.coefficients.elementwise_overhead_s.value
        count = self.mixers * SMALL_KERNELS_PER_MIXER + self.mlps * SMALL_KERNELS_PER_MLP
        return count * each_s, "latency" if launch else "memory"

    def _network_terms(self, rows: float, prompt_rows: float, load: float) -> Sequence[CostTerm]:
        """What devices exchange. Unless ranks share experts it depends on the number of rows alone."""
        if self.has_experts and self.parallelism.data_parallel_size > 1:
            return self._exchanged(rows, prompt_rows, load)

        def by_rows(rows: int) -> list[CostTerm]:
            found = self._exchanges.get(rows)
            return found if found is not None else self._exchanges.setdefault(rows, self._exchanged(rows, 0, load))

        return _terms_at(by_rows, rows)

    def _exchanged(self, rows: float, prompt_rows: float, load: float) -> list[CostTerm]:
        """One all-reduce after each mixer and each MLP; exchanges around experts of all ranks; transfers between stages."""
        tensor, beyond = self.tensor_parallel_size, self.parallelism
        message = 2.0 * rows * self.architecture.hidden_size
        shared = self.has_experts and beyond.data_parallel_size > 1
        found = []
        if tensor > 1:
            sliced = self.moe_layers if shared and not beyond.expert_parallel else 0
            found += self._all_reduces(
                "all_reduce", self.mixers + self.mlps - sliced, message, tensor, beyond.tensor_nodes(tensor)
            )
        if shared:
            devices, nodes = beyond.expert_devices(tensor), beyond.expert_nodes(tensor)
            if beyond.expert_parallel:
                exchange_s = self._dispatch_and_combine_s(rows - prompt_rows, prompt_rows, devices, nodes)
                found.append(CostTerm("all_to_all", self.moe_layers * exchange_s, "network"))
            else:
                # All-gather before and reduce-scatter after: together the traffic of an all-reduce of every rank's rows.
                every_rank = message * beyond.data_parallel_size * load
                found += self._all_reduces("gather_scatter", self.moe_layers, every_rank, devices, nodes)
        if beyond.pipeline_parallel_size > 1:
            found.append(CostTerm("pipeline_transfer", self._transfers_s(rows), "network"))
        return found

    def _all_reduces(self, name: str, count: int, message: float, devices: int, nodes: int) -> list[CostTerm]:
        inside_s, between_s = all_reduce(message, devices, nodes, self.hardware, self.engine)
        found = [CostTerm(name, count * inside_s, "network")]
        return found + ([CostTerm(f"inter_node_{name}", count * between_s, "network")] if nodes > 1 else [])

    def _dispatch_and_combine_s(self, rows: float, prompt_rows: float, devices: int, nodes: int) -> float:
        """Rows go out in 8 bit where the weights are, with a scale for every 128 numbers, and come back in 16."""
        experts = next(group.experts for group in self.groups if group.experts is not None)
        width = (self.architecture.moe_latent_size or self.architecture.hidden_size) / self.tensor_parallel_size
        out = 1 + 4 / 128 if self.weights == "fp8" else 2.0
        return sum(
            all_to_all_s(count * width * size, experts.top_k, devices, nodes, self.hardware, once_a_node)
            for count, once_a_node in ((rows, False), (prompt_rows, True))
            for size in (out, 2.0)
            if count
        )

    def _transfers_s(self, rows: float) -> float:
        """Hidden state and residual of each row over every boundary, a slice per device; sampled tokens back to the first."""
        tensor, beyond = self.tensor_parallel_size, self.parallelism
        message = 2 * 2.0 * rows * self.architecture.hidden_size / tensor
        far = beyond.inter_node_boundaries(tensor)
        near = beyond.pipeline_parallel_size - 1 - far
        seconds = far * stage_transfer_s(message, True, self.hardware, self.engine) if far else 0.0
        seconds += near * stage_transfer_s(message, False, self.hardware, self.engine) if near else 0.0
        return seconds + stage_transfer_s(4.0 * rows, far > 0, self.hardware, self.engine)

    # ------------------------------------------------------------------------------------------- experts, recurrent states

    def _expert_term(self, asked: ForwardPass, new_tokens: int) -> CostTerm:
        """Routed experts: the union that all tokens touch is read, every token's own experts are computed."""
        routed = routed_tokens(asked, self.hardware.coefficients.expert_row_correlation.value)
        others = self.parallelism.data_parallel_size * asked.load
        seconds, by_bound = 0.0, {}  # type: float, dict[Bound, float]
        for group in self.groups:
            if group.experts is not None:
                operation = self._experts(group.experts, routed * others, new_tokens * others)
                seconds += group.count * operation.seconds
                by_bound[operation.bound] = by_bound.get(operation.bound, 0.0) + group.count * operation.seconds
        return CostTerm("experts", seconds, max(by_bound, key=lambda bound: by_bound[bound]))

    def _expert_parameters(self) -> float:
        """Weights of one expert on one device: a slice, over the devices of all ranks, or the whole of it."""
        tensor, beyond = self.tensor_parallel_size, self.parallelism
        if not self.has_experts:
            return 0.0
        slices = 1 if beyond.expert_parallel else beyond.expert_devices(tensor)
        groups = self.groups if slices == tensor else self.architecture.layer_groups(slices)
        return next(group.experts for group in groups if group.experts is not None).parameters_per_expert

    def _experts(self, experts: Experts, routed: float, tokens: float) -> Operation:
        """One layer and the rows of all ranks. Whole experts fall unevenly on devices, and the busiest is waited for."""
        beyond, coefficients = self.parallelism, self.hardware.coefficients
        correlation = coefficients.grouped_routing_correlation.value if experts.grouped else 1.0
        tokens_alike = max(routed * correlation, 1.0)
        touched = experts_touched(
            experts.num_experts, experts.top_k, tokens_alike, coefficients.expert_popularity_shape.value or math.inf
        )
        rows = tokens * experts.top_k
        if beyond.expert_parallel:
            devices = beyond.expert_devices(self.tensor_parallel_size)
            touched = busiest(touched, devices, experts.num_experts)
            rows = busiest(rows, devices)
        weight_bytes = self.format.bytes * (self.row_law.expert_reads(tokens) if self.row_law is not None else 1.0)
        return grouped_gemm(
            rows, touched, self.expert_parameters, weight_bytes, self.hardware, self.compute_dtype, self.expert_tile_rows
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

    def attention_term(self, asked: ForwardPass) -> CostTerm:
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
        stated = self.engine.latent_attention if group.attention == "mla" else None
        regime, walked = stated or self.regime, stated is not None or group.attention in ("full", "sliding", "chunked")
        if several_rows and regime == "serial_walk" and walked:
            return self._walk(group, asked, context, longest)
        reread = asked.rows / asked.sequences if several_rows and regime == "kv_reread" and asked.sequences else 1.0
        return self._split(group, asked, context, reread)

    def _split(self, group: LayerGroup, asked: ForwardPass, context: float, reread: float) -> Operation:
        share = group.heads / group.kv_heads
        bytes_per_token = group.kv_elements_per_token * self.kv_number_bytes
        # Factors are joined before they meet the context, which a span of rounds has many of.
        kv_bytes, blocks, flops = context * (reread * bytes_per_token), 0.0, 0.0
        if asked.sequences:
            rows = asked.rows / asked.sequences / reread
            # Rows × heads of one KV head fill tiles of the tensor units.
            tile = self.hardware.coefficients.attention_tile_rows.value
            tile_rows = math.ceil(rows * share / tile) * tile / share
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
            cached = smaller(before, group.window) if group.window else before
            kv_bytes += (cached + new) * bytes_per_token
            flops += new * (
                seen * group.attention_flops_per_row_and_token + (before + new / 2) * group.index_flops_per_row_and_token
            )
        # Prefill blocks are full waves of arithmetic, already in their FLOPs.
        return split_kv_attention(kv_bytes, blocks, flops, self.hardware)

    def _walk(self, group: LayerGroup, asked: ForwardPass, context: float, longest: float) -> Operation:
        dim, heads, device = group.head_dim, group.heads, self.hardware
        sequences = asked.sequences
        blocks_each = math.ceil(asked.rows / sequences / ATTENTION_TILE_ROWS) if sequences else 1
        rows = asked.rows / sequences / blocks_each if sequences else 0.0
        total_s = heads * blocks_each * (sequences * walk_s(context / sequences, rows, dim, device)) if sequences else 0.0
        longest_s = walk_s(longest, rows, dim, device) if sequences else 0.0
        blocks = heads * blocks_each * sequences
        for new, before in asked.prefill:
            tiles = math.ceil(new / ATTENTION_TILE_ROWS)
            total_s += heads * tiles * walk_s(_seen_tokens(new, before, group.window), new / tiles, dim, device)
            longest_s = max(longest_s, walk_s(min(before + new, group.window or before + new), new / tiles, dim, device))
            blocks += heads * tiles
        walked = serial_walk_attention(longest_s, total_s, math.ceil(blocks), device)
        # Where query heads share keys and values in place, nothing is copied; nor are prompts, whose mask the kernel builds.
        copied = context * (group.heads / group.kv_heads * group.kv_elements_per_token * self.kv_number_bytes)
        copies_s = cache_copies_s(copied, device) if heads > group.kv_heads else 0.0
        return Operation(walked.seconds + copies_s, walked.bound)


def routed_tokens(asked: ForwardPass, correlation: float) -> float:
    """Tokens that choose experts as if independently: each sequence's first row, and `correlation` of every further one.

    >>> routed_tokens(ForwardPass(4, 16, 0, 0, 0), 0.5)
    10.0
    """
    prompts = sum(1 + correlation * (tokens - 1) for tokens, _ in asked.prefill)
    return asked.sequences + correlation * (asked.rows - asked.sequences) + prompts


def _terms_at(terms: Callable[[Any], Sequence[CostTerm]], number: float) -> Sequence[CostTerm]:
    """terms(number); where the number is not known yet, their seconds are looked up as it is."""
    found = terms(known(number))
    if known(number) is number:
        return found

    def seconds(place: int) -> float:
        return looked_up(lambda number: terms(number)[place].seconds, number)

    return [term._replace(seconds=seconds(place)) for place, term in enumerate(found)]


def _seen_tokens(new: int, before: int, window: int | None) -> float:
    """Cached tokens that a prompt chunk's rows attend to on average, causal mask and window included."""
    seen = before + (new + 1) / 2
    return smaller(seen, float(window)) if window else seen
