"""One forward pass: named parts that sum to the total, each with its bound.

A `ForwardCost` is built once per (model, device, engine, parallelism, types) and then prices many passes; what depends on
the number of rows alone is remembered, so that a simulated step costs microseconds.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from simulator.architecture import ONE_BLOCK_LETTERS, RECURRENT, LayerGroup, ModelArchitecture, Part
from simulator.cost.attention import AttentionCost, attention_kernels
from simulator.cost.exchanges import ExchangeCost
from simulator.cost.experts import ExpertCost
from simulator.cost.forward_pass import ForwardPass
from simulator.cost.invariant import matrix_rates
from simulator.cost.parallelism import ONE_GROUP, Parallelism
from simulator.cost.roofline import (
    Operation,
    elementwise_s,
    gemm,
    gemms,
)
from simulator.cost.states import state_term
from simulator.cost.tape import added, all_looked_up, known, larger
from simulator.cost.terms import CostTerm, PassCost, terms_at
from simulator.hardware import Hardware
from simulator.number_format import FORMATS, NumberFormat
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


class _OtherTerms(NamedTuple):
    """The terms besides attention, and the host's launches where no captured graph hides them."""

    terms: tuple[CostTerm, ...]
    launch_s: float | None


@dataclass
class ForwardCost:
    """Prices passes of one model. `weights`, `kv_cache`: stored types (names of `number_format.FORMATS`).

    parallelism: pipeline stages, data-parallel ranks, experts, nodes. A pass is then that of one rank and one microbatch, through
    all stages, while the other ranks do as much. captured: whether the engine's graphs hold passes of this model.
    """

    architecture: ModelArchitecture
    hardware: Hardware
    engine: ServingEngine
    tensor_parallel_size: int
    weights: str
    kv_cache: str
    parallelism: Parallelism = ONE_GROUP
    captured: bool = True
    _heads: dict[int, Operation] = field(default_factory=dict, init=False, repr=False)
    _fusions: dict[int, float] = field(default_factory=dict, init=False, repr=False)
    _by_rows: dict[int, tuple[Operation, Operation]] = field(default_factory=dict, init=False, repr=False)
    _decoding: dict[tuple[int, int, int, float], _OtherTerms] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        model = self.architecture
        self.groups = model.layer_groups(self.tensor_parallel_size)
        self.format = FORMATS[self.weights]
        self.compute_dtype = self.hardware.compute_dtype(self.weights)
        self.row_law = self.engine.row_law(self.weights, self.hardware)
        self.moe_layers = sum(group.count for group in self.groups if group.experts is not None)
        self.recurrent_layers = sum(group.count for group in self.groups if group.attention in RECURRENT)
        one_block = ONE_BLOCK_LETTERS & set(model.layer_pattern or "")
        self.mixers = sum(group.count for group in self.groups if group.attention != "none")
        self.mlps = sum(group.count for group in self.groups if not one_block or group.attention == "none")
        self._set_kernels()
        self.experts = ExpertCost(
            model, self.hardware, self.tensor_parallel_size, self.parallelism, self.format.bytes, self.compute_dtype,
            self.engine.expert_tile_rows(self.weights, self.hardware), self.row_law,
        )  # fmt: skip
        self.exchanges = ExchangeCost(
            model, self.hardware, self.engine, self.tensor_parallel_size, self.parallelism, self.weights, self.mixers, self.mlps,
            self.moe_layers, next((group.experts.top_k for group in self.groups if group.experts is not None), 0),
        )  # fmt: skip

    def _set_kernels(self) -> None:
        """Which attention and matrix kernels run, as the server was started."""
        kernels = attention_kernels(self.engine, self.hardware)
        self.attention = AttentionCost(self.groups, self.hardware, kernels, FORMATS[self.kv_cache].bytes)
        self.rates = matrix_rates(self.engine, self.hardware, self.compute_dtype)

    @property
    def window(self) -> int | None:
        """The smallest attention window of a group of layers."""
        return self.attention.window

    def with_engine(self, engine: ServingEngine) -> ForwardCost:
        """The same under other constants of the same engine: what is remembered of matrices holds for both."""
        changed = copy.copy(self)
        changed.engine = engine
        changed.exchanges, changed._decoding = replace(self.exchanges, engine=engine), {}
        changed._set_kernels()
        if changed.rates != self.rates:
            changed._heads, changed._fusions, changed._by_rows = {}, {}, {}
        return changed

    @cached_property
    def launched_layers(self) -> float:
        """Layers that launch as many kernels as all of this model's, in dense layers with attention."""
        launches = sum(group.count * self._launches(group) for group in self.groups)
        launches += (self.mlps - self.moe_layers) * LAUNCHES["mlp"]
        if self.tensor_parallel_size > 1:
            launches += self.mixers + self.mlps  # an all-reduce after each
        return launches / (LAUNCHES["attention"] + LAUNCHES["mlp"])

    @property
    def launches_s(self) -> float:
        """Host time to launch the kernels of one pass that no graph holds."""
        return self.launched_layers * self.launch_per_layer_s

    @property
    def launch_per_layer_s(self) -> float:
        """Host time to launch a dense layer with attention, by the engine and this device's host."""
        return self.engine.launch_per_layer_s.value * self.host_time_factor

    @property
    def host_time_factor(self) -> float:
        """How long this device's host takes, over the hosts that engines' constants were measured on."""
        return self.hardware.coefficients.host_time_factor.value

    @property
    def launched_recurrent_layers(self) -> float:
        """The same of its recurrent mixers alone, the matrices around them left out."""
        return self.recurrent_layers * LAUNCHES["recurrent"] / (LAUNCHES["attention"] + LAUNCHES["mlp"])

    def _launches(self, group: LayerGroup) -> int:
        """Kernels of one layer, a dense MLP left out. Where a matrix computes in 8 or 4 bit its rows are scaled first."""
        count, scaled = 0, sum(self._scaled(self.stored(part)) for part in group.parts)
        if group.attention != "none":
            count += LAUNCHES[_MIXERS.get(group.attention, "attention")]
        if group.experts is not None:
            count += LAUNCHES["experts"] + (LAUNCHES["mlp"] if self.architecture.shared_expert_width else 0)
            scaled += 2 * self._scaled(self.format)  # two grouped ones
        return count + scaled

    def stored(self, part: Part) -> NumberFormat:
        """How this checkpoint stores a part of its layers."""
        return self.architecture.format_of(part, self.weights)

    def _scaled(self, stored: NumberFormat) -> bool:
        return stored.quantized and self.hardware.compute_dtype(stored.name) != self.hardware.wide_dtype

    def price(self, asked: ForwardPass) -> PassCost:
        """The pass, term by term: layers, experts, LM head, attention, states, small kernels, all-reduce, launches."""
        if asked.prefill:
            others = self._other_terms(asked)
        else:
            key = (asked.sequences, asked.rows, asked.logit_rows, asked.load)
            found = self._decoding.get(key)
            others = found if found is not None else self._decoding.setdefault(key, self._other_terms(asked))
        # What depends on contexts comes last, so that all else is one sum.
        terms = (*others.terms, self.attention.term(asked))
        if others.launch_s is not None:
            device_s = added([term.seconds for term in terms])
            terms = (*terms, CostTerm("launch_wait", larger(others.launch_s - device_s, 0.0), "host"))
        return PassCost(terms)

    def _other_terms(self, asked: ForwardPass) -> _OtherTerms:
        """What does not depend on the contexts of decoding sequences."""
        engine, prompts = self.engine, bool(asked.prefill)
        new_tokens = asked.rows + sum([tokens for tokens, _ in asked.prefill])

        sequences, launches_s = int(known(asked.sequences)), self.launches_s

        def captured(tokens: int) -> int | None:
            return captured_rows(engine, tokens, sequences, prompts) if self.captured else None

        def by_tokens(tokens: int) -> tuple[float, float, float, float]:
            """Rows of the graph that runs, or of the pass; seconds of layers, small kernels and launches that no graph holds."""
            graph_rows = captured(tokens)
            layers, small_kernels = self._dense_and_small(graph_rows or tokens)
            return graph_rows or tokens, layers.seconds, small_kernels.seconds, launches_s if graph_rows is None else 0.0

        rows, layers_s, small_s, launch_s = all_looked_up(by_tokens, new_tokens, 4)
        layers, small_kernels = self._dense_and_small(int(known(rows)))
        terms = [
            CostTerm("layers", layers_s, layers.bound),
            *terms_at(self._head_term, asked.logit_rows),
            CostTerm("small_kernels", small_s, small_kernels.bound),
        ]
        if self.moe_layers:
            terms.append(self.experts.term(asked, new_tokens))
        if self.recurrent_layers:
            terms.append(state_term(self.groups, self.hardware, asked))
        vendor, latent = self.hardware.profile.vendor, self.engine.latent_layer_overhead_s
        each, with_experts = engine.layer_overhead_s.get(vendor), engine.expert_layer_overhead_s.get(vendor)
        unfused_s = self.mixers * each.value if each is not None else 0.0
        if with_experts is not None:
            unfused_s += self.moe_layers * with_experts.value
        if latent is not None:
            unfused_s += sum(group.count for group in self.groups if group.attention == "mla") * latent.value
        if unfused_s > 0:
            terms.append(CostTerm("unfused_kernels", unfused_s, "latency"))
        terms += self.exchanges.terms(rows, new_tokens - asked.rows, asked.load)
        # A number that is not known yet was large as the tape was recorded: what is captured then always is.
        whole = captured(int(known(new_tokens))) is not None
        pieces = self._pieces(known(asked.rows) > known(asked.sequences))
        if pieces is None or prompts or not (whole or engine.graphs is None):
            return _OtherTerms(tuple(terms), None if whole else launch_s)
        # In pieces, or kernel by kernel, which nothing makes quicker.
        piece_launch_s, gap_s = pieces
        terms.append(CostTerm("graph_pieces", self.mixers * gap_s, "latency"))
        return _OtherTerms(tuple(terms), larger(launch_s, self.mixers * self.host_time_factor * piece_launch_s))

    def _pieces(self, several_rows: bool) -> tuple[float, float] | None:
        """(host's time to launch a layer's attention between two pieces, the device's pause), None where graphs are whole."""
        launch, gap = self.engine.piece_launch_s, self.engine.piece_gap_s
        if launch is None and several_rows and self.engine.rounds_in_pieces(self.hardware):
            launch, gap = self.engine.round_piece_launch_s, self.engine.round_piece_gap_s
        return None if launch is None or gap is None else (launch.value, gap.value)

    def _head_term(self, rows: int) -> tuple[CostTerm]:
        head = self.lm_head(rows)
        return (CostTerm("lm_head", head.seconds, head.bound),)

    def _dense_and_small(self, rows: int) -> tuple[Operation, Operation]:
        """Layers and small kernels, which depend on the number of rows alone."""
        found = self._by_rows.get(rows)
        if found is None:
            found = self._by_rows[rows] = self.layer_gemms(rows), self._small_kernels(rows)
        return found

    def layer_gemms(self, rows: int) -> Operation:
        """All dense matrices of all layers for `rows` rows."""
        each = [self.matrices_s(rows, shapes, stored) for stored, shapes in self._dense_shapes.items()]
        if len(each) == 1:
            return each[0]
        longest = max(each, key=lambda operation: operation.seconds, default=Operation(0.0, "memory"))
        return Operation(sum(operation.seconds for operation in each), longest.bound)

    @cached_property
    def _dense_shapes(self) -> dict[NumberFormat, list[tuple[float, float, int]]]:
        """(n, k, how many) of the dense matrices, by the type they are stored in."""
        found: dict[NumberFormat, list[tuple[float, float, int]]] = {}
        for group in self.groups:
            for (n, k), part in zip(group.matrices, group.parts, strict=True):
                found.setdefault(self.stored(part), []).append((n, k, group.count))
        return found

    def lm_head(self, rows: int) -> Operation:
        """LM head over `rows` rows, in 16 bit unless the checkpoint quantizes it too; its rows are never scaled."""
        if rows == 0:
            return Operation(0.0, "memory")
        found = self._heads.get(rows)
        if found is None:
            n, k = self.architecture.lm_head_shape(self.tensor_parallel_size)
            law = self.engine.row_law(self.architecture.head_stored(self.weights).name, self.hardware)
            dtype = (
                "fp32"
                if self.weights == "fp32" and "fp32" in self.hardware.profile.peak_flops_per_s
                else self.hardware.wide_dtype
            )
            rates = self.rates if dtype == self.compute_dtype else matrix_rates(self.engine, self.hardware, dtype)
            head_bytes = self.architecture.head_bytes(self.weights)
            found = self._heads[rows] = gemm(rows, n, k, head_bytes, self.hardware, dtype, law, rates)
        return found

    def fusion_s(self, rows: int) -> float:
        """A draft head's fusion of target states for `rows` rows; 0 for other models."""
        found = self._fusions.get(rows)
        if found is None:
            found = self._fusions[rows] = self.matrices_s(rows, self._fusion_shapes).seconds
        return found

    @cached_property
    def _fusion_shapes(self) -> list[tuple[float, float, int]]:
        return [(n, k, 1) for n, k in self.architecture.fusion_shapes(self.tensor_parallel_size)]

    def heads_s(self, rows: int) -> Operation:
        """All matrices of Medusa, Hydra or MLP-speculator heads, once."""
        return self.matrices_s(rows, [(n, k, 1) for n, k in self.architecture.head_shapes(self.tensor_parallel_size)])

    def matrices_s(self, rows: int, shapes: Sequence[tuple[float, float, int]], stored: NumberFormat | None = None) -> Operation:
        """(n, k, how many) GEMMs one after the other, of the model's own type of weights or another."""
        if stored is None or stored is self.format:
            return gemms(rows, shapes, self.format.bytes, self.hardware, self.compute_dtype, self.row_law, self.rates)
        dtype, law = self.hardware.compute_dtype(stored.name), self.engine.row_law(stored.name, self.hardware)
        return gemms(rows, shapes, stored.bytes, self.hardware, dtype, law, matrix_rates(self.engine, self.hardware, dtype))

    def _small_kernels(self, rows: int) -> Operation:
        moved = 4.0 * rows * self.architecture.hidden_size
        each_s = elementwise_s(moved, self.hardware)
        launch = each_s <= self.hardware.coefficients.elementwise_overhead_s.value
        count = self.mixers * SMALL_KERNELS_PER_MIXER + self.mlps * SMALL_KERNELS_PER_MLP
        return Operation(count * each_s, "latency" if launch else "memory")
