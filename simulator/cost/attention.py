"""AttentionCost: attention of one pass, every group of layers over the tokens that it sees."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from simulator.architecture import RECURRENT, LayerGroup
from simulator.cost.forward_pass import ForwardPass
from simulator.cost.roofline import (
    ATTENTION_TILE_ROWS,
    Bound,
    Operation,
    cache_copies_s,
    serial_walk_attention,
    split_kv_attention,
    walk_s,
)
from simulator.cost.tape import known, larger, smaller
from simulator.cost.terms import CostTerm
from simulator.hardware import Hardware
from simulator.kernel_switches import AttentionRegime
from simulator.serving_engine import ServingEngine

# Positions of a model that states none.
_LONGEST_CONTEXT = 131072


class AttentionKernels(NamedTuple):
    """What an engine's attention kernels do. regime: where a sequence brings several query rows; latent_regime: that of latent
    attention, where it differs. walk_factor: of serial walks, over the device's own. packs_heads: query heads that share keys and
    values share a block. unsplit: plain steps walk alone too. idle_s: what blocks of each sequence and KV head take that find
    nothing to do in a plain step. tile_rows: of a block of a walk. list_kernels: small kernels before it in a layer."""

    regime: AttentionRegime
    latent_regime: AttentionRegime | None = None
    walk_factor: float = 1.0
    packs_heads: bool = False
    unsplit: bool = False
    idle_s: float = 0.0
    tile_rows: int = ATTENTION_TILE_ROWS
    list_kernels: int = 0


def attention_kernels(engine: ServingEngine, hardware: Hardware) -> AttentionKernels:
    """Those that run on this device, as the server was started."""
    regime, backend = engine.attention_regime(hardware), engine.backend
    factor = engine.walk_factor.value if engine.walk_factor is not None else 1.0
    if backend is None:
        return AttentionKernels(regime, engine.latent_attention, factor)
    unsplit = engine.started_with.deterministic and backend.deterministic == "unsplit"
    idle_s = 0.0
    if engine.idle_block_s is not None and backend.split_tokens is not None:
        idle_s = engine.idle_block_s.value * math.ceil((engine.longest_context or _LONGEST_CONTEXT) / backend.split_tokens)
    kernels = AttentionKernels(regime, engine.latent_attention, factor, backend.packs_heads, unsplit, idle_s)
    if backend.one_stage is None or not engine.started_with.deterministic:
        return kernels
    return kernels._replace(tile_rows=backend.one_stage.tile_rows, list_kernels=backend.one_stage.list_kernels)


@dataclass(frozen=True)
class AttentionCost:
    """kv_number_bytes: of one number in the cache."""

    groups: Sequence[LayerGroup]
    hardware: Hardware
    kernels: AttentionKernels
    kv_number_bytes: float

    @cached_property
    def window(self) -> int | None:
        """The smallest window of a group of layers."""
        return min((group.window for group in self.groups if group.window is not None), default=None)

    def term(self, asked: ForwardPass) -> CostTerm:
        """All layers of the pass."""
        seconds, bounds = 0.0, dict[Bound, float]()
        for group in self.groups:
            if group.attention in ("none", *RECURRENT):
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
        if window == self.window or not known(asked.sequences):
            return asked.windowed_tokens, smaller(asked.longest_tokens, window)
        mean = asked.context_tokens / asked.sequences
        return asked.sequences * smaller(mean, window), smaller(asked.longest_tokens, window)

    def _attention(self, group: LayerGroup, asked: ForwardPass, context: float, longest: float) -> Operation:
        """One layer. Which kernel runs depends on whether any sequence brings more than one query row."""
        several_rows = known(asked.rows) > known(asked.sequences) or bool(asked.prefill)
        kernels = self.kernels
        stated = kernels.latent_regime if group.attention == "mla" else None
        regime, walked = stated or kernels.regime, stated is not None or group.attention in ("full", "sliding", "chunked")
        walks = walked and (kernels.unsplit or (several_rows and regime == "serial_walk"))
        if walks and not kernels.packs_heads:
            alone = self._walk(group, asked, context, longest)
            return alone._replace(seconds=larger(alone.seconds, self._stream_s(group, asked, context)))
        reread = asked.rows_each if several_rows and regime == "kv_reread" and known(asked.sequences) else 1.0
        operation = self._split(group, asked, context, reread)
        if walks:  # Blocks that share a cache have no more of it than the memory gives them.
            alone = self._walk(group, asked, context, longest)
            return Operation(larger(alone.seconds, operation.seconds), alone.bound)
        if several_rows or not kernels.idle_s:
            return operation
        return operation._replace(seconds=operation.seconds + asked.sequences * group.kv_heads * kernels.idle_s)

    def _stream_s(self, group: LayerGroup, asked: ForwardPass, context: float) -> float:
        """Every key and value read once from memory. Blocks of query heads that share them meet in the caches; no walk is faster,
        however many units walk at once."""
        read = context
        for new, before in asked.prefill:
            read += new + (smaller(before, group.window) if group.window else before)
        bytes_per_token = group.kv_elements_per_token * self.kv_number_bytes
        return read * bytes_per_token / self.hardware.attention_bandwidth_bytes_per_s

    def _split(self, group: LayerGroup, asked: ForwardPass, context: float, reread: float) -> Operation:
        share = group.heads / group.kv_heads
        bytes_per_token = group.kv_elements_per_token * self.kv_number_bytes
        # Factors are joined before they meet the context, which a span of rounds has many of.
        kv_bytes, blocks, flops = context * (reread * bytes_per_token), 0.0, 0.0
        if known(asked.sequences):
            rows = asked.rows_each / reread
            # Rows × heads of one KV head fill tiles of the tensor units, each row its own where it gathers its own tokens.
            tile, each = self.hardware.coefficients.attention_tile_rows.value, 1 if group.gathers else rows
            tile_rows = math.ceil(each * share / tile) * tile / share * (rows / each)
            flops_per_token = tile_rows * reread * group.attention_flops_per_row_and_token
            hidden = flops_per_token / self.hardware.attention_flops_per_s() <= (
                reread * bytes_per_token / self.hardware.attention_bandwidth_bytes_per_s
            )
            # Alone, arithmetic that takes less than the stream at one context does so at any.
            if group.gathers:
                flops = larger(context, asked.sequences * group.gathered_tokens) * flops_per_token
            elif asked.prefill or group.index_flops_per_row_and_token or not hidden:
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
        dim, device = group.head_dim, self.hardware
        # Query rows that a head of keys and values sees, where its query heads share a block.
        heads, share = (group.kv_heads, group.heads / group.kv_heads) if self.kernels.packs_heads else (group.heads, 1.0)
        sequences = asked.sequences
        blocks_each = math.ceil(share * asked.rows / sequences / self.kernels.tile_rows) if sequences else 1
        rows = share * asked.rows / sequences / blocks_each if sequences else 0.0
        total_s = heads * blocks_each * (sequences * walk_s(context / sequences, rows, dim, device)) if sequences else 0.0
        longest_s = walk_s(longest, rows, dim, device) if sequences else 0.0
        blocks = heads * blocks_each * sequences
        for new, before in asked.prefill:
            tiles = math.ceil(share * new / self.kernels.tile_rows)
            total_s += heads * tiles * walk_s(_seen_tokens(new, before, group.window), share * new / tiles, dim, device)
            seen = min(before + new, group.window or before + new)
            longest_s = max(longest_s, walk_s(seen, share * new / tiles, dim, device))
            blocks += heads * tiles
        factor = self.kernels.walk_factor
        walked = serial_walk_attention(factor * longest_s, factor * total_s, math.ceil(blocks), device)
        # Where query heads share keys and values in place, nothing is copied; nor are prompts, whose mask the kernel builds.
        copied = context * (group.heads / group.kv_heads * group.kv_elements_per_token * self.kv_number_bytes)
        beside_s = cache_copies_s(copied, device) if heads > group.kv_heads else 0.0
        beside_s += self.kernels.list_kernels * device.coefficients.elementwise_overhead_s.value
        return Operation(walked.seconds + beside_s, walked.bound)


def _seen_tokens(new: int, before: int, window: int | None) -> float:
    """Cached tokens that a prompt chunk's rows attend to on average, causal mask and window included."""
    seen = before + (new + 1) / 2
    return smaller(seen, float(window)) if window else seen
