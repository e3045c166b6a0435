"""Matrix kernels whose results do not depend on the batch.

What a library does to keep few rows fast, splitting the inner dimension over blocks, adds in another order for every batch.
Kernels that do not either walk it whole, as libraries can be told to, or multiply tiles of one size whatever the batch (He and
Thinking Machines Lab 2025, whose Triton kernel SGLang and vLLM took over): each block then computes a whole tile for a single
row, and a narrow matrix has fewer tiles than the device has units.
"""

from __future__ import annotations

import math

from simulator.hardware import GemmRates, Hardware
from simulator.serving_engine import ServingEngine


def matrix_rates(engine: ServingEngine, hardware: Hardware, dtype: str) -> GemmRates:
    """The GEMM law of the matrix kernels that run, computing in `dtype`: the device's own where the batch may change results."""
    rates, kernels = hardware.gemm_rates(dtype), engine.choices.deterministic
    fraction = engine.tile_arithmetic_fraction
    if kernels is None or fraction is None or not engine.started_with.deterministic:
        return rates
    if not kernels.tiled(hardware):
        return rates._replace(walk_longest_s=math.inf)
    return rates._replace(
        flops_per_s=fraction.value * hardware.profile.peak_flops_per_s[dtype].value,
        tile_rows=float(kernels.tile_rows), least_tile_rows=0.0, fill_k=0.0, wave_power=1.0, walk_s_per_k=0.0, row_factors=None,
        whole_tiles=True,
    )  # fmt: skip
