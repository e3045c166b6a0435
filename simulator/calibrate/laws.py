"""The laws of `simulator.cost`, joined to measured cells: each is called with trial coefficients, and none is written again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from calibration.choice import Candidate
from calibration.fit import Law, Parameter
from simulator.architecture import ModelArchitecture
from simulator.cost.forward import ForwardCost
from simulator.cost.forward_pass import ForwardPass, uniform_pass
from simulator.cost.roofline import gemm
from simulator.hardware import BY_TYPE, Hardware, Quantity, RowFactors
from simulator.kernel_switches import AttentionRegime, AttentionRule
from simulator.number_format import FORMATS
from simulator.serving_engine import ServingEngine, find_engine

# Factor on one row's busy time, a matrix-vector product; becomes {1: factor, 2: 1} among the row factors.
ONE_ROW = "one_row_factor"
TILES = (16, 32, 64, 128, 256)
SMALLER_TILE = 64


class Gemm(NamedTuple):
    """y[m, n] = x[m, k] · W."""

    m: int
    n: int
    k: int


class Attention(NamedTuple):
    """One layer: `batch` sequences of `rows` query rows, each over `tokens` of KV, those of the rows among them; beside them
    a prompt's `chunk` of rows over `before` cached tokens."""

    batch: int
    rows: int
    tokens: int
    heads: int
    kv_heads: int
    head_dim: int
    chunk: int = 0
    before: int = 0

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.heads, self.kv_heads, self.head_dim

    @property
    def forward_pass(self) -> ForwardPass:
        """What the cost model is asked."""
        alone = uniform_pass(self.batch, self.rows, self.tokens, None)
        return alone._replace(prefill=((self.chunk, self.before),) if self.chunk else ())


class Forward(NamedTuple):
    """A whole pass of a model: `rows` new tokens for each of `batch` sequences behind `context` cached ones."""

    model: str
    batch: int
    rows: int
    context: int


def with_coefficients(
    hardware: Hardware, values: Mapping[str, float], dtype: str | None = None, quantity: Quantity | None = None
) -> Hardware:
    """`hardware` with coefficients replaced; those that a type may have of its own for `dtype` only, where one is given.

    quantity: gives source, note and doubt.
    """
    origin = quantity or Quantity(value=0.0, source="fitted", note="trial")
    update: dict[str, object] = {}
    for name, value in values.items():
        if name == ONE_ROW:
            continue
        own = name if name in BY_TYPE else f"{name}_by_type"
        given = origin.model_copy(update={"value": value})
        if dtype is not None and own in BY_TYPE:
            update[own] = {**getattr(hardware.coefficients, own), dtype: given}
        else:
            update[name] = given
    changed = replace(hardware, coefficients=hardware.coefficients.model_copy(update=update))
    if dtype is not None and ONE_ROW in values:
        return with_row_factors(changed, dtype, {1: values[ONE_ROW], 2: 1.0})
    return changed


def with_row_factors(
    hardware: Hardware, dtype: str, by_rows: Mapping[int, float], note: str = "trial", doubt: float | None = None
) -> Hardware:
    """`hardware` with the row factors of one type replaced; without them where `by_rows` is empty."""
    tables = {name: table for name, table in hardware.profile.gemm_row_factors.items() if name != dtype}
    if by_rows:
        tables[dtype] = RowFactors.model_construct(source="fitted", note=note, relative_std=doubt, by_rows=dict(by_rows))
    return replace(hardware, profile=hardware.profile.model_copy(update={"gemm_row_factors": tables}))


# ----------------------------------------------------------------------------------------------------------------- GEMM

# Bounds keep overhead and bandwidth from trading places.
OVERHEAD = Parameter("gemm_overhead_s", 4e-6, 0.0, 4e-5)
BANDWIDTH = Parameter("memory_bandwidth_fraction", 0.75, 0.2, 0.99)
FLOPS = Parameter("flops_fraction", 0.6, 0.02, 1.0)
SMOOTHNESS = Parameter("gemm_smoothness", 2.5, 1.0, 8.0)
WAVE_POWER = Parameter("gemm_wave_power", 0.3, 0.0, 1.0)
WALK_ALONG_K = (Parameter("gemm_walk_s_per_k", 1e-9, 0.0, 1e-7), Parameter("gemm_walk_longest_s", 5e-6, 0.0, 1e-4))
FILL = Parameter("gemm_fill_k", 150.0, 0.0, 2000.0)
ONE_ROW_LEVEL = Parameter(ONE_ROW, 0.9, 0.2, 2.0)
NO_WAVES = {WAVE_POWER.name: 0.0}
NO_WALK = {WALK_ALONG_K[0].name: 0.0}
# Values of k from which on a walk along it can be told from what starting takes.
_DEPTHS_OF_A_WALK = 3


