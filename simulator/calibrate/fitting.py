"""From measured cells to coefficients: each part of the cost model fitted in turn, and judged on cells it was not fitted to.

Order: GEMM by type, decode attention, verification attention, whole passes. A later part takes the earlier ones as found. What
cannot be told from the data keeps its assumed value, and the part says why.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from calibration.fit import Candidate, Fit, FitError, Law, Observation, Parameter, choose, fit
from simulator.architecture import ModelArchitecture
from simulator.calibrate.laws import (
    DECODE_PARAMETERS,
    ONE_ROW,
    SMALL_KERNEL,
    SPLIT_PARAMETERS,
    TILES,
    WALK_PARAMETERS,
    WAVE,
    Attention,
    Forward,
    Gemm,
    attention_law,
    forward_law,
    gemm_candidates,
    gemm_forms,
    gemm_law,
    with_coefficients,
    with_row_factors,
)
from simulator.calibrate.parts import Cells, Part, judged
from simulator.cost.roofline import gemm
from simulator.hardware import Hardware
from simulator.number_format import FORMATS
from simulator.serving_engine import AttentionRegime

# A richer form must be better by this part of the error.
_MARGIN = 0.05


# ----------------------------------------------------------------------------------------------------------------- GEMM


def fit_gemm(
    hardware: Hardware, dtype: str, cells: Cells[Gemm], tiles: Sequence[int] = TILES, factors: bool = True
) -> Part[Gemm]:
    """Chooses the form and fits it; then, where they help on shapes left out, factors by rows for what the form misses."""
    part: Part[Gemm] = Part(f"GEMM {dtype}")
    try:
        choice = choose(gemm_candidates(hardware, dtype, tiles), cells.fit, margin=_MARGIN)
    except FitError as error:
        return replace(part, problem=str(error))
    fixed, _ = gemm_forms(tiles)[choice.candidate.name]
    values = {**fixed, **choice.fit.values}
    tried, law, by_rows = list(choice.tried), choice.candidate.name, _one_row(values)
    if factors:
        plain = law.removesuffix(", one row apart")
        table = _with_factors(hardware, dtype, cells.fit, *gemm_forms(tiles)[plain])
        tried.append((f"{plain}, factors by rows", table.error))
        if table.error < dict(choice.tried)[law] * (1 - _MARGIN):  # type: ignore[operator]
            law, values, by_rows = f"{plain}, factors by rows", table.values, table.by_rows
            choice = replace(choice, fit=table.fit)
    part = replace(part, law=law, tried=tuple(tried), fit=choice.fit, values=values, row_factors=by_rows)
    return judged(part, gemm_seconds(_with_gemm(hardware, dtype, values, by_rows), dtype), cells)


def gemm_seconds(hardware: Hardware, dtype: str) -> Callable[[Sequence[Gemm]], list[float]]:
    """The cost model's own GEMM on a device as it stands."""
    size = FORMATS[dtype].bytes
    return lambda cells: [gemm(cell.m, cell.n, cell.k, size, hardware, dtype).seconds for cell in cells]


def _with_gemm(hardware: Hardware, dtype: str, values: Mapping[str, float], by_rows: Mapping[int, float]) -> Hardware:
    return with_row_factors(with_coefficients(hardware, values, dtype), dtype, by_rows)


def _one_row(values: Mapping[str, float]) -> dict[int, float]:
    return {1: values[ONE_ROW], 2: 1.0} if ONE_ROW in values else {}


@dataclass(frozen=True)
class _Table:
    values: dict[str, float]
    fit: Fit
    by_rows: dict[int, float]
    error: float


def _with_factors(
    hardware: Hardware, dtype: str, cells: Sequence[Observation[Gemm]], fixed: dict[str, float], free: Sequence[Parameter]
) -> _Table:
    """The form with factors by rows, and its error on shapes left out: both are found anew without them."""
    law = gemm_law(hardware, dtype, fixed)
    groups = sorted({cell.group for cell in cells})
    sizes: list[float] = []
    for fold in range(min(4, len(groups))):
        out = set(groups[fold::4])
        train = [cell for cell in cells if cell.group not in out]
        test = [cell for cell in cells if cell.group in out]
        found = fit(law, free, train, tolerance=1e-7)
        factors = row_factors(law, found.values, train)
        device = _with_gemm(hardware, dtype, {**fixed, **found.values}, factors)
        predicted = gemm_seconds(device, dtype)([cell.inputs for cell in test])
        sizes += [abs(math.log(value / cell.measured)) for value, cell in zip(predicted, test, strict=True)]
    whole = fit(law, free, cells)
    error = statistics.fmean(sizes) if len(groups) > 1 else math.inf
    return _Table({**fixed, **whole.values}, whole, row_factors(law, whole.values, cells), error)


def row_factors(law: Law[Gemm], values: Mapping[str, float], cells: Sequence[Observation[Gemm]]) -> dict[int, float]:
    """Median over shapes of measured over modelled busy time, at each number of rows measured."""
    overhead = values["gemm_overhead_s"]
    by_rows: dict[int, list[float]] = {}
    for cell, modelled in zip(cells, law(values, [cell.inputs for cell in cells]), strict=True):
        # Where starting takes most of the time, what is left says little about the kernel.
        if cell.measured > 2 * overhead and modelled > overhead:
            by_rows.setdefault(cell.inputs.m, []).append((cell.measured - overhead) / (modelled - overhead))
    return {rows: statistics.median(ratios) for rows, ratios in sorted(by_rows.items())}


