"""The cells of a calibration: what is measured, which of it is held out, and how much it matters. Runs nothing.

The split is by design, before anything is measured. Held out are: one matrix of each model, some row counts, one context
length of attention, several batch × context planes of whole passes, and every pass of the last model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from calibration.measurement import Cell, Kind, Split, Value
from simulator.calibrate.models import SHAPES, Config, Dimensions

# Small rows one by one, since small batches take kernels of their own; then on and off the powers of two and around the edges of
# tiles of 16, 32, 64, 128 and 256 rows.
ROWS = (
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    12,
    16,
    17,
    24,
    32,
    33,
    48,
    64,
    65,
    96,
    128,
    129,
    160,
    192,
    256,
    257,
    384,
    512,
    1024,
    1536,
    2048,
)
HELD_OUT_ROWS = frozenset({12, 24, 33, 65, 129, 192, 384, 1536})
FEW_ROWS = (1, 2, 4, 5, 8, 16, 32, 64, 128, 256, 512, 2048)
PASS_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 24, 32, 48, 64, 96, 128)
HELD_OUT_PASS_ROWS = frozenset({12, 24, 48, 96})
# γ + 1 rows for γ = 0..8: all fitted, since small rows follow no law closely, and measured a second time on their own.
CHECKED_ROWS = range(1, 10)
# Compiling takes longer than measuring does.
COMPILED_ROWS = (1, 5)
VERIFIED_ROWS = (2, 3, 4, 5, 8, 9, 12, 16)
HELD_OUT_VERIFIED_ROWS = frozenset({3, 9, 12})


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be measured. cache_bytes: the last cache. count: devices. modes: of passes. backends: attention kernels, by
    `decode` and `verify`."""

    device: str
    cache_bytes: int
    memory_bytes: int
    count: int
    gemm_dtypes: tuple[str, ...]
    pass_dtypes: tuple[str, ...]
    modes: tuple[str, ...]
    models: Mapping[str, Config]
    backends: Mapping[str, str]


def cells(target: Target) -> Iterator[tuple[Cell, int]]:
    """(cell, rank): 0 decides and is visited most, 1 is always measured, the others while there is time."""
    yield from _memory_cells(target)
    yield from _gemm_cells(target)
    yield from _attention_cells(target)
    yield from _forward_cells(target)
    yield from _other_cells(target)


def _cell(kind: Kind, split: Split, **inputs: Value) -> Cell:
    return Cell(kind=kind, inputs=inputs, split=split)


def _memory_cells(target: Target) -> Iterator[tuple[Cell, int]]:
    """From a fraction of the last cache to eight times its size, within an eighth of the memory."""
    arrays: tuple[tuple[Kind, int], ...] = (("copy", 2), ("read", 1), ("triad", 3))
    for factor in (1 / 32, 1 / 8, 1 / 2, 2, 4, 8):
        size = min(_power_of_two(target.cache_bytes * factor), _power_of_two(target.memory_bytes / 8))
        for kind, count in arrays:
            yield _cell(kind, "fit", bytes=size, moved_bytes=count * size, dtype=target.pass_dtypes[0]), 1 if factor >= 2 else 2


def _power_of_two(size: float) -> int:
    return int(2 ** round(math.log2(size)))


def _gemm_cells(target: Target) -> Iterator[tuple[Cell, int]]:
    """Two weight sizes: the main model's matrices and those of another width. `down` is held out whole."""
    main, *others = (Dimensions.of(config) for config in target.models.values())
    other = Dimensions.of(SHAPES["llama-1b"]) if target.device == "cpu" else others[0] if others else main
    for index, dtype in enumerate(target.gemm_dtypes):
        seen: set[tuple[int, int]] = set()
        for dimensions, names in ((main, ("up", "q", "down", "head", "k")), (other, ("up", "down"))):
            for name in names:
                n, k = dimensions.matrices[name]
                if (n, k) in seen:
                    continue
                seen.add((n, k))
                full = name == "up" and index == 0
                for m in ROWS if full else FEW_ROWS:
                    if name == "head" and m > 256:
                        continue
                    split: Split = "held_out" if name == "down" or m in HELD_OUT_ROWS else "fit"
                    core = name != "head" and (m <= 8 or m in (16, 64, 256)) and dtype in target.pass_dtypes
                    yield _cell("gemm", split, m=m, n=n, k=k, dtype=dtype), 1 if core else 2 if m <= 128 and not index else 3


