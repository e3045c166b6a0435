"""Kernels that expand 4-bit weights on the way, beside published times: the stream up to sixteen rows, less arithmetic above."""

from __future__ import annotations

import pytest

from simulator import predict
from simulator.cost.roofline import gemm
from simulator.hardware import find_hardware
from simulator.number_format import FORMATS
from simulator.serving_engine import find_engine

A100 = find_hardware("a100_sxm_40gb")
# vllm-project/vllm#2497: seconds by rows, 1158 GB/s and 141 TFLOP/s at the ends; 4.6 TFLOP/s of one row over 0.14 ms are 324M weights.
MARLIN = {1: 0.14e-3, 4: 0.14e-3, 8: 0.14e-3, 16: 0.14e-3, 32: 0.18e-3, 64: 0.29e-3, 128: 0.57e-3, 256: 1.13e-3, 1024: 4.55e-3}


def seconds(rows: int, engine: str = "vllm", weights: str = "int4") -> float:
    law = find_engine(engine).row_law(weights, A100)
    return gemm(rows, 18000, 18000, FORMATS[weights].bytes, A100, "fp16", law).seconds


@pytest.mark.parametrize("rows", MARLIN)
def test_marlin_takes_what_was_measured(rows: int) -> None:
    assert seconds(rows) == pytest.approx(MARLIN[rows], rel=0.2)


def test_sixteen_rows_ride_along_and_sixty_four_cost_twice_as_much() -> None:
    assert seconds(16) / seconds(1) < 1.1
    assert seconds(64) / seconds(1) == pytest.approx(MARLIN[64] / MARLIN[1], rel=0.25)


def test_above_a_hundred_rows_sixteen_bit_overtakes() -> None:
    assert seconds(8) < 0.4 * seconds(8, weights="fp16")
    assert seconds(256) > seconds(256, weights="fp16")


def test_floats_of_four_bits_take_the_same_kernel_where_tensor_units_have_none() -> None:
    """vllm-project/vllm#17687, sgl-project/sglang#19652."""
    for engine in ("vllm", "sglang"):
        found = {
            (name, weights): find_engine(engine).row_law(weights, find_hardware(name))
            for name in ("a100_sxm_80gb", "l40s", "h100_sxm", "b200_sxm", "rtx_pro_6000")
            for weights in ("nvfp4", "mxfp4")
        }
        expands = {place for place, law in found.items() if law is not None and law.arithmetic_fraction is not None}
        assert expands == {(name, each) for name in ("a100_sxm_80gb", "l40s") for each in ("nvfp4", "mxfp4")} | {
            ("h100_sxm", "nvfp4")
        }
    assert seconds(1024, weights="nvfp4") > 1.3 * seconds(1024, weights="fp16")


def test_a_quantized_target_gains_less_under_load() -> None:
    """C50 (vllm-project/vllm#24322): a 72B in 4 bit on four devices gained at batch 1 and nothing above."""
    point = {"hardware": "a100_sxm_80gb", "engine": "vllm_2025", "target_model": "Qwen/Qwen2.5-72B", "method": "draft_model"}
    point |= {"draft_model": "Qwen/Qwen2.5-1.5B", "num_speculative_tokens": 3, "tensor_parallel_size": 4, "context_len": 800}
    growth = {}
    for precision in ("int4", "bf16"):
        alone, loaded = (predict(**point, precision=precision, batch=batch).r or 0.0 for batch in (1, 32))
        growth[precision] = loaded / alone
    assert growth["int4"] > 1.25 * growth["bf16"]