# ------------------------------------------------------------------------------------------------------------ attention


def fit_decode(hardware: Hardware, dtype: str, cells: Cells[Attention]) -> Part[Attention]:
    """Decode attention: with and without the time that each sequence × KV-head block takes of its own."""
    law = attention_law(hardware, dtype, "split_kv", {"attention_wave_s": 0.0, "attention_flops_fraction": 1.0})
    without = Candidate("stream", law, DECODE_PARAMETERS)
    with_waves = Candidate(
        "stream and waves of blocks",
        attention_law(hardware, dtype, "split_kv", {"attention_flops_fraction": 1.0}),
        (*DECODE_PARAMETERS, WAVE),
    )
    part: Part[Attention] = Part("decode attention")
    try:
        choice = choose([without, with_waves], cells.fit, margin=_MARGIN)
    except FitError as error:
        return replace(part, problem=str(error))
    values = {"attention_wave_s": 0.0, **choice.fit.values}
    part = replace(part, law=choice.candidate.name, tried=choice.tried, fit=choice.fit, values=values)
    return judged(part, choice.predict, cells)


def fit_verification(
    hardware: Hardware, dtype: str, cells: Cells[Attention]
) -> tuple[AttentionRegime, Part[Attention], Part[Attention]]:
    """(regime that holds here, split-KV part, serial-walk part): both are fitted, since engines may use either kernel."""
    parts: dict[AttentionRegime, Part[Attention]] = {}
    for regime, name, parameters in (
        ("split_kv", "verification, split KV", SPLIT_PARAMETERS),
        ("serial_walk", "verification, serial walk", WALK_PARAMETERS),
    ):
        candidate = Candidate(name, attention_law(hardware, dtype, regime), parameters)  # type: ignore[arg-type]
        part: Part[Attention] = Part(name)
        try:
            choice = choose([candidate], cells.fit)
        except FitError as error:
            parts[regime] = replace(part, problem=str(error))  # type: ignore[index]
            continue
        fitted = replace(part, law=name, tried=choice.tried, fit=choice.fit, values=choice.fit.values)
        parts[regime] = judged(fitted, choice.predict, cells)  # type: ignore[index]
    split, walk = parts["split_kv"], parts["serial_walk"]
    taken: AttentionRegime = "serial_walk" if _error(walk) < _error(split) * (1 - _MARGIN) else "split_kv"
    return taken, split, walk


def _error(part: Part[Attention]) -> float:
    found = [error for _, error in part.tried if isinstance(error, float)]
    return min(found, default=math.inf)


# --------------------------------------------------------------------------------------------------------- whole passes


def fit_forwards(
    hardware: Hardware, dtype: str, regime: AttentionRegime, models: Mapping[str, ModelArchitecture], cells: Cells[Forward]
) -> Part[Forward]:
    """Whole passes: what a small kernel takes, which holds everything that a layer costs beside its matrices and attention."""
    part: Part[Forward] = Part(f"whole forward {dtype}", "parts, and small kernels of equal time")
    law = forward_law(hardware, dtype, regime, models)
    try:
        found = fit(law, (SMALL_KERNEL,), cells.fit)
    except FitError as error:
        return judged(replace(part, problem=str(error)), lambda inputs: law({}, inputs), cells)
    part = replace(part, fit=found, values=found.values)
    return judged(part, lambda inputs: law(found.values, inputs), cells)


def refined_row_factors(
    hardware: Hardware,
    dtype: str,
    regime: AttentionRegime,
    models: Mapping[str, ModelArchitecture],
    cells: Sequence[Observation[Forward]],
) -> dict[int, float]:
    """Row factors as whole passes show them: what is measured beyond all other parts, over the modelled GEMMs' busy time.

    A matrix that is timed alone finds caches and threads as no pass leaves them.
    """
    law = forward_law(hardware, dtype, regime, models)
    table = hardware.profile.gemm_row_factors.get(dtype)
    doubled = with_row_factors(hardware, dtype, {rows: 2 * value for rows, value in table.by_rows.items()} if table else {1: 2.0})
    inputs = [cell.inputs for cell in cells]
    modelled = law({}, inputs)
    # Twice the factors add the GEMMs' busy time once more.
    busy = [twice - once for twice, once in zip(forward_law(doubled, dtype, regime, models)({}, inputs), modelled, strict=True)]
    by_rows: dict[int, list[float]] = {}
    for cell, once, gemms in zip(cells, modelled, busy, strict=True):
        by_rows.setdefault(cell.inputs.batch * cell.inputs.rows, []).append(1 + (cell.measured - once) / gemms)
    known = table.by_rows if table else {}
    found = {rows: max(statistics.median(ratios), 0.1) * (table.at(rows) if table else 1.0) for rows, ratios in by_rows.items()}
    return dict(sorted({**known, **found}.items()))
