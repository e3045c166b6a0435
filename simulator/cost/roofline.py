"""One operation: seconds from bytes and FLOPs, by a smooth maximum of the two.

    t = t0 + { [ (bytes/BW)^p + (w·flops(⌈m⌉_T, k + k_0)/F)^p ]^(2/p) + min(c·k, c_max)² }^(1/2)

On measured decoder layers this form errs by 3-6 % where the plain roofline max() errs by 6-12 % (docs/model.md). w stretches
arithmetic by a last wave of blocks that fills only part of the device. k_0 is what a block spends on filling its pipeline and on
writing its tile, in steps along k: a twentieth of a whole layer's walks, a third of those over k that eight devices share. c·k is
one block's walk along the inner dimension, which no bandwidth shortens: matrices of 2 to 20 MB, those of drafts and of split
layers, take up to twice what streaming them would (docs/model.md).

Cached tokens, and the seconds that follow from them, may be numbers of a tape (`tape`), although declared `float`: a span of
rounds is then priced at once, by the same formulas.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, NamedTuple

from simulator.cost.tape import known, larger, root_of_squares, smaller
from simulator.hardware import Coefficients, GemmRates, Hardware
from simulator.row_law import RowLaw, computed_rows

Bound = Literal["memory", "compute", "latency", "network", "host"]
ATTENTION_TILE_ROWS = 64
# Columns of one block of a GEMM: blocks of tile rows × this are spread over the compute units.
GEMM_TILE_COLUMNS = 128
_SMALL_MESSAGE_BYTES = 2**20


class Operation(NamedTuple):
    """Seconds of one operation and what bounds it."""

    seconds: float
    bound: Bound


def smooth_maximum(first: float, second: float, smoothness: float) -> float:
    """(a^p + b^p)^(1/p): the larger of the two when they differ much, up to 2^(1/p) of it at the knee.

    >>> round(smooth_maximum(1.0, 1.0, 3.0), 3), round(smooth_maximum(1.0, 0.1, 3.0), 3)
    (1.26, 1.0)
    """
    high, low = (first, second) if first > second else (second, first)
    if high <= 0:
        return 0.0
    over: float = (1.0 + (low / high) ** smoothness) ** (1.0 / smoothness)
    return high * over


def gemm(
    rows: float,
    n: float,
    k: float,
    weight_bytes_per_element: float,
    hardware: Hardware,
    compute_dtype: str,
    row_law: RowLaw | None = None,
    rates: GemmRates | None = None,
) -> Operation:
    """y[m, n] = x[m, k] · W, as in `gemms`."""
    return gemms(rows, ((n, k, 1),), weight_bytes_per_element, hardware, compute_dtype, row_law, rates)


def gemms(
    rows: float,
    matrices: Iterable[tuple[float, float, int]],
    weight_bytes_per_element: float,
    hardware: Hardware,
    compute_dtype: str,
    row_law: RowLaw | None = None,
    rates: GemmRates | None = None,
) -> Operation:
    """y[m, n] = x[m, k] · W for each (n, k, how many): weights and 16-bit activations move once, arithmetic on rows rounded up to
    a tile.

    `rows` = m. An engine's `row_law` stands for its own kernels, of which the device's row factors know nothing. rates: of
    other kernels than the device's usual ones. Raises KeyError for a `compute_dtype` the device lacks.
    """
    rates = rates or hardware.gemm_rates(compute_dtype)
    # By name once: each look-up in the loop would take as long as the arithmetic on it.
    overhead_s, smoothness, fill_k, wave_power = rates.overhead_s, rates.smoothness, rates.fill_k, rates.wave_power
    bandwidth_bytes_per_s, walk_s_per_k, walk_longest_s = rates.bandwidth_bytes_per_s, rates.walk_s_per_k, rates.walk_longest_s
    tile, least_tile_rows, units = rates.tile_rows, rates.least_tile_rows, hardware.profile.compute_units
    weight_bytes = (row_law.weight_reads(rows) if row_law is not None else 1.0) * weight_bytes_per_element
    flops_per_s = rates.flops_per_s if row_law is None else row_law.arithmetic(rows) * rates.flops_per_s
    factor = 1.0 if rates.row_factors is None or row_law is not None else rates.row_factors.at(rows)
    padded = computed_rows(rows, tile) if row_law is None else row_law.computed_rows(rows, tile)
    if rates.whole_tiles:
        padded = max(padded, tile)
    total_s, by_bound = 0.0, {}  # type: float, dict[Bound, float]
    for n, k, count in matrices:
        memory_s = (weight_bytes * n * k + 2.0 * rows * (n + k)) / bandwidth_bytes_per_s
        if least_tile_rows > 0:
            tile = tile_rows_for(rows, n, rates.tile_rows, least_tile_rows, units)
            padded = computed_rows(rows, tile) if row_law is None else row_law.computed_rows(rows, tile)
        compute_s = 2.0 * padded * n * (k + fill_k) / flops_per_s
        if wave_power > 0:
            compute_s *= wave_stretch(rows, n, tile, units) ** wave_power
        busy_s, block_s = smooth_maximum(memory_s, compute_s, smoothness), 0.0
        if walk_s_per_k > 0:
            block_s = walk_s_per_k * k
            if block_s > walk_longest_s:
                block_s = walk_longest_s
            busy_s = math.sqrt(busy_s * busy_s + block_s * block_s)
        seconds = count * (overhead_s + factor * busy_s)
        bound = _bound(overhead_s + block_s, memory_s, compute_s)
        total_s += seconds
        by_bound[bound] = by_bound.get(bound, 0.0) + seconds
    return Operation(total_s, max(by_bound, key=by_bound.__getitem__, default="memory"))


def tile_rows_for(rows: float, n: float, tile_rows: float, least: float, units: int) -> float:
    """Tiles of `tile_rows`, halved down to `least` while their blocks leave more than half of the units idle.

    >>> tile_rows_for(256, 12288, 128, 64, 108), tile_rows_for(256, 1536, 128, 64, 108)
    (128, 64.0)
    """
    while tile_rows > least and 2 * math.ceil(rows / tile_rows) * math.ceil(n / GEMM_TILE_COLUMNS) < units:
        tile_rows = max(tile_rows / 2, least)
    return tile_rows


def wave_stretch(rows: float, n: float, tile_rows: float, units: int) -> float:
    """Waves of blocks that are paid for over those that are filled: ⌈blocks/units⌉·units/blocks.

    >>> wave_stretch(64, 16896, 64, 132), wave_stretch(128, 8448 + 128, 64, 132)
    (1.0, 1.9701492537313432)
    """
    blocks = math.ceil(rows / tile_rows) * math.ceil(n / GEMM_TILE_COLUMNS)
    return math.ceil(blocks / units) * units / blocks


def experts_touched(num_experts: int, top_k: int, tokens: float, popularity_shape: float = math.inf) -> float:
    """Expected number of different experts that `tokens` independent tokens choose: E·(1 - mean of (1 - p)^m).

    Experts of one text are not equally popular: the share p of tokens that choose an expert follows Beta(a, a·(E/k - 1)), whose
    mean is k/E, with a = `popularity_shape`; then the mean of (1 - p)^m is B(a, b + m)/B(a, b). An infinite shape is uniform
    routing, E·(1 - (1 - k/E)^m).

    >>> experts_touched(128, 8, 1), round(experts_touched(128, 8, 1, 0.5), 9)
    (8.0, 8.0)
    >>> round(experts_touched(128, 8, 8)), round(experts_touched(128, 8, 8, 0.5))
    (52, 40)
    """
    if math.isinf(popularity_shape) or top_k >= num_experts:
        return float(num_experts * (1.0 - (1.0 - top_k / num_experts) ** tokens))
    a, b = popularity_shape, popularity_shape * (num_experts / top_k - 1)
    missed = math.exp(math.lgamma(b + tokens) + math.lgamma(a + b) - math.lgamma(b) - math.lgamma(a + b + tokens))
    return float(num_experts * (1.0 - missed))


def padded_rows(rows: float, experts: float, tile: int) -> float:
    """Rows that a grouped kernel computes where each of `experts` fills its own tiles with its share of `rows`: a whole tile at
    least, and half of one empty on average beyond.

    >>> padded_rows(64, 64, 16), padded_rows(6400, 64, 16), padded_rows(64, 64, 1)
    (1024.0, 6880.0, 64.0)
    """
    return max(float(tile) * experts, rows + experts * (tile - 1) / 2)


def grouped_gemm(
    routed_rows: float,
    touched: float,
    parameters: float,
    weight_bytes_per_element: float,
    hardware: Hardware,
    compute_dtype: str,
    tile_rows: int = 1,
) -> Operation:
    """The routed experts of one layer: sorting rows and launching, weights of the touched ones, arithmetic of all routed rows,
    those of each expert rounded up to tiles.

    routed_rows: tokens × experts per token. parameters: weights of one expert on this device.
    """
    coefficients = hardware.coefficients
    bandwidth = hardware.bandwidth_bytes_per_s * coefficients.expert_bandwidth_fraction.value
    memory_s = touched * parameters * weight_bytes_per_element / bandwidth
    compute_s = 2.0 * padded_rows(routed_rows, touched, tile_rows) * parameters / hardware.flops_per_s(compute_dtype)
    busy_s = smooth_maximum(memory_s, compute_s, coefficients.gemm_smoothness.value)
    overhead_s = coefficients.expert_overhead_s.value
    return Operation(overhead_s + busy_s, _bound(overhead_s, memory_s, compute_s))


def elementwise_s(moved_bytes: float, hardware: Hardware) -> float:
    """One small kernel: its launch slot, or its bytes where they take longer."""
    return max(hardware.coefficients.elementwise_overhead_s.value, moved_bytes / hardware.bandwidth_bytes_per_s)


def logits_s(rows: float, vocab_size: int, passes: float, hardware: Hardware) -> float:
    """Passes over the logits of `rows` in 32 bit: casts, softmax, arg-max, comparisons."""
    return passes * 4.0 * rows * vocab_size / hardware.sampling_bandwidth_bytes_per_s


def split_kv_attention(kv_bytes: float, blocks: float, flops: float, hardware: Hardware) -> Operation:
    """Attention that splits the KV cache over compute units (Flash-Decoding), or a prefill: no serial walk.

    kv_bytes: read once. blocks: sequence × KV-head blocks. flops: on tile-rounded query rows.
    t = t0 + max(sqrt((KV bytes/BW)² + (c·blocks/SM)²), flops/F). On measured decode kernels of seven devices the arithmetic
    inside the root raises the median error from 3-8 % to 5-15 %: it hides behind the stream until it is the longer one.
    """
    coefficients: Coefficients = hardware.coefficients
    memory_s = kv_bytes / hardware.attention_bandwidth_bytes_per_s
    wave_s = coefficients.attention_wave_s.value * blocks / hardware.profile.compute_units
    busy_s, compute_s = root_of_squares(memory_s, wave_s), 0.0
    if known(flops) > 0:
        compute_s = flops / hardware.attention_flops_per_s()
        busy_s = larger(busy_s, compute_s)
    overhead_s = coefficients.attention_overhead_s.value
    seconds = overhead_s + busy_s
    return Operation(seconds, _bound(known(overhead_s + wave_s), known(memory_s), known(compute_s)))


def serial_walk_attention(longest_s: float, total_s: float, blocks: int, hardware: Hardware) -> Operation:
    """Attention without split-KV (FlashAttention-2 varlen): each block of 64 query rows walks its whole KV cache alone.

    longest_s: the longest single walk. total_s: walks of all blocks together. blocks: their number.
    The longest walk while every block has a unit of its own, else the evenly spread work and a tail of the longest walk: the
    empty part of the last wave where lengths are equal (so that whole waves are paid), half a walk where they differ by half
    on average or more, since the last block to start is as likely a long one as a short one; in between in proportion, which
    is the steepest way by which no longer context makes a step cheaper. Held-out median 3-4 % on measured chunks beside
    decodes, where max(longest, spread) errs by 8-12 %.
    """
    units = hardware.profile.compute_units
    busy_s = longest_s
    if blocks > units:
        unevenness = larger(1 - total_s / (blocks * longest_s), 0.0) if known(longest_s) > 0 else 0.0
        empty = math.ceil(blocks / units) - blocks / units
        tail = empty + smaller(2 * unevenness, 1.0) * (0.5 - empty)
        busy_s = larger(longest_s, total_s / units + tail * longest_s)
    return Operation(hardware.coefficients.walk_overhead_s.value + busy_s, "latency" if blocks <= units else "compute")


def walk_s(kv_tokens: float, rows: float, head_dim: int, hardware: Hardware) -> float:
    """One block's walk over `kv_tokens` with its `rows` query rows; times per token are for a head dimension of 128 and scale
    with it. Tensor units take up to 64 rows at once, so that rows cost only where there are none."""
    coefficients = hardware.coefficients
    per_token = coefficients.walk_s_per_token.value + coefficients.walk_row_s_per_token.value * rows
    return coefficients.walk_fixed_s.value + per_token * kv_tokens * head_dim / 128


def cache_copies_s(copied_bytes: float, hardware: Hardware) -> float:
    """Keys and values copied out for every query head: beyond what the caches hold, where a walk finds them anyway."""
    coefficients = hardware.coefficients
    seconds_per_byte = coefficients.walk_copy_s_per_byte.value
    if seconds_per_byte <= 0:
        return 0.0
    return seconds_per_byte * larger(copied_bytes - coefficients.walk_copy_free_bytes.value, 0.0)


def all_reduce_s(message_bytes: float, alpha_s: float, bandwidth: float, large_bandwidth: float | None) -> float:
    """alpha + bytes / bandwidth; beyond 1 MiB the large-message bandwidth, where known, takes over."""
    small = min(message_bytes, _SMALL_MESSAGE_BYTES)
    return alpha_s + small / bandwidth + (message_bytes - small) / (large_bandwidth or bandwidth)


def _bound(overhead_s: float, memory_s: float, compute_s: float) -> Bound:
    if overhead_s > memory_s and overhead_s > compute_s:
        return "latency"
    return "memory" if memory_s >= compute_s else "compute"
