"""Coefficients of GPUs from kernel tables that others published, by the fit that also serves a device of one's own.

What is fitted and what is held out is by design, the same for every device:

    single GEMMs   n and k from 2048 and weights of 60-450 MB; smaller ones with n and k of `SIDES`, down to what the last cache
                   keeps between two turns (`Source.cold_bytes`). Held out: shapes whose (n + k)/512 is a multiple of 3, up to 512
                   rows. Fitted: the others at `FIT_ROWS`.
    layers         the four matrices of one decoder layer. Fitted: `LAYER_ROWS` on one device; held out: all other rows up to 512,
                   and every row of the same layer split over 2, 4 and 8 devices (`layer_fitting`).
    decode         cells whose KV cache is under 2 MB (their start) or beyond 1.2 of the last cache, since less would be read from
                   it, as no model does. Held out: every third pair of batch and length beyond the cache.
    serial walk    a prompt's chunk of 16-128 rows, alone or beside up to 128 decodes, over caches that the last cache holds. Held
                   out: every third.

`python -m simulator.calibrate.tables FOLDER [PROFILE …]` prints what the tables in a folder teach.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from calibration.fit import Errors, Observation, errors
from calibration.kernel_tables import (
    Shapes,
    decode_attention_table,
    gemm_table,
    mixed_attention_table,
    operator_table,
    vidur_table,
)
from calibration.measurement import Measurement, Split, Value
from simulator.calibrate.attention_fitting import fit_walk, split_part
from simulator.calibrate.cells import attention_cells, gemm_cells
from simulator.calibrate.gemm_fitting import fit_gemm, gemm_seconds
from simulator.calibrate.laws import Attention, Gemm
from simulator.calibrate.layer_fitting import LAYER_ROWS, MOST_ROWS, fit_layers, judge_layers, leave_one_matrix_out
from simulator.calibrate.parts import Cells, Part, RatioRow, ratio_row, rounded, settled
from simulator.hardware import Hardware, find_hardware
from simulator.number_format import FORMATS

FIT_ROWS = (1, 2, 4, 8, 9, 16, 17, 32, 33, 48, 64, 65, 96, 128, 129, 160, 192, 256, 257, 512, 1024, 2048)
# Off the powers of two: 5.3 % held-out error where 1, 8, 32 … 1024 gave 8.5 % (docs/model.md).
# Of the small matrices, enough to tell what depends on n, k and size; large ones are fewer.
SIDES = (512, 1024, 2048, 3072, 4096, 6144, 8192, 16384)
LARGE_BYTES = 60e6
LLAMA_3_8B: Shapes = {"qkv_proj": (6144, 4096), "o_proj": (4096, 4096), "gate_up_proj": (28672, 4096), "down_proj": (4096, 14336)}
VIDUR_TABLE = "vidur_layer_ops_llama2_7b.csv"
MIB = 2**20
Inputs = Mapping[str, Value]


@dataclass(frozen=True)
class Source:
    """The tables of one device. gemm: (file, type) of single GEMMs. operators: of one layer; vidur: the device's name in that
    table. decode, mixed: attention. cache_bytes: the last cache. tiles: those tried. cold_bytes: weights from which on single
    GEMMs stream from memory; the benchmark takes copies in turn, and only on the L40S do small ones beat the datasheet."""

    cache_bytes: int
    gemm: tuple[tuple[str, str], ...] = ()
    operators: str = ""
    vidur: str = ""
    decode: str = ""
    mixed: str = ""
    tiles: tuple[int, ...] = (64, 128)
    cold_bytes: float = 0.0


def _aic(device: str, cache: int, *dtypes: str, vidur: str = "", cold_bytes: float = 0.0) -> Source:
    return Source(
        cache * MIB,
        tuple((f"gemm_aic_{device}_{dtype}.csv", dtype) for dtype in dtypes),
        vidur=vidur,
        decode=f"attn_generation_aic_{device}.csv",
        cold_bytes=cold_bytes,
    )


def _serving(device: str, cache: int, decode: str = "") -> Source:
    stem = f"llmservingsim_{device}_Llama-3.1-8B"
    return Source(cache * MIB, operators=f"{stem}_dense.csv", decode=decode, mixed=f"{stem}_attention.csv")


SOURCES: Mapping[str, Source] = {
    # Its layers, and large matrices alone, choose 128 rows; small ones would have 64 and a knee that no other kernel of it shows.
    "a100_sxm_80gb": replace(_aic("a100_sxm", 40, "bf16", vidur="a100"), tiles=(128,)),
    "h100_sxm": _aic("h100_sxm", 50, "bf16", "fp8", vidur="h100"),
    "h200_sxm": _aic("h200_sxm", 50, "bf16"),
    "l40s": _aic("l40s", 96, "bf16", cold_bytes=20e6),
    "b200_sxm": _aic("b200_sxm", 126, "bf16"),
    "a40": Source(6 * MIB, vidur="a40"),
    "rtx_4090": _serving("RTX4090", 72),
    "rtx_pro_6000": _serving("RTXPRO6000", 128, "attn_generation_aic_rtx_pro_6000_server.csv"),
}


@dataclass(frozen=True)
class TableFit:
    """hardware: the profile with what its tables taught. judged: (what, errors) on cells that were not fitted."""

    profile_id: str
    hardware: Hardware
    parts: tuple[Part[Any], ...]
    ratios: tuple[RatioRow, ...]
    judged: tuple[tuple[str, Errors], ...]


def fit_tables(folder: Path, profile_id: str) -> TableFit:
    """Fits a shipped profile to its published tables in `folder`. Raises `MeasurementError` where one cannot be read."""
    source, hardware = SOURCES[profile_id], find_hardware(profile_id)
    parts: list[Part[Any]] = []
    ratios: list[RatioRow] = []
    judged: list[tuple[str, Errors]] = []
    for file, dtype in source.gemm:
        cells = gemm_cells(gemm_table(folder / file, dtype, gemm_rule(dtype, source.cold_bytes)), dtype)
        part = fit_gemm(hardware, dtype, cells, tiles=source.tiles)
        hardware = settled(hardware, part, "", dtype, dtype == hardware.wide_dtype)
        parts.append(part)
        for size, within in by_size(cells.held_out, dtype).items():
            predict = gemm_seconds(hardware, dtype)
            found = errors(predict([cell.inputs for cell in within]), [cell.measured for cell in within])
            judged.append((f"GEMM {dtype}, {size}", found))
            ratios += ratio_row(f"GEMM {dtype}, {size}", Cells((), within), predict, lambda c: ((c.n, c.k), c.m))
    layers = layer_measurements(folder, source)
    if layers:
        dtype = str(layers[0].inputs["dtype"])
        part, fitted = fit_layers(hardware, layers, dtype, source.tiles)
        if not source.gemm:
            parts.append(part)
            hardware = fitted
        judged += judge_layers(layers, fitted, dtype, "layers")
        judged += leave_one_matrix_out(layers, hardware, dtype, source.tiles)
    for name, attention in attention_tables(folder, source).items():
        kernel = fit_walk(hardware, "bf16", attention) if name == "walk" else split_part(hardware, "bf16", attention)
        hardware = settled(hardware, kernel, "")
        parts.append(kernel)
    return TableFit(profile_id, hardware, tuple(parts), tuple(ratios), tuple(judged))


# --------------------------------------------------------------------------------------------------------------- design


def gemm_rule(dtype: str, cold_bytes: float = 0.0) -> Callable[[Inputs], Split | None]:
    """Which single GEMMs are fitted, held out, or left alone."""

    def rule(inputs: Inputs) -> Split | None:
        m, n, k = (int(inputs[name]) for name in "mnk")
        size = n * k * FORMATS[dtype].bytes
        large = min(n, k) >= 2048 and LARGE_BYTES <= size <= 450e6
        if not large and not (n in SIDES and k in SIDES and cold_bytes <= size < LARGE_BYTES):
            return None
        if (n + k) // 512 % 3 == 0:
            return "held_out" if m <= MOST_ROWS else None
        return "fit" if m in FIT_ROWS else None

    return rule


def by_size(held_out: Sequence[Observation[Gemm]], dtype: str) -> dict[str, list[Observation[Gemm]]]:
    """Held-out matrices, large and small apart; without a class that has none."""
    classes: dict[str, list[Observation[Gemm]]] = {}
    for cell in sorted(held_out, key=lambda cell: -cell.inputs.n * cell.inputs.k):
        small = cell.inputs.n * cell.inputs.k * FORMATS[dtype].bytes < LARGE_BYTES
        classes.setdefault("under 60 MB" if small else "60 MB and more", []).append(cell)
    return classes


def layer_rule(inputs: Inputs) -> Split | None:
    """Which matrices of a layer are fitted and held out."""
    rows = int(inputs["m"])
    if rows in LAYER_ROWS and int(inputs.get("tp", 1)) == 1:
        return "fit"
    return "held_out" if rows <= MOST_ROWS else None


def _everything(inputs: Inputs) -> Split | None:  # noqa: ARG001
    return "fit"


def decode_rule(cache_bytes: int) -> Callable[[Inputs], Split | None]:
    """Which decode attention is fitted and held out."""

    def rule(inputs: Inputs) -> Split | None:
        batch, tokens = int(inputs["batch"]), int(inputs["context"])
        kv_bytes = 4 * int(inputs["kv_heads"]) * int(inputs["head_dim"]) * batch * tokens
        if batch > 512 or 2e6 < kv_bytes <= 1.2 * cache_bytes:
            return None
        return "held_out" if kv_bytes > 2e6 and round(2 * math.log2(batch * tokens)) % 3 == 0 else "fit"

    return rule


def llama_2_7b(devices: int) -> Shapes:
    """(n, k) of the four matrices of a Llama-2-7B layer on one of `devices`."""
    return {
        "attn_pre_proj": (12288 // devices, 4096),
        "attn_post_proj": (4096, 4096 // devices),
        "mlp_up_proj": (22016 // devices, 4096),
        "mlp_down_proj": (4096, 11008 // devices),
    }


def layer_measurements(folder: Path, source: Source) -> tuple[Measurement, ...]:
    """Matrices of one layer, by rows and, where known, by devices."""
    if source.operators:
        return operator_table(folder / source.operators, LLAMA_3_8B, "bf16", layer_rule)
    if source.vidur:
        by_devices = {devices: llama_2_7b(devices) for devices in (1, 2, 4, 8)}
        return vidur_table(folder / VIDUR_TABLE, source.vidur, by_devices, "fp16", layer_rule)
    return ()


def attention_tables(folder: Path, source: Source) -> dict[str, Cells[Attention]]:
    """`decode` and `walk` cells of a device."""
    found: dict[str, Cells[Attention]] = {}
    if source.mixed:
        table = mixed_attention_table(folder / source.mixed, 32, 8, 128, _everything)
        decodes = [each for each in table if not each.inputs["chunk"] and each.inputs["batch"]]
        rule = decode_rule(source.cache_bytes)
        placed = [replace(each, split=split) for each in decodes if (split := rule(each.inputs)) is not None]
        found["decode"] = attention_cells(placed, "decode_attention", "bf16")
        walks = [each for each in table if _walks_within_cache(each.inputs, source.cache_bytes)]
        split_up = [replace(each, split="held_out" if index % 3 == 0 else "fit") for index, each in enumerate(walks)]
        found["walk"] = attention_cells(split_up, "decode_attention", "bf16")
    elif source.decode:
        table = decode_attention_table(folder / source.decode, decode_rule(source.cache_bytes))
        found["decode"] = attention_cells(table, "decode_attention", "bf16")
    return found


def _walks_within_cache(inputs: Inputs, cache_bytes: int) -> bool:
    chunk, before, batch, tokens = (int(inputs[name]) for name in ("chunk", "before", "batch", "context"))
    return 16 <= chunk <= 128 and batch <= 128 and 4096 * (before + chunk + batch * tokens) <= cache_bytes


def fit_lines(found: TableFit) -> list[str]:
    """What was found for a device, as lines of text."""
    lines = [found.profile_id]
    for part in found.parts:
        lines.append(f"  {part.name}: {part.law or part.problem}")
        lines += [f"    {name} {rounded(value):g}" for name, value in part.values.items()]
        if part.row_factors:
            lines.append(f"    factors by rows { ({rows: rounded(value) for rows, value in part.row_factors.items()}) }")
        if part.held_out:
            lines.append(f"    held out: {_error_words(part.held_out)}; worst at {part.worst}")
    lines += [f"  {row.name}, ratio: {_error_words(row.errors)}" for row in found.ratios]
    return lines + [f"  {name}: {_error_words(each)}" for name, each in found.judged]


def _error_words(found: Errors) -> str:
    return f"median {found.median:.1%}, mean {found.mean:.1%}, 90th percentile {found.p90:.1%} of {found.count}"


if __name__ == "__main__":
    folder, *profile_ids = sys.argv[1:] or ["."]
    for profile_id in profile_ids or SOURCES:
        print("\n".join(fit_lines(fit_tables(Path(folder), profile_id))), flush=True)
