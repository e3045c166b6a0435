"""One fitted part of the cost model: its coefficients, how far it is off on cells it was not fitted to, what is doubted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import numpy as np

from calibration.fit import Errors, Fit, Observation, errors
from simulator.calibrate.laws import ONE_ROW, with_coefficients, with_row_factors
from simulator.hardware import Hardware, Quantity

T = TypeVar("T")
# A richer form must be better by this part of the error on what is left out.
MARGIN = 0.05
# Fixed times are told from the shortest cells alone, whose law is the crudest.
_TIME_DOUBT = 2.0
_TILE_DOUBT = 0.04


@dataclass(frozen=True)
class Part(Generic[T]):
    """One fitted part. name: as reports print it. law: the form taken. tried: every form with its error on groups left out.
    values: the coefficients by name, and `fit` what is known of them; problem: why nothing was fitted, else ""."""

    name: str
    law: str = ""
    tried: tuple[tuple[str, float | str], ...] = ()
    fit: Fit | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    row_factors: Mapping[int, float] = field(default_factory=dict)
    fitted: Errors | None = None
    held_out: Errors | None = None
    worst: str = ""
    noise: float | None = None
    problem: str = ""


@dataclass(frozen=True)
class Cells(Generic[T]):
    """What a part is fitted to and judged on. again: cells of `fit` measured a second time on their own. noise: of the
    measurement itself, half the difference of two halves of the repetitions, median over cells."""

    fit: Sequence[Observation[T]]
    held_out: Sequence[Observation[T]]
    again: Sequence[Observation[T]] = ()
    noise: float | None = None


def judged(part: Part[T], predict: Callable[[Sequence[T]], Sequence[float]], cells: Cells[T]) -> Part[T]:
    """The part with its errors on what it was fitted to and on what it was not."""

    def of(observations: Sequence[Observation[T]]) -> Errors | None:
        if not observations:
            return None
        return errors(predict([each.inputs for each in observations]), [each.measured for each in observations])

    held_out = of(cells.held_out)
    worst = shown(cells.held_out[held_out.worst_at].inputs) if held_out else ""
    return replace(part, fitted=of(cells.fit), held_out=held_out, worst=worst, noise=cells.noise)


def shown(cell: object) -> str:
    """A cell in words, without what is zero: ``m 8, n 4096, k 4096``."""
    found = ((name.replace("_", " "), getattr(cell, name)) for name in getattr(cell, "_fields", ()))
    return ", ".join(f"{name} {value}" for name, value in found if value)


def doubts(part: Part[T], names: Sequence[str]) -> dict[str, float]:
    """Relative standard deviation of each coefficient: its interval's, at least the median error of its law on held-out cells."""
    floor = max(0.04, part.held_out.median if part.held_out else part.fitted.median if part.fitted else 0.1)
    found = {}
    for name in names:
        value = part.values[name]
        own = part.fit.std(name) / value if part.fit and name in part.fit.names and value > 0 else 0.0
        found[name] = round(min(max(own, floor * (_TIME_DOUBT if name.endswith("_s") else 1.0)), 0.5), 3)
        if name.endswith("_tile_rows"):
            found[name] = _TILE_DOUBT  # one of a list, not a size in between
    return found


def settled(hardware: Hardware, part: Part[T], note: str, dtype: str | None = None, primary: bool = True) -> Hardware:
    """`hardware` with the part's coefficients. Those of a type other than the primary one become the type's own."""
    for name, doubt in doubts(part, [name for name in part.values if name != ONE_ROW]).items():
        origin = Quantity(value=0.0, source="fitted", note=note, relative_std=doubt)
        own = dtype if dtype is not None and (not primary or name == "flops_fraction") else None
        hardware = with_coefficients(hardware, {name: rounded(part.values[name])}, own, origin)
    if dtype is not None:
        factors = {rows: rounded(value) for rows, value in part.row_factors.items()}
        doubt = max(0.02, round(part.held_out.median / 2, 3)) if part.held_out else 0.05
        hardware = with_row_factors(hardware, dtype, factors, note, doubt)
    return hardware


def rounded(value: float) -> float:
    """To three significant digits: more than a fit knows, and the same on every machine."""
    return float(f"{value:.3g}")


@dataclass(frozen=True)
class RatioRow:
    """Errors of t(b(γ+1))/t(b), γ = 1..8 and b up to 64 rows, which is what decides speculation; and where the worst is."""

    name: str
    errors: Errors
    worst: str


def ratio_row(
    name: str,
    cells: Cells[T],
    predict: Callable[[Sequence[T]], Sequence[float]],
    widened: Callable[[T], tuple[object, int]],
) -> list[RatioRow]:
    """The row, over pairs of cells of which one at least was not fitted; none where no two cells differ in rows alone. widened: a
    cell's (everything but its rows, rows)."""
    by_key: dict[object, dict[int, tuple[Observation[T], bool]]] = {}
    for observations, judges in ((cells.fit, False), (cells.held_out, True)):
        for each in observations:
            key, rows = widened(each.inputs)
            by_key.setdefault(key, {})[rows] = each, judges
    pairs = [
        (found[rows * times][0], found[rows][0])
        for found in by_key.values()
        for rows in sorted(found)
        for times in range(2, 10)
        if rows <= 64 and rows * times in found and (found[rows * times][1] or found[rows][1])
    ]
    if not pairs:
        return []
    wide, narrow = (np.asarray(predict([pair[side].inputs for pair in pairs]), float) for side in (0, 1))
    found_errors = errors((wide / narrow).tolist(), [pair[0].measured / pair[1].measured for pair in pairs])
    return [RatioRow(name, found_errors, shown(pairs[found_errors.worst_at][0].inputs))]
