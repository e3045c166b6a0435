"""Whole passes, fitted and judged on cells that were not: small kernels, and what matrices take by rows as a real pass has them.

Small rows follow no law closely: CPU kernels of three rows may take longer than those of four. Passes of the main model at one
batch and context were therefore measured at each number of rows, and where that series predicts its own other repetitions and
the other passes better than the smooth law does, factors by rows are taken from it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from calibration.choice import Candidate, choose
from calibration.fit import FitError, Law, Observation, Parameter, fit
from simulator.architecture import ModelArchitecture
from simulator.calibrate.laws import (
    DECODE_PARAMETERS,
    HOST_LAUNCH,
    SMALL_KERNEL,
    Forward,
    forward_law,
    with_coefficients,
    with_row_factors,
)
from simulator.calibrate.parts import Cells, Part, judged
from simulator.hardware import Hardware, RowFactors
from simulator.kernel_switches import AttentionRegime

# Moving a coefficient that its own part has fitted must pay more than a richer form.
_MOVING_MARGIN = 0.25
_SMALL = "matrices, attention, small kernels of equal time"
_BY_ROWS = "matrices with factors by rows of passes, attention, small kernels"
_FORMS: tuple[tuple[str, tuple[Parameter, ...]], ...] = (
    ("", (SMALL_KERNEL,)),
    (", the cache's bandwidth of passes", (SMALL_KERNEL, DECODE_PARAMETERS[1])),
)
Observations = Sequence[Observation[Forward]]


@dataclass(frozen=True)
class RowSeries:
    """Passes of one model that differ in rows alone; and the same by half of their repetitions each."""

    whole: Observations
    first: Observations
    second: Observations


@dataclass(frozen=True)
class PassModel:
    """What passes are priced with: the device as known so far, stored type, kernel of verification, models by name."""

    hardware: Hardware
    dtype: str
    regime: AttentionRegime
    models: Mapping[str, ModelArchitecture]

    @property
    def law(self) -> Law[Forward]:
        return forward_law(self.hardware, self.dtype, self.regime, self.models)

    def having(self, values: Mapping[str, float]) -> PassModel:
        return replace(self, hardware=with_coefficients(self.hardware, values))

    def by_rows(self, factors: Mapping[int, float]) -> PassModel:
        return replace(self, hardware=with_row_factors(self.hardware, self.dtype, factors))

    def law_through(self, series: Observations) -> Law[Forward]:
        """The law whose row factors make the passes of `series` come out as measured, whatever the coefficients."""

        def law(values: Mapping[str, float], inputs: Sequence[Forward]) -> Sequence[float]:
            device = self.having(values)
            return device.by_rows(row_factors(device, series)).law({}, inputs)

        return law


def fit_passes(model: PassModel, cells: Cells[Forward], series: RowSeries | None) -> Part[Forward]:
    """What a small kernel takes, and with it all that a layer costs beside matrices and attention; where it helps, also the
    cache's bandwidth as passes show it, which may copy the cache before they read it; and factors by rows where `series`
    tells better than the law."""
    part: Part[Forward] = Part("whole forward")
    free: tuple[Parameter, ...] = ()
    candidates = [Candidate(f"{_SMALL}{more}", model.law, free) for more, free in _FORMS]
    try:
        smooth = choose(candidates, cells.fit, margin=_MOVING_MARGIN)
    except FitError as error:
        part = replace(part, problem=str(error))
    else:
        free = smooth.candidate.parameters
        part = replace(part, law=smooth.candidate.name, tried=smooth.tried, fit=smooth.fit, values=smooth.fit.values)
    if series is not None and series.first and series.second:
        part = _by_rows(model, part, free, cells, series)
    found = model.having(part.values)
    return judged(part, lambda inputs: (found.by_rows(part.row_factors) if part.row_factors else found).law({}, inputs), cells)


def _by_rows(
    model: PassModel, part: Part[Forward], free: tuple[Parameter, ...], cells: Cells[Forward], series: RowSeries
) -> Part[Forward]:
    """The part with factors by rows, if those found from half of the series' repetitions err less on the other half and on the
    passes beside it than the part's law (of the parameters `free`) does."""
    of_series = {each.inputs for each in series.whole}
    others = [each for each in cells.fit if each.inputs not in of_series]
    judges = [*series.second, *others]
    tried = list(part.tried)
    smooth_error = math.inf
    if free:
        # Half of the repetitions may leave open what all of them tell.
        found = _values(model.law, free, [*series.first, *others], tolerance=1e-7)
        smooth_error = _mean_error(partial(model.law, found), judges)
        tried.append((f"{part.law}, on other repetitions", smooth_error))
    best, best_error = _FORMS[0], math.inf
    for more, parameters in _FORMS:
        law = model.law_through(series.first)
        error = _mean_error(partial(law, _values(law, parameters, others)), judges)
        tried.append((f"{_BY_ROWS}{more}, on other repetitions", error))
        if error < best_error * (1 - _MOVING_MARGIN):
            best, best_error = (more, parameters), error
    part = replace(part, tried=tuple(tried))
    if best_error >= smooth_error:
        return part
    law = model.law_through(series.whole)
    values = _values(law, best[1], others)
    factors = row_factors(model.having(values), series.whole)
    # Where nothing beside the series was measured, small kernels keep the time that was assumed for them.
    known = fit(law, best[1], others) if values else None
    return replace(part, law=f"{_BY_ROWS}{best[0]}", fit=known, values=values, row_factors=factors, problem="")


def _values(
    law: Law[Forward], parameters: tuple[Parameter, ...], cells: Observations, tolerance: float = 1e-10
) -> dict[str, float]:
    """The parameters as `cells` have them; none where they cannot tell."""
    try:
        return fit(law, parameters, cells, tolerance=tolerance).values
    except FitError:
        return {}


def _mean_error(predict: Callable[[Sequence[Forward]], Sequence[float]], cells: Observations) -> float:
    predicted = predict([cell.inputs for cell in cells])
    return statistics.fmean(abs(math.log(value / cell.measured)) for value, cell in zip(predicted, cells, strict=True))


def row_factors(model: PassModel, series: Observations) -> dict[int, float]:
    """Factors that make the matrices' busy time what is left of a pass beside all other parts."""
    table = model.hardware.profile.gemm_row_factors.get(model.dtype)
    knots = dict(table.by_rows) if table else {1: 1.0}
    inputs = [cell.inputs for cell in series]
    once = model.law({}, inputs)
    # Doubled factors add the matrices' busy time once more.
    twice = model.by_rows({rows: 2 * value for rows, value in knots.items()}).law({}, inputs)
    corrections = {
        cell.inputs.batch * cell.inputs.rows: max(1 + (cell.measured - short) / (long - short), 0.1)
        for cell, short, long in zip(series, once, twice, strict=True)
    }
    correction = RowFactors.model_construct(source="fitted", by_rows=dict(sorted(corrections.items())))
    # Row counts that the series lacks are corrected as their neighbours.
    return {rows: correction.at(rows) * (table.at(rows) if table else 1.0) for rows in sorted({*corrections, *knots})}


def fit_launches(model: PassModel, cells: Cells[Forward]) -> Part[Forward]:
    """Passes that a host launches kernel by kernel: the longer of the device's time and layers × the host's time for one."""
    part: Part[Forward] = Part("whole forward", "as above, or the host's launches where they take longer")
    try:
        found = fit(model.law, (HOST_LAUNCH,), cells.fit)
    except FitError as error:
        return judged(replace(part, problem=str(error)), partial(model.law, {}), cells)
    return judged(replace(part, fit=found, values=found.values), partial(model.law, found.values), cells)
