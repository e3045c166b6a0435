"""Attention and whole passes, fitted and judged on cells that were not; GEMM is fitted in `gemm_fitting`.

A later part takes the earlier ones as found. What
cannot be told from the data keeps its assumed value, and the part says why.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from calibration.fit import Candidate, FitError, Observation, Parameter, choose, fit
from simulator.architecture import ModelArchitecture
from simulator.calibrate.laws import (
    ATTENTION_FLOPS,
    DECODE_PARAMETERS,
    HOST_LAUNCH,
    SMALL_KERNEL,
    WALK_PARAMETERS,
    WAVE,
    Attention,
    Forward,
    attention_law,
    forward_law,
    with_coefficients,
    with_row_factors,
)
from simulator.calibrate.parts import MARGIN, Cells, Part, judged
from simulator.hardware import Hardware, RowFactors
from simulator.serving_engine import AttentionRegime

# Moving a coefficient that its own part has fitted must pay more than a richer form.
_MOVING_MARGIN = 0.25


# ------------------------------------------------------------------------------------------------------------ attention


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
    """Verification in which each block of 64 query rows walks its whole cache alone; where one batch was measured, so that the
    kernel's start cannot be told from the blocks', with the start of decode attention."""
    part: Part[Attention] = Part("verification attention, serial walk")
    start = {"walk_overhead_s": hardware.coefficients.attention_overhead_s.value}
    tried: list[tuple[str, float | str]] = []
    for name, fixed, free in (
        ("serial walk", {}, WALK_PARAMETERS),
        ("serial walk from decode's start", start, WALK_PARAMETERS[1:]),
    ):
        law = attention_law(hardware, dtype, "serial_walk", fixed)
        try:
            found = fit(law, free, cells.fit)
        except FitError as error:
            tried.append((name, str(error)))
            continue
        part = replace(part, law=name, tried=tuple(tried), fit=found, values={**fixed, **found.values})
        return judged(part, partial(law, found.values), cells)
    return replace(part, tried=tuple(tried), problem=str(tried[-1][1]))


def _named(part: Part[Attention], name: str, hardware: Hardware, dtype: str, cells: Cells[Attention]) -> Part[Attention]:
    """The part judged on some cells, under a name."""
    if part.problem:
        return replace(part, name=name)
    law = attention_law(hardware, dtype, "split_kv", None if "arithmetic" in part.law else {"attention_flops_fraction": 1.0})
    return judged(replace(part, name=name), lambda inputs: law(part.values, inputs), cells)


# --------------------------------------------------------------------------------------------------------- whole passes

Models = Mapping[str, ModelArchitecture]


def fit_forwards(hardware: Hardware, dtype: str, regime: AttentionRegime, models: Models, cells: Cells[Forward]) -> Part[Forward]:
    """Whole passes: what a small kernel takes, and with it all that a layer costs beside matrices and attention; where it helps,
    also the cache's bandwidth as passes show it, which may copy the cache before they read it."""
    law = forward_law(hardware, dtype, regime, models)
    name = "matrices, attention, small kernels of equal time"
    small = Candidate(name, law, (SMALL_KERNEL,))
    cache = Candidate(f"{name}, the cache's bandwidth of passes", law, (SMALL_KERNEL, DECODE_PARAMETERS[1]))
    part: Part[Forward] = Part("whole forward")
    try:
        choice = choose([small, cache], cells.fit, margin=_MOVING_MARGIN)
    except FitError as error:
        return judged(replace(part, problem=str(error)), lambda inputs: law({}, inputs), cells)
    part = replace(part, law=choice.candidate.name, tried=choice.tried, fit=choice.fit, values=choice.fit.values)
    return judged(part, choice.predict, cells)


def fit_launches(hardware: Hardware, dtype: str, regime: AttentionRegime, models: Models, cells: Cells[Forward]) -> Part[Forward]:
    """Passes that a host launches kernel by kernel: the longer of the device's time and layers × the host's time for one."""
    part: Part[Forward] = Part("whole forward", "as above, or the host's launches where they take longer")
    law = forward_law(hardware, dtype, regime, models)
    try:
        found = fit(law, (HOST_LAUNCH,), cells.fit)
    except FitError as error:
        return judged(replace(part, problem=str(error)), lambda inputs: law({}, inputs), cells)
    return judged(replace(part, fit=found, values=found.values), lambda inputs: law(found.values, inputs), cells)


def refined(
    hardware: Hardware, dtype: str, regime: AttentionRegime, models: Models, cells: Cells[Forward]
) -> Part[Forward] | None:
    """Row factors as whole passes show them, where they predict passes of other row counts better.

    A matrix that is timed alone finds caches and threads as no pass leaves them.
    """
    law = forward_law(hardware, dtype, regime, models)

    def rows(cell: Observation[Forward]) -> int:
        return cell.inputs.batch * cell.inputs.rows

    several = sorted({rows(cell) for cell in cells.fit} - {1})
    if len(several) < 3:
        return None
    before: list[float] = []
    after: list[float] = []
    for out in several:
        # One row is a kernel of its own, which others say nothing about.
        test = [cell for cell in cells.fit if rows(cell) == out]
        factors = pass_row_factors(hardware, dtype, regime, models, [cell for cell in cells.fit if rows(cell) != out])
        better = forward_law(with_row_factors(hardware, dtype, factors), dtype, regime, models)
        for each, sizes in ((law, before), (better, after)):
            predicted = each({}, [cell.inputs for cell in test])
            sizes += [abs(math.log(value / cell.measured)) for value, cell in zip(predicted, test, strict=True)]
    old, new = statistics.fmean(before), statistics.fmean(after)
    if new > old * (1 - MARGIN):
        return None
    factors = pass_row_factors(hardware, dtype, regime, models, cells.fit)
    better = forward_law(with_row_factors(hardware, dtype, factors), dtype, regime, models)
    name = "matrices with factors by rows of whole passes, attention, small kernels"
    tried = (("factors by rows of single matrices", old), ("of whole passes", new))
    return judged(Part("whole forward", name, tried, row_factors=factors), lambda inputs: better({}, inputs), cells)


def pass_row_factors(
    hardware: Hardware, dtype: str, regime: AttentionRegime, models: Models, cells: Sequence[Observation[Forward]]
) -> dict[int, float]:
    """Factors that make the matrices' busy time what is left of a pass beside all other parts; median over equal rows."""
    table = hardware.profile.gemm_row_factors.get(dtype)
    knots = dict(table.by_rows) if table else {1: 1.0}
    twice_as_long = with_row_factors(hardware, dtype, {rows: 2 * value for rows, value in knots.items()})
    inputs = [cell.inputs for cell in cells]
    once = forward_law(hardware, dtype, regime, models)({}, inputs)
    # Doubled factors add the matrices' busy time once more.
    twice = forward_law(twice_as_long, dtype, regime, models)({}, inputs)
    by_rows: dict[int, list[float]] = {}
    for cell, short, long in zip(cells, once, twice, strict=True):
        share = (cell.measured - short) / (long - short)
        by_rows.setdefault(cell.inputs.batch * cell.inputs.rows, []).append(max(1 + share, 0.1))
    corrections = {rows: statistics.median(found) for rows, found in sorted(by_rows.items())}
    correction = RowFactors.model_construct(source="fitted", by_rows=corrections)
    # Row counts that no pass had are corrected as their neighbours.
    return {rows: correction.at(rows) * (table.at(rows) if table else 1.0) for rows in sorted({*corrections, *knots})}