def _attention_cells(target: Target) -> Iterator[tuple[Cell, int]]:
    """Decode over batch × context, verification over rows × context; one context is held out, and some row counts."""
    dtype = next((each for each in target.pass_dtypes if each != "fp8"), "bf16")
    contexts = (256, 1024, 2048, 4096) if target.device == "cpu" else (512, 2048, 4096, 8192, 16384, 32768)
    held_out_context = 2048 if target.device == "cpu" else 4096
    batches = (1, 4, 8) if target.device == "cpu" else (1, 4, 8, 16, 32, 64)
    for index, config in enumerate(list(target.models.values())[:2]):
        model = Dimensions.of(config)
        heads: dict[str, Value] = {"heads": model.heads, "kv_heads": model.kv_heads, "head_dim": model.head_dim, "dtype": dtype}
        if index and (model.heads, model.kv_heads, model.head_dim) == _heads_of_first(target):
            continue
        for batch in batches:
            for context in contexts:
                if batch * context > (16384 if target.device == "cpu" else 2**19):
                    continue
                held_out: Split = "held_out" if context == held_out_context else "fit"
                decode = {"batch": batch, "rows": 1, "context": context, **heads, "backend": target.backends["decode"]}
                yield _cell("decode_attention", held_out, **decode), (1 if batch <= 4 else 2) + index
                if batch > 4:
                    continue
                for rows in VERIFIED_ROWS if batch == 1 else (4, 8):
                    split: Split = "held_out" if context == held_out_context or rows in HELD_OUT_VERIFIED_ROWS else "fit"
                    asked = {"batch": batch, "rows": rows, "context": context, **heads, "backend": target.backends["verify"]}
                    rank = (1 if rows in (2, 4, 8, 16) else 2) + index
                    yield _cell("verify_attention", split, **asked), rank


def _heads_of_first(target: Target) -> tuple[int, int, int]:
    first = Dimensions.of(next(iter(target.models.values())))
    return first.heads, first.kv_heads, first.head_dim


def _forward_cells(target: Target) -> Iterator[tuple[Cell, int]]:
    """Whole passes. Rows at one sequence are the backbone, measured twice up to nine; planes of batch × context beside it."""
    names = list(target.models)
    main, last = names[0], names[-1] if len(names) > 2 else None
    small = target.device == "cpu"
    backbone = 512 if small else 2048
    fitted = ((1, 1024, (1, 4, 16)), (4, 256, (1, 2, 4))) if small else ((16, 1024, (1, 2, 4, 8)), (1, 16384, (1, 4, 8)))
    held = (
        ((1, 64, (1, 2, 5, 9, 32)), (2, 512, (1, 3, 5)), (8, 128, (1, 2, 5)))
        if small
        else ((1, 512, (1, 2, 5, 9, 32)), (4, 4096, (1, 3, 5)), (64, 512, (1, 2, 5)), (32, 4096, (1, 4)))
    )
    for dtype_index, dtype in enumerate(target.pass_dtypes):
        for mode in target.modes:
            later = min(dtype_index + (mode == "compile"), 1)
            common: dict[str, Value] = {"dtype": dtype, "mode": mode}
            for name in names:
                judge = name == last
                if mode == "compile" and name != main:
                    continue
                for rows in COMPILED_ROWS if mode == "compile" else PASS_ROWS if name == main else (1, 2, 4, 5, 8, 9, 16, 64):
                    split: Split = "held_out" if judge or rows in HELD_OUT_PASS_ROWS else "fit"
                    essential = name == main and rows <= 9 and mode != "compile"
                    rank = (0 if essential else 1 if rows in (1, 4, 5, 8, 16, 64) else 2) + 2 * later
                    yield _cell("forward", split, model=name, batch=1, rows=rows, context=backbone, **common), rank
                if name == main and not later:
                    for rows in CHECKED_ROWS:
                        yield _cell("forward", "check", model=name, batch=1, rows=rows, context=backbone, **common), 0
                if mode == "compile":
                    continue
                for planes, kind in ((fitted, "fit"), (held, "held_out")):
                    for batch, context, plane_rows in planes if name == main else planes[:1]:
                        for rows in plane_rows:
                            split = "held_out" if judge or kind == "held_out" else "fit"
                            asked = {"model": name, "batch": batch, "rows": rows, "context": context, **common}
                            yield _cell("forward", split, **asked), (1 if name == main and rows in (1, 4, 5) else 2) + 2 * later


def _other_cells(target: Target) -> Iterator[tuple[Cell, int]]:
    model = Dimensions.of(next(iter(target.models.values())))
    dtype = next((each for each in target.pass_dtypes if each != "fp8"), "bf16")
    yield _cell("launch", "fit"), 1
    yield _cell("synchronize", "fit"), 1
    for rows in (1, 4, 8, 16, 64):
        for method in ("greedy", "multinomial"):
            asked: dict[str, Value] = {"rows": rows, "vocab_size": model.vocabulary, "dtype": dtype, "method": method}
            rank = 1 if method == "greedy" and rows <= 8 else 2 if rows <= 8 else 3
            yield _cell("sampling", "held_out" if rows == 4 else "fit", **asked), rank
    for batch, context in ((1, 1024), (8, 1024)):
        shape = {"layers": model.layers, "batch": batch, "kv_heads": model.kv_heads, "head_dim": model.head_dim}
        yield _cell("kv_crop", "fit", **shape, context=context, removed=4, dtype=dtype), 1
    devices = 2
    while devices <= target.count:
        for power in (13, 16, 18, 20, 23, 26):
            split: Split = "held_out" if power == 18 else "fit"
            yield _cell("all_reduce", split, devices=devices, bytes=2**power, dtype=dtype), 2
        devices *= 2