@dataclass(frozen=True)
class GemmForm:
    """A form of the GEMM law: what is fixed, what is fitted."""

    name: str
    fixed: Mapping[str, float]
    free: tuple[Parameter, ...]

    def richer(self, depths: int) -> tuple[GemmForm, ...]:
        """With waves and walk, and with smaller tiles beside them where tiles are large: each may show only beside the others."""
        if depths < _DEPTHS_OF_A_WALK or FILL not in self.free:
            return ()
        both = self if WAVE_POWER in self.free else self.with_waves()
        both = both if WALK_ALONG_K[0] in both.free else both.with_walk()
        return (both, both.with_smaller_tiles()) if self.fixed["gemm_tile_rows"] > SMALLER_TILE else (both,)

    def with_tile(self, rows: int) -> GemmForm:
        return GemmForm(f"{self.name}, tiles of {rows} rows", {**self.fixed, "gemm_tile_rows": float(rows)}, self.free)

    def with_smaller_tiles(self) -> GemmForm:
        """Halved, down to `SMALLER_TILE`, where blocks are few."""
        name = f"{self.name}, of {SMALLER_TILE} where blocks are few"
        return GemmForm(name, {**self.fixed, "gemm_least_tile_rows": float(SMALLER_TILE)}, self.free)

    def with_waves(self) -> GemmForm:
        return self._freed("waves", WAVE_POWER)

    def with_walk(self) -> GemmForm:
        return self._freed("walk along k", *WALK_ALONG_K)

    def _freed(self, what: str, *parameters: Parameter) -> GemmForm:
        names = {each.name for each in parameters}
        fixed = {name: value for name, value in self.fixed.items() if name not in names}
        return GemmForm(f"{self.name}, {what}", fixed, (*self.free, *parameters))

    def with_one_row_apart(self) -> GemmForm:
        return GemmForm(f"{self.name}, one row apart", self.fixed, (*self.free, ONE_ROW_LEVEL))

    def candidate(self, hardware: Hardware, dtype: str) -> Candidate[Gemm]:
        return Candidate(self.name, gemm_law(hardware, dtype, self.fixed), self.free)


def gemm_forms(compute_units: int, depths: int) -> tuple[GemmForm, ...]:
    """From simple to rich. On one unit bytes and arithmetic may add up, and no wave of blocks is partly empty; on many, some
    blocks load while others compute, so that the longer hides the other (smooth maximum).

    depths: how many values of k there are; with too few to tell a walk along k the device's own stays.
    """
    smooth = GemmForm("smooth maximum", NO_WAVES, (OVERHEAD, BANDWIDTH, FLOPS, SMOOTHNESS))
    if compute_units > 1 and depths >= _DEPTHS_OF_A_WALK:
        still = GemmForm(smooth.name, {**NO_WAVES, **NO_WALK, "gemm_least_tile_rows": 0.0}, (*smooth.free, FILL))
        return still, still.with_waves(), still.with_walk()
    if compute_units > 1:
        return smooth, smooth.with_waves()
    return GemmForm("sum", {**NO_WAVES, "gemm_smoothness": 1.0}, (OVERHEAD, BANDWIDTH, FLOPS)), smooth


def poorer_forms(launch_s: float) -> tuple[GemmForm, ...]:
    """For data that cannot tell what a kernel takes to start: `launch_s` is given, and p = 3 where it is not 1."""
    start, usual = {**NO_WAVES, "gemm_overhead_s": launch_s}, {"gemm_smoothness": 3.0}
    return (
        GemmForm("bandwidth alone", {**start, **usual, "flops_fraction": 1.0}, (BANDWIDTH,)),
        GemmForm("sum from a given start", {**start, "gemm_smoothness": 1.0}, (BANDWIDTH, FLOPS)),
        GemmForm("smooth maximum from a given start", {**start, **usual}, (BANDWIDTH, FLOPS)),
    )


def gemm_law(hardware: Hardware, dtype: str, fixed: Mapping[str, float]) -> Law[Gemm]:
    """Seconds of GEMMs in `dtype` with trial coefficients on top of `fixed` ones, and no other row factors."""
    size, bare = FORMATS[dtype].bytes, with_row_factors(hardware, dtype, {})

    def law(values: Mapping[str, float], cells: Sequence[Gemm]) -> list[float]:
        device = with_coefficients(bare, {**fixed, **values}, dtype)
        return [gemm(cell.m, cell.n, cell.k, size, device, dtype).seconds for cell in cells]

    return law


