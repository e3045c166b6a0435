"""Laws of fitting: certified answers are reproduced, known coefficients recovered, and what the data cannot tell is refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from calibration.choice import Candidate, choose
from calibration.fit import FitError, Observation, Parameter, UnidentifiableError, errors, fit


@dataclass(frozen=True)
class Certified:
    """A problem of the NIST Statistical Reference Datasets, nonlinear regression (https://www.itl.nist.gov/div898/strd/nls/nls_main.shtml):
    model, its two starts, certified parameters, their standard deviations, and residual sum of squares."""

    model: Callable[..., float]
    starts: tuple[tuple[float, ...], ...]
    values: tuple[float, ...]
    stds: tuple[float, ...]
    sum_of_squares: float
    x: tuple[float, ...]
    y: tuple[float, ...]


NIST = {
    # Misra, D., NIST (1978), dental research monomolecular adsorption study.
    "Misra1a": Certified(
        lambda x, b1, b2: b1 * (1 - math.exp(-b2 * x)),
        ((500, 1e-4), (250, 5e-4)),
        (2.3894212918e02, 5.5015643181e-04),
        (2.7070075241e00, 7.2668688436e-06),
        1.2455138894e-01,
        (77.6, 114.9, 141.1, 190.8, 239.9, 289.0, 332.8, 378.4, 434.8, 477.3, 536.8, 593.1, 689.1, 760.0),
        (10.07, 14.73, 17.94, 23.93, 29.61, 35.18, 40.02, 44.82, 50.76, 55.05, 61.01, 66.40, 75.47, 81.78),
    ),
    # Box, Hunter and Hunter (1978), Statistics for Experimenters, p. 483.
    "BoxBOD": Certified(
        lambda x, b1, b2: b1 * (1 - math.exp(-b2 * x)),
        ((100, 0.75),),
        (2.1380940889e02, 5.4723748542e-01),
        (1.2354515176e01, 1.0455993237e-01),
        1.1680088766e03,
        (1, 2, 3, 5, 7, 10),
        (109, 149, 149, 191, 213, 224),
    ),
    # Ratkowsky (1983), Nonlinear Regression Modeling, p. 62.
    "Rat43": Certified(
        lambda x, b1, b2, b3, b4: b1 / (1 + math.exp(b2 - b3 * x)) ** (1 / b4),
        ((100, 10, 1, 1), (700, 5, 0.75, 1.3)),
        (6.9964151270e02, 5.2771253025e00, 7.5962938329e-01, 1.2792483859e00),
        (1.6302297817e01, 2.0828735829e00, 1.9566123451e-01, 6.8761936385e-01),
        8.7864049080e03,
        tuple(range(1, 16)),
        (16.08, 33.83, 65.80, 97.20, 191.55, 326.20, 386.87, 520.53, 590.03, 651.92, 724.93, 699.56, 689.96, 637.56, 717.41),
    ),
    # Kowalik and Osborne (1978), Methods for Unconstrained Optimization Problems; generated data.
    "MGH09": Certified(
        lambda x, b1, b2, b3, b4: b1 * (x * x + x * b2) / (x * x + x * b3 + b4),
        ((0.25, 0.39, 0.415, 0.39),),
        (1.9280693458e-01, 1.9128232873e-01, 1.2305650693e-01, 1.3606233068e-01),
        (1.1435312227e-02, 1.9633220911e-01, 8.0842031232e-02, 9.0025542308e-02),
        3.0750560385e-04,
        (4.0, 2.0, 1.0, 0.5, 0.25, 0.167, 0.125, 0.1, 0.0833, 0.0714, 0.0625),
        (0.1957, 0.1947, 0.1735, 0.1600, 0.0844, 0.0627, 0.0456, 0.0342, 0.0323, 0.0235, 0.0246),
    ),
    # Roszman, L., NIST, quantum defects for sulfur I atom.
    "Roszman1": Certified(
        lambda x, b1, b2, b3, b4: b1 - b2 * x - math.atan(b3 / (x - b4)) / math.pi,
        ((0.1, -1e-5, 1000, -100), (0.2, -5e-6, 1200, -150)),
        (2.0196866396e-01, -6.1953516256e-06, 1.2044556708e03, -1.8134269537e02),
        (1.9172666023e-02, 3.2058931691e-06, 7.4050983057e01, 4.9573513849e01),
        4.9484847331e-04,
        (-4868.68, -4868.09, -4867.41, -3375.19, -3373.14, -3372.03, -2473.74, -2472.35, -2469.45, -1894.65, -1893.40, -1497.24,
         -1495.85, -1493.41, -1208.68, -1206.18, -1206.04, -997.92, -996.61, -996.31, -834.94, -834.66, -710.03, -530.16, -464.17),
        (0.252429, 0.252141, 0.251809, 0.297989, 0.296257, 0.295319, 0.339603, 0.337731, 0.333820, 0.389510, 0.386998, 0.438864,
         0.434887, 0.427893, 0.471568, 0.461699, 0.461144, 0.513532, 0.506641, 0.505062, 0.535648, 0.533726, 0.568064, 0.612886,
         0.624169),
    ),
    # Thurber, R., NIST (1979), semiconductor electron mobility modeling.
    "Thurber": Certified(
        lambda x, b1, b2, b3, b4, b5, b6, b7: (b1 + b2 * x + b3 * x**2 + b4 * x**3) / (1 + b5 * x + b6 * x**2 + b7 * x**3),
        ((1000, 1000, 400, 40, 0.7, 0.3, 0.03), (1300, 1500, 500, 75, 1, 0.4, 0.05)),
        (1.2881396800e03, 1.4910792535e03, 5.8323836877e02, 7.5416644291e01, 9.6629502864e-01, 3.9797285797e-01, 4.9727297349e-02),
        (4.6647963344e00, 3.9571156086e01, 2.8698696102e01, 5.5675370270e00, 3.1333340687e-02, 1.4984928198e-02, 6.5842344623e-03),
        5.6427082397e03,
        (-3.067, -2.981, -2.921, -2.912, -2.840, -2.797, -2.702, -2.699, -2.633, -2.481, -2.363, -2.322, -1.501, -1.460, -1.274,
         -1.212, -1.100, -1.046, -0.915, -0.714, -0.566, -0.545, -0.400, -0.309, -0.109, -0.103, 0.010, 0.119, 0.377, 0.790, 0.963,
         1.006, 1.115, 1.572, 1.841, 2.047, 2.200),
        (80.574, 84.248, 87.264, 87.195, 89.076, 89.608, 89.868, 90.101, 92.405, 95.854, 100.696, 101.060, 401.672, 390.724, 567.534,
         635.316, 733.054, 759.087, 894.206, 990.785, 1090.109, 1080.914, 1122.643, 1178.351, 1260.531, 1273.514, 1288.339, 1327.543,
         1353.863, 1414.509, 1425.208, 1421.384, 1442.962, 1464.350, 1468.705, 1447.894, 1457.628),
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "start"), [(name, start) for name, problem in NIST.items() for start in range(len(problem.starts))]
)
def test_certified_reference_fits_are_reproduced(name: str, start: int) -> None:
    problem = NIST[name]
    names = [f"b{index + 1}" for index in range(len(problem.values))]
    found = fit(
        lambda values, xs: [problem.model(x, **values) for x in xs],
        [Parameter(each, value) for each, value in zip(names, problem.starts[start], strict=True)],
        [Observation(x, y) for x, y in zip(problem.x, problem.y, strict=True)],
        relative=False,
        robust=False,
        tolerance=1e-14,
    )
    assert found.vector == pytest.approx(problem.values, rel=1e-6)
    assert [found.std(each) for each in names] == pytest.approx(problem.stds, rel=1e-4)
    assert found.sum_of_squares == pytest.approx(problem.sum_of_squares, rel=1e-8)


# ------------------------------------------------------------------------------------------------------- a law of this project

GEMM = (
    Parameter("overhead_s", 3e-6, 0, 20e-6),
    Parameter("bandwidth_fraction", 0.8, 0.3, 0.99),
    Parameter("flops_fraction", 0.65, 0.2, 1.0),
    Parameter("smoothness", 3.0, 1.0, 8.0),
)
TRUTH = {"overhead_s": 4e-6, "bandwidth_fraction": 0.85, "flops_fraction": 0.7, "smoothness": 2.5}
Shape = tuple[int, int, int]


def gemm_s(values: Mapping[str, float], shapes: Sequence[Shape]) -> list[float]:
    """t0 + [(bytes/BW)^p + (flops/F)^p]^(1/p) of a device with 2 TB/s and 400 TFLOP/s."""
    p = values["smoothness"]
    return [
        values["overhead_s"]
        + (
            ((2 * n * k + 2 * m * (n + k)) / (2e12 * values["bandwidth_fraction"])) ** p
            + (2 * m * n * k / (4e14 * values["flops_fraction"])) ** p
        )
        ** (1 / p)
        for m, n, k in shapes
    ]


def measured(shapes: Sequence[Shape], noise: float, stray: int = 0) -> list[Observation[Shape]]:
    """Times of the true law with log-normal noise; every `stray`-th three times too long."""
    draws = np.random.default_rng([7, *b"noise"]).normal(0, noise, len(shapes))
    times = gemm_s(TRUTH, shapes)
    return [
        Observation(shape, seconds * math.exp(draw) * (3.0 if stray and index % stray == 3 else 1.0), f"{shape[1]}x{shape[2]}")
        for index, (shape, seconds, draw) in enumerate(zip(shapes, times, draws, strict=True))
    ]


ROWS = (1, 2, 4, 8, 16, 48, 96, 160, 256, 512, 1024, 2048)
SIZES = (
    (4096, 4096),
    (1024, 4096),
    (6144, 4096),
    (28672, 4096),
    (4096, 14336),
    (2048, 2048),
    (8192, 8192),
    (1536, 1536),
    (512, 4096),
    (12288, 4096),
)
DESIGN = [(m, n, k) for n, k in SIZES for m in ROWS]


@pytest.mark.parametrize("stray", [0, 20])
def test_known_coefficients_are_recovered_from_noisy_times(stray: int) -> None:
    """5 % noise, and with it one measurement in twenty that took three times as long."""
    found = fit(gemm_s, GEMM, measured(DESIGN, 0.05, stray))
    assert found.values["bandwidth_fraction"] == pytest.approx(TRUTH["bandwidth_fraction"], rel=0.03)
    assert found.values["flops_fraction"] == pytest.approx(TRUTH["flops_fraction"], rel=0.03)
    assert found.values["overhead_s"] == pytest.approx(TRUTH["overhead_s"], abs=0.3e-6)
    for name, value in TRUTH.items():
        low, high = found.interval(name)
        spread = high - low
        assert low - spread < value < high + spread


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """80 % of 60 draws: between 68 % and 92 % at two standard errors and a little more."""
    inside = 0
    for seed in range(60):
        draws = np.random.default_rng([seed, *b"coverage"]).normal(0, 0.05, len(DESIGN))
        times = gemm_s(TRUTH, DESIGN)
        data = [Observation(s, t * math.exp(d)) for s, t, d in zip(DESIGN, times, draws, strict=True)]
        low, high = fit(gemm_s, GEMM, data, tolerance=1e-7).interval("bandwidth_fraction", 0.80)
        inside += low < TRUTH["bandwidth_fraction"] < high
    assert 0.68 <= inside / 60 <= 0.92


def test_errors_shared_by_a_group_widen_the_interval() -> None:
    """Each shape 10 % off as a whole: twelve times of one shape are no twelve independent measurements."""
    offsets = dict(zip(SIZES, np.random.default_rng([3, *b"shapes"]).normal(0, 0.10, len(SIZES)), strict=True))
    times = gemm_s(TRUTH, DESIGN)
    together = [Observation(s, t * math.exp(offsets[s[1:]]), f"{s[1]}x{s[2]}") for s, t in zip(DESIGN, times, strict=True)]
    apart = [Observation(each.inputs, each.measured, "") for each in together]
    assert fit(gemm_s, GEMM, together).std("bandwidth_fraction") > 1.5 * fit(gemm_s, GEMM, apart).std("bandwidth_fraction")


@pytest.mark.parametrize(
    ("shapes", "named"),
    [
        # One weight size, all memory-bound: a longer start and a faster stream look alike.
        ([(m, 4096, 4096) for m in (1, 1, 2, 2, 3, 3, 4, 4)], {"overhead_s", "bandwidth_fraction"}),
        # Never bound by arithmetic: nothing speaks about its rate.
        ([(1, n, k) for n, k in SIZES], {"flops_fraction", "smoothness"}),
    ],
)
def test_what_the_data_cannot_tell_is_refused_by_name(shapes: list[Shape], named: set[str]) -> None:
    with pytest.raises(UnidentifiableError) as refused:
        fit(gemm_s, GEMM, measured(shapes, 0.02))
    assert set(refused.value.parameters) & named
    assert any(name in str(refused.value) for name in named)


def test_a_parameter_that_moves_nothing_is_refused() -> None:
    with pytest.raises(UnidentifiableError, match="none of the 120 measurements depends on spare"):
        fit(gemm_s, (*GEMM, Parameter("spare", 1.0, 0.0, 2.0)), measured(DESIGN, 0.05))


def test_fewer_measurements_than_coefficients_are_refused() -> None:
    with pytest.raises(FitError, match="4 measurements cannot determine 4 coefficients"):
        fit(gemm_s, GEMM, measured(DESIGN[:4], 0.01))


# --------------------------------------------------------------------------------------------------------------- choosing


def _sum(values: Mapping[str, float], shapes: Sequence[Shape]) -> list[float]:
    return gemm_s({**values, "smoothness": 1.0}, shapes)


SUM, SMOOTH = Candidate("sum", _sum, GEMM[:3]), Candidate("smooth maximum", gemm_s, GEMM)


def test_the_law_that_made_the_data_is_chosen() -> None:
    chosen = choose([SUM, SMOOTH], measured(DESIGN, 0.05))
    assert chosen.candidate is SMOOTH
    tried = dict(chosen.tried)
    assert tried["smooth maximum"] == pytest.approx(0.04, abs=0.01)
    assert tried["sum"] > 1.3 * tried["smooth maximum"]


def test_a_richer_law_that_predicts_no_better_is_left() -> None:
    data = [Observation(s, t, f"{s[1]}") for s, t in zip(DESIGN, _sum(TRUTH, DESIGN), strict=True)]
    noise = np.random.default_rng([5, *b"sum"]).normal(0, 0.05, len(data))
    noisy = [Observation(o.inputs, o.measured * math.exp(e), o.group) for o, e in zip(data, noise, strict=True)]
    assert choose([SUM, SMOOTH], noisy).candidate is SUM


def test_a_candidate_that_cannot_be_told_is_passed_over_and_says_so() -> None:
    spare = Candidate("spare", gemm_s, (*GEMM, Parameter("spare", 1.0, 0.0, 2.0)))
    chosen = choose([SUM, spare], measured(DESIGN, 0.05))
    assert chosen.candidate is SUM
    assert "depends on spare" in str(dict(chosen.tried)["spare"])
    with pytest.raises(FitError, match="spare"):
        choose([spare], measured(DESIGN, 0.05))


def test_errors_name_the_worst_case() -> None:
    found = errors([1.0, 1.3, 0.9], [1.0, 1.0, 1.0])
    assert (found.count, found.worst_at) == (3, 1)
    assert found.worst == pytest.approx(0.3)
    assert found.median == pytest.approx(0.1)
