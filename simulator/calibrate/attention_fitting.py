"""Attention, fitted and judged on cells that were not: decode, and how several rows of a sequence are verified.

What cannot be told from the data keeps its assumed value, and the part says why.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from calibration.choice import Candidate, choose
from calibration.fit import FitError, Observation, Parameter
from simulator.calibrate.laws import (
    ATTENTION_FLOPS,
    CACHE_COPIES,
    DECODE_PARAMETERS,
    WALK_PARAMETERS,
    WALK_ROW,
    WAVE,
    Attention,
    attention_law,
    with_coefficients,
)
from simulator.calibrate.parts import MARGIN, Cells, Part, judged
from simulator.hardware import Hardware
from simulator.kernel_switches import AttentionRegime


@dataclass(frozen=True)
class AttentionFit:
    """regime: how this device verifies several rows. parts: decode, verification by split KV, by serial walk; those fitted."""

    regime: AttentionRegime
    parts: tuple[Part[Attention], ...]


def fit_attention(hardware: Hardware, dtype: str, decode: Cells[Attention], verify: Cells[Attention]) -> AttentionFit:
    """Split-KV kernels read the cache once for all rows: one law holds for decode and verification together. Where walks over the
    cache explain verification better, or where one law fits decode worse (masks that send several rows to another kernel, caches
    copied for every head first), decode is fitted alone. Walks are fitted in any case, for engines that take them."""
    together = fit_split(hardware, dtype, [*decode.fit, *verify.fit], bool(verify.fit))
    alone = split_part(hardware, dtype, decode)
    if not verify.fit:
        return AttentionFit("split_kv", (alone,))
    if not alone.problem and _mean_error(_named(together, "", hardware, dtype, decode)) > _mean_error(alone) + MARGIN:
        together = alone
    started = with_coefficients(hardware, {"attention_overhead_s": alone.values.get("attention_overhead_s", 0.0)})
    walk = fit_walk(started, dtype, verify)
    split = _named(together, "verification attention, split KV", hardware, dtype, verify)
    walks = _mean_error(walk) < _mean_error(split) * (1 - MARGIN)
    first = alone if walks else _named(together, "decode attention", hardware, dtype, decode)
    # The coefficients of split KV stand with decode.
    return AttentionFit("serial_walk" if walks else "split_kv", (first, replace(split, values={}, fit=None), walk))


def _mean_error(part: Part[Attention]) -> float:
    return part.fitted.mean if part.fitted else math.inf


def fit_split(hardware: Hardware, dtype: str, cells: Sequence[Observation[Attention]], arithmetic: bool) -> Part[Attention]:
    """The stream of the cache; with a time of its own for each sequence × KV-head block; with arithmetic where rows differ."""
    part: Part[Attention] = Part("attention")
    forms: list[tuple[str, dict[str, float], tuple[Parameter, ...]]] = []
    forms.append(("stream", {"attention_wave_s": 0.0, "attention_flops_fraction": 1.0}, DECODE_PARAMETERS))
    forms.append(("stream and waves of blocks", {"attention_flops_fraction": 1.0}, (*DECODE_PARAMETERS, WAVE)))
    for tile in (64.0, 1.0) if arithmetic else ():
        kind = "arithmetic in tiles" if tile > 1 else "arithmetic by row"
        fixed = {"attention_tile_rows": tile}
        forms.append((f"stream and {kind}", {**fixed, "attention_wave_s": 0.0}, (*DECODE_PARAMETERS, ATTENTION_FLOPS)))
        forms.append((f"stream, waves of blocks and {kind}", fixed, (*DECODE_PARAMETERS, WAVE, ATTENTION_FLOPS)))
    candidates = [Candidate(name, attention_law(hardware, dtype, "split_kv", fixed), free) for name, fixed, free in forms]
    try:
        choice = choose(candidates, cells, margin=MARGIN)
    except FitError as error:
        return replace(part, problem=str(error))
    fixed = next(fixed for name, fixed, _ in forms if name == choice.candidate.name)
    # A rate that was set beyond notice was not found.
    values = {name: value for name, value in fixed.items() if name != "attention_flops_fraction"} | choice.fit.values
    return replace(part, law=choice.candidate.name, tried=choice.tried, fit=choice.fit, values=values)


def split_part(hardware: Hardware, dtype: str, cells: Cells[Attention]) -> Part[Attention]:
    """Decode attention alone, judged."""
    return _named(fit_split(hardware, dtype, cells.fit, False), "decode attention", hardware, dtype, cells)


def fit_walk(hardware: Hardware, dtype: str, cells: Cells[Attention]) -> Part[Attention]:
    """Verification in which each block of up to 64 query rows walks its whole cache alone; where it helps, longer by each row,
    and after copies of the cache for every query head. Where one batch was measured, so that the kernel's start cannot be told
    from the blocks', with the start of decode attention."""
    part: Part[Attention] = Part("verification attention, serial walk")
    start = {"walk_overhead_s": hardware.coefficients.attention_overhead_s.value}
    tried: list[tuple[str, float | str]] = []
    for name, given, free in (
        ("serial walk", {}, WALK_PARAMETERS),
        ("serial walk from decode's start", start, WALK_PARAMETERS[1:]),
    ):
        forms = _walks(name, given, free)
        candidates = [Candidate(each, attention_law(hardware, dtype, "serial_walk", fix), more) for each, fix, more in forms]
        try:
            choice = choose(candidates, cells.fit, margin=MARGIN)
        except FitError as error:
            tried.append((name, str(error)))
            continue
        fixed = next(fix for each, fix, _ in forms if each == choice.candidate.name)
        tried += choice.tried
        part = replace(part, law=choice.candidate.name, tried=tuple(tried), fit=choice.fit, values={**fixed, **choice.fit.values})
        return judged(part, choice.predict, cells)
    return replace(part, tried=tuple(tried), problem=str(tried[-1][1]))


def _walks(
    name: str, given: dict[str, float], free: tuple[Parameter, ...]
) -> list[tuple[str, dict[str, float], tuple[Parameter, ...]]]:
    """Forms of the walk, from simple to rich: (name, what is fixed, what is fitted)."""
    no_copies = {each.name: 0.0 for each in CACHE_COPIES}
    return [
        (name, {**given, WALK_ROW.name: 0.0, **no_copies}, free),
        (f"{name}, longer by each row", {**given, **no_copies}, (*free, WALK_ROW)),
        (f"{name}, longer by each row, after copies for every head", given, (*free, WALK_ROW, *CACHE_COPIES)),
    ]


def _named(part: Part[Attention], name: str, hardware: Hardware, dtype: str, cells: Cells[Attention]) -> Part[Attention]:
    """The part judged on some cells, under a name."""
    if part.problem:
        return replace(part, name=name)
    law = attention_law(hardware, dtype, "split_kv", None if "arithmetic" in part.law else {"attention_flops_fraction": 1.0})
    return judged(replace(part, name=name), lambda inputs: law(part.values, inputs), cells)
