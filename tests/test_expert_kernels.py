"""The law of grouped expert kernels beside times that people measured of the kernel alone. Nothing was fitted on them: bandwidth and
overhead come from runs of speculation (docs/accuracy.md), tiles from the kernels' configurations.

Each row: source, device, type, (experts, width, hidden size, experts per token), tile rows, microseconds by tokens. Routing is uniform.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

from simulator.cost.roofline import experts_touched, grouped_gemm, padded_rows
from simulator.hardware import find_hardware
from simulator.number_format import FORMATS
from simulator.serving_engine import find_engine


@dataclass(frozen=True)
class Kernel:
    """Measured times of both grouped GEMMs of a layer."""

    source: str
    device: str
    weights: str
    shape: tuple[int, int, int, int]
    tile_rows: int
    microseconds: dict[int, float]

    def log_errors(self) -> list[float]:
        """ln(computed / measured), by tokens."""
        return [math.log(self.computed_s(tokens) / (1e-6 * measured)) for tokens, measured in self.microseconds.items()]

    def computed_s(self, tokens: int) -> float:
        experts, width, hidden, top_k = self.shape
        hardware = find_hardware(self.device)
        touched = experts_touched(experts, top_k, tokens)
        dtype = hardware.compute_dtype(self.weights)
        size = FORMATS[self.weights].bytes
        return grouped_gemm(tokens * top_k, touched, 3 * width * hidden, size, hardware, dtype, self.tile_rows).seconds


QWEN_30B, NEXT = (128, 768, 2048, 8), (512, 256, 2048, 10)
KERNELS = (
    Kernel("vllm-project/vllm#24700", "h100_sxm", "fp8", QWEN_30B, 16, {
        1: 40.4, 2: 56.2, 4: 78.1, 8: 118.6, 16: 164.6, 24: 193.5, 32: 210.1, 48: 230.6, 64: 237.3, 96: 244.3, 128: 247.7, 256: 262.4,
    }),
    Kernel("vllm-project/vllm#24700", "h100_sxm", "bf16", (8, 7168, 4096, 2), 16, {
        1: 144.0, 2: 229.3, 4: 351.1, 8: 435.0, 16: 471.5, 24: 478.3, 32: 487.4, 64: 483.1, 128: 491.4, 256: 536.8,
    }),
    Kernel("vllm-project/vllm#53710", "l40s", "fp8", QWEN_30B, 16, {
        4: 190.4, 8: 348.0, 16: 552.8, 32: 742.2, 64: 839.5, 128: 870.4, 256: 897.7,
    }),
    Kernel("vllm-project/vllm#55511", "a100_pcie_80gb", "bf16", (256, 512, 3072, 8), 16, {1: 67.5, 4: 200.4, 16: 589.6, 64: 1270.5}),
    Kernel("vllm-project/vllm#19049", "a100_pcie_40gb", "bf16", QWEN_30B, 16, {
        1: 109.2, 2: 159.8, 4: 268.9, 8: 403.1, 16: 611.2, 24: 730.2, 32: 808.5, 48: 886.0, 64: 917.5, 96: 943.1,
    }),
    Kernel("vllm-project/vllm#40542", "a100_sxm_80gb", "bf16", (64, 1408, 2048, 6), 16, {4: 266.2, 16: 523.3, 64: 677.6, 256: 717.0}),
    Kernel("vllm-project/vllm#44818", "h200_sxm", "bf16", (128, 704, 2816, 8), 16, {
        16: 257.8, 24: 314.4, 32: 324.9, 48: 365.5, 64: 384.1, 96: 390.3, 128: 396.4, 256: 419.6,
    }),
    Kernel("vllm-project/vllm#31448", "b200_sxm", "bf16", QWEN_30B, 16, {1: 39.6, 2: 51.9, 4: 73.2}),
)  # fmt: skip
# Slices of a model over eight devices: 192 columns of an expert fill a tile and a half, which no law here knows.
NARROW = Kernel("sgl-project/sglang#11730", "h200_sxm", "fp8", (128, 192, 4096, 8), 64, {
    1: 31.7, 2: 36.6, 4: 49.7, 8: 66.9, 16: 92.4, 24: 117.4, 32: 125.0,
})  # fmt: skip
# The same layer before and after its configuration was tuned, on an H20: arithmetic is scarce there, and tiles show.
TALL = Kernel("vllm-project/vllm#45142", "h20", "fp8", NEXT, 64, {96: 493.4, 128: 529.3, 256: 583.5, 512: 606.9})


def test_kernels_take_what_was_fitted_on_whole_rounds() -> None:
    errors = np.abs([error for kernel in KERNELS for error in kernel.log_errors()])
    assert len(errors) > 55
    assert np.median(errors) < 0.145
    assert np.quantile(errors, 0.9) < 0.25


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: f"{kernel.source}-{kernel.device}-{kernel.weights}")
def test_the_growth_with_tokens_is_that_of_the_union(kernel: Kernel) -> None:
    """What decides R: the time of several rows over that of one, here of the most over the fewest measured."""
    errors = kernel.log_errors()
    assert abs(errors[-1] - errors[0]) < 0.45


def test_narrow_slices_are_slower_than_the_law_by_the_same_share_at_any_load() -> None:
    errors = NARROW.log_errors()
    assert min(errors) > -0.37
    assert max(errors) < -0.2


def test_tall_tiles_show_where_arithmetic_is_scarce() -> None:
    """64 rows for each of 400 to 512 experts, most of them empty; without the tile the law would give less than half."""
    assert np.abs(TALL.log_errors()).max() < 0.08
    experts, width, hidden, top_k = TALL.shape
    flat = grouped_gemm(256 * top_k, experts_touched(experts, top_k, 256), 3 * width * hidden, 1, find_hardware("h20"), "fp8")
    assert flat.seconds < 0.5 * TALL.computed_s(256)


@pytest.mark.parametrize("tile", [8, 16, 64])
@pytest.mark.parametrize("rows_each", [0.3, 2.0, 6.0, 20.0, 100.0])
def test_padded_rows_are_those_of_drawn_routings(tile: int, rows_each: float) -> None:
    """Rows fall on experts like Poisson numbers; experts without any are not touched."""
    drawn = np.random.default_rng(3).poisson(rows_each, size=200_000)
    drawn = drawn[drawn > 0]
    expected = (np.ceil(drawn / tile) * tile).mean()
    assert padded_rows(drawn.mean(), 1, tile) == pytest.approx(expected, rel=0.27)


def test_a_tile_never_makes_a_layer_cheaper_and_one_row_is_none() -> None:
    for rows in (8, 64, 4096):
        assert padded_rows(rows, 8, 1) == rows
        assert rows <= padded_rows(rows, 8, 8) <= padded_rows(rows, 8, 16) <= padded_rows(rows, 8, 64)


def test_engines_know_their_kernels_tiles() -> None:
    h20, laptop, server = find_hardware("h20"), find_hardware("m3_max"), find_hardware("epyc_9654")
    assert find_engine("sglang_0_4_3").expert_tile_rows("fp8", h20) == 64
    assert find_engine("sglang_0_4_3").expert_tile_rows("bf16", h20) == 16
    assert find_engine("vllm").expert_tile_rows("int4", h20) == 8
    assert find_engine("vllm").expert_tile_rows("bf16", server) == 1
    assert find_engine("mlx").expert_tile_rows("mlx4", laptop) == 1
