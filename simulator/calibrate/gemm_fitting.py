"""GEMM of one type, fitted: form, tile, waves, one row apart or not, and factors by rows for what the form misses."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from calibration.choice import choose
from calibration.fit import Fit, FitError, Law, Observation, fit
from simulator.calibrate.laws import (
    ONE_ROW,
    TILES,
    Gemm,
    GemmForm,
    gemm_forms,
    poorer_forms,
    with_coefficients,
    with_row_factors,
)
from simulator.calibrate.parts import MARGIN, Cells, Part, judged
from simulator.cost.roofline import gemm
from simulator.hardware import Hardware
from simulator.number_format import FORMATS


def fit_gemm(
    hardware: Hardware, dtype: str, cells: Cells[Gemm], launch_s: float | None = None, tiles: Sequence[int] = TILES
) -> Part[Gemm]:
    """Chooses form and tile, and whether one row stands apart, by errors on shapes left out; then factors by rows for what the
    form misses, where those help on shapes left out too."""
    part: Part[Gemm] = Part(f"GEMM {dtype}")
    start_s = hardware.coefficients.gemm_overhead_s.value if launch_s is None else launch_s
    tried: dict[str, float | str] = {}

    def best(forms: Sequence[GemmForm]) -> GemmForm:
        chosen = choose([form.candidate(hardware, dtype) for form in forms], cells.fit, margin=MARGIN)
        tried.update(chosen.tried)
        return next(form for form in forms if form.name == chosen.candidate.name)

    ordered = sorted(tiles, key=lambda rows: (rows != 64, rows))
    units, depths = hardware.profile.compute_units, len({cell.inputs.k for cell in cells.fit})
    try:
        try:
            if units > 1:
                # Together, since what a last wave leaves empty depends on the tile.
                tiled = best([form.with_tile(rows) for form in gemm_forms(units, depths) for rows in ordered])
                tiled = best([tiled, *tiled.richer(depths)])
            else:
                plain = best(gemm_forms(units, depths))
                tiled = best([plain.with_tile(rows) for rows in ordered])
        except FitError as refusal:
            tried["rich forms"] = str(refusal)
            tiled = best([best(poorer_forms(start_s)).with_tile(rows) for rows in ordered])
        # Without its neighbours one row would stand for all small row counts.
        beside = any(2 <= cell.inputs.m <= 4 for cell in cells.fit)
        form = best([tiled, tiled.with_one_row_apart()]) if beside else tiled
        choice = fit(form.candidate(hardware, dtype).law, form.free, cells.fit)
        table = _with_factors(hardware, dtype, cells.fit, tiled)
    except FitError as error:
        return replace(part, tried=tuple(tried.items()), problem=str(error))
    name = f"{tiled.name}, factors by rows"
    tried[name] = table.error
    law, values, by_rows = form.name, {**form.fixed, **choice.values}, _one_row(choice.values)
    if table.error < tried[form.name] * (1 - MARGIN):  # type: ignore[operator]
        law, values, by_rows, choice = name, table.values, table.by_rows, table.fit
    part = replace(part, law=law, tried=tuple(tried.items()), fit=choice, values=values, row_factors=by_rows)
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


def _with_factors(hardware: Hardware, dtype: str, cells: Sequence[Observation[Gemm]], form: GemmForm) -> _Table:
    """The form with factors by rows, and its error on shapes left out: both are found anew without them."""
    law = form.candidate(hardware, dtype).law
    groups = sorted({cell.group for cell in cells})
    sizes: list[float] = []
    for fold in range(min(4, len(groups))):
        out = set(groups[fold::4])
        train = [cell for cell in cells if cell.group not in out]
        test = [cell for cell in cells if cell.group in out]
        if not train:
            continue
        found = fit(law, form.free, train, tolerance=1e-7)
        factors = row_factors(law, found.values, {**form.fixed, **found.values}["gemm_overhead_s"], train)
        device = _with_gemm(hardware, dtype, {**form.fixed, **found.values}, factors)
        predicted = gemm_seconds(device, dtype)([cell.inputs for cell in test])
        sizes += [abs(math.log(value / cell.measured)) for value, cell in zip(predicted, test, strict=True)]
    whole = fit(law, form.free, cells)
    values = {**form.fixed, **whole.values}
    error = statistics.fmean(sizes) if sizes else math.inf
    return _Table(values, whole, row_factors(law, whole.values, values["gemm_overhead_s"], cells), error)


def row_factors(
    law: Law[Gemm], values: Mapping[str, float], overhead: float, cells: Sequence[Observation[Gemm]]
) -> dict[int, float]:
    """Median over shapes of measured over modelled busy time, at each number of rows measured."""
    by_rows: dict[int, list[float]] = {}
    for cell, modelled in zip(cells, law(values, [cell.inputs for cell in cells]), strict=True):
        # Where starting takes most of the time, what is left says little about the kernel.
        if cell.measured > 2 * overhead and modelled > overhead:
            by_rows.setdefault(cell.inputs.m, []).append((cell.measured - overhead) / (modelled - overhead))
    return {rows: statistics.median(ratios) for rows, ratios in sorted(by_rows.items())}
