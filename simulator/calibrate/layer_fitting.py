"""Whole decoder layers of published tables: one device's four matrices fitted at eight row counts, judged on all else.

Rows between those fitted, the same layer split over 2, 4 and 8 devices, each matrix from the other three, and the ratio
t(b(γ+1))/t(b) of the layer. The split over two devices also chooses: whether factors by rows, which make up what the form misses
of the layer on one device, make the ratio better there too. Four and eight are then seen by nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from calibration.fit import Errors, errors
from calibration.measurement import Measurement
from simulator.calibrate.cells import gemm_cells
from simulator.calibrate.gemm_fitting import fit_gemm, gemm_seconds
from simulator.calibrate.laws import NO_WALK, Gemm, with_coefficients, with_row_factors
from simulator.calibrate.parts import MARGIN, Part, settled
from simulator.hardware import Hardware

# Off the powers of two: 5.3 % held-out error where 1, 8, 32 … 1024 gave 8.5 % (docs/model.md).
LAYER_ROWS = (1, 16, 48, 96, 160, 256, 512, 2048)
MOST_ROWS = 512
CHOOSING_DEVICES = 2
# Seconds by number of devices and rows.
Times = Mapping[tuple[int, int], float]


def fit_layers(
    hardware: Hardware, layers: Sequence[Measurement], dtype: str, tiles: Sequence[int]
) -> tuple[Part[Gemm], Hardware]:
    """GEMM fitted to one device's layer; factors by rows where the layer split over two devices asks for them.

    Its kernels are a software stack of their own: a walk along k that other tables taught is left out, since two values of k
    tell none.
    """
    hardware = with_coefficients(hardware, NO_WALK)
    part = fit_gemm(hardware, dtype, gemm_cells(layers, dtype), tiles=tiles)
    plain = settled(hardware, part, "", dtype, primary=True)
    choosing = [each for each in layers if _devices(each) == CHOOSING_DEVICES]
    if part.problem or not choosing:
        return part, plain
    factors = layer_factors(part, plain, [each for each in layers if each.split == "fit"], dtype)
    named = replace(part, law=f"{part.law}, factors by rows", row_factors=factors)
    factored = settled(hardware, named, "", dtype, primary=True)
    without, with_them = (_ratio_errors(choosing, device, dtype).median for device in (plain, factored))
    tried = (*part.tried, (f"ratio over two devices: {part.law}", without), (f"ratio over two devices: {named.law}", with_them))
    if with_them < without * (1 - MARGIN):
        return replace(named, tried=tried), factored
    return replace(part, tried=tried), plain


def layer_factors(part: Part[Gemm], hardware: Hardware, layers: Sequence[Measurement], dtype: str) -> dict[int, float]:
    """Measured over modelled busy time of the layer, at each number of rows. Its matrices count by the time they take: a step
    that one large matrix has is the layer's."""
    overhead_s = part.values["gemm_overhead_s"]
    bare = gemm_seconds(with_row_factors(hardware, dtype, {}), dtype)
    busy: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for each, modelled_s in zip(layers, bare([_gemm(each) for each in layers]), strict=True):
        sums = busy[int(each.inputs["m"])]
        sums[0] += each.median_s - overhead_s
        sums[1] += modelled_s - overhead_s
    return {rows: measured / modelled for rows, (measured, modelled) in sorted(busy.items()) if min(measured, modelled) > 0}


def judge_layers(layers: Sequence[Measurement], hardware: Hardware, dtype: str, name: str) -> list[tuple[str, Errors]]:
    """Errors of whole layers' sums on rows and splits that were not fitted, and of t(b(γ+1))/t(b)."""
    measured, modelled = _layer_times(layers, hardware, dtype)
    judged = []
    for devices in sorted({place[0] for place in measured}):
        what = f"{name}, {devices} device{'s' if devices > 1 else ''}"
        rows = [m for tp, m in sorted(measured) if tp == devices and (devices > 1 or m not in LAYER_ROWS)]
        judged.append((what, errors([modelled[devices, m] for m in rows], [measured[devices, m] for m in rows])))
        judged.append((f"{what}, ratio", _ratio_errors([each for each in layers if _devices(each) == devices], hardware, dtype)))
    return judged


def leave_one_matrix_out(
    layers: Sequence[Measurement], hardware: Hardware, dtype: str, tiles: Sequence[int]
) -> list[tuple[str, Errors]]:
    """Transfer across kinds of layers: each matrix predicted, up to 512 rows, by a fit to the other three."""
    hardware = with_coefficients(hardware, NO_WALK)
    one_device = [each for each in layers if _devices(each) == 1]
    predicted: list[float] = []
    measured: list[float] = []
    for layer in sorted({str(each.inputs["layer"]) for each in one_device}):
        others = gemm_cells([each for each in one_device if each.inputs["layer"] != layer], dtype)
        part = fit_gemm(hardware, dtype, others, tiles=tiles)
        fitted = settled(hardware, part, "", dtype)
        left = [each for each in one_device if each.inputs["layer"] == layer and int(each.inputs["m"]) <= MOST_ROWS]
        predicted += gemm_seconds(fitted, dtype)([_gemm(each) for each in left])
        measured += [each.median_s for each in left]
    return [("matrices left out", errors(predicted, measured))]


def _ratio_errors(layers: Sequence[Measurement], hardware: Hardware, dtype: str) -> Errors:
    """Errors of t(b(γ+1))/t(b), γ = 1..8 and b up to 64 rows, of layers of which one at least was not fitted."""
    measured, modelled = _layer_times(layers, hardware, dtype)
    fitted = {(1, rows) for rows in LAYER_ROWS}
    pairs = [pair for pair in _widened(measured) if not set(pair) <= fitted]
    wide, found = ([table[a] / table[b] for a, b in pairs] for table in (modelled, measured))
    return errors(wide, found)


def _widened(places: Iterable[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    known = set(places)
    for devices, rows in sorted(known):
        for times in range(2, 10):
            if rows <= 64 and (devices, rows * times) in known:
                yield (devices, rows * times), (devices, rows)


def _layer_times(layers: Sequence[Measurement], hardware: Hardware, dtype: str) -> tuple[Times, Times]:
    """Measured and modelled seconds of whole layers, up to 512 rows."""
    within = [each for each in layers if int(each.inputs["m"]) <= MOST_ROWS]
    measured: dict[tuple[int, int], float] = defaultdict(float)
    modelled: dict[tuple[int, int], float] = defaultdict(float)
    for each, seconds in zip(within, gemm_seconds(hardware, dtype)([_gemm(each) for each in within]), strict=True):
        place = _devices(each), int(each.inputs["m"])
        measured[place] += each.median_s
        modelled[place] += seconds
    return measured, modelled


def _devices(layer: Measurement) -> int:
    return int(layer.inputs.get("tp", 1))


def _gemm(layer: Measurement) -> Gemm:
    m, n, k = (int(layer.inputs[key]) for key in "mnk")
    return Gemm(m, n, k)