# ------------------------------------------------------------------------------------------------------------ attention

DECODE_PARAMETERS = (
    Parameter("attention_overhead_s", 1e-5, 0.0, 2e-3),
    Parameter("attention_bandwidth_fraction", 0.7, 0.02, 0.99),
)
WAVE = Parameter("attention_wave_s", 3e-6, 0.0, 2e-3)
# From so slow a rate that arithmetic shows everywhere: hidden behind the stream it would leave no slope to follow.
ATTENTION_FLOPS = Parameter("attention_flops_fraction", 0.02, 0.001, 1.0)
WALK_PARAMETERS = (
    Parameter("walk_overhead_s", 3e-6, 0.0, 2e-3),
    Parameter("walk_s_per_token", 3e-8, 1e-10, 1e-4),
    Parameter("walk_fixed_s", 4e-6, 0.0, 2e-3),
)
# Where no tensor unit takes a tile's rows at once.
WALK_ROW = Parameter("walk_row_s_per_token", 4e-9, 0.0, 1e-5)
CACHE_COPIES = (Parameter("walk_copy_s_per_byte", 5e-11, 0.0, 1e-8), Parameter("walk_copy_free_bytes", 4e6, 0.0, 1e10))


def kernels(regime: AttentionRegime) -> ServingEngine:
    """An engine that adds nothing of its own, and verifies by `regime`."""
    engine = find_engine("generic")
    rule = AttentionRule(from_compute_capability="0", regime=regime)
    nothing = engine.launch_per_layer_s.model_copy(update={"value": 0.0})
    return engine.model_copy(
        update={"attention": (rule,), "graphs": None, "launch_per_layer_s": nothing, "small_rows": ()}
    )  # fmt: skip


def attention_law(
    hardware: Hardware, dtype: str, regime: AttentionRegime, fixed: Mapping[str, float] | None = None
) -> Law[Attention]:
    """Seconds of one layer's attention with trial coefficients: the attention term of a one-layer model's pass."""
    engine = kernels(regime)

    def law(values: Mapping[str, float], cells: Sequence[Attention]) -> list[float]:
        device = with_coefficients(hardware, {**(fixed or {}), **values})
        shapes = {cell.shape for cell in cells}
        costs = {shape: ForwardCost(_one_layer(*shape), device, engine, 1, dtype, dtype).attention for shape in shapes}
        return [costs[cell.shape].term(cell.forward_pass).seconds for cell in cells]

    return law


@cache
def _one_layer(heads: int, kv_heads: int, head_dim: int) -> ModelArchitecture:
    return ModelArchitecture(
        name="one layer", family="llama", hidden_size=heads * head_dim, num_hidden_layers=1, num_attention_heads=heads,
        num_key_value_heads=kv_heads, head_dim=head_dim, intermediate_size=1, vocab_size=1,
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------------- whole passes

SMALL_KERNEL = Parameter("elementwise_overhead_s", 1e-5, 0.0, 5e-3)
# A constant of engines, not of devices: reported where a host launches kernels one by one, and kept out of the profile.
LAUNCH = "launch_per_layer_s"
HOST_LAUNCH = Parameter(LAUNCH, 5e-4, 0.0, 2e-2)


def forward_law(hardware: Hardware, dtype: str, regime: AttentionRegime, models: Mapping[str, ModelArchitecture]) -> Law[Forward]:
    """Seconds of whole passes: every part of `simulator.cost.forward`, the LM head over all rows, and of an engine only the
    time that a host takes to launch a layer, where it is among the values."""
    nothing_more = kernels(regime)

    def law(values: Mapping[str, float], cells: Sequence[Forward]) -> list[float]:
        device = with_coefficients(hardware, {name: value for name, value in values.items() if name != LAUNCH})
        launch = nothing_more.launch_per_layer_s.model_copy(update={"value": values.get(LAUNCH, 0.0)})
        engine = nothing_more.model_copy(update={LAUNCH: launch})
        costs = {name: ForwardCost(models[name], device, engine, 1, dtype, dtype) for name in {cell.model for cell in cells}}
        return [
            costs[cell.model]
            .price(uniform_pass(cell.batch, cell.rows, cell.context + cell.rows, costs[cell.model].window))
            .seconds
            for cell in cells
        ]

    return law
