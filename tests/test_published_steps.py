"""Absolute times of DeepSeek-R1 that people measured under SGLang, on which nothing was fitted: prompts, and decoding under load."""

from __future__ import annotations

from functools import cache

import pytest

from simulator.architecture import find_model
from simulator.cost.deployment import Deployment
from simulator.cost.parallelism import Parallelism
from simulator.cost.pricer import StepPricer
from simulator.hardware import find_hardware
from simulator.serving_engine import ServingEngine, find_engine

ENGINE: ServingEngine = find_engine("sglang")


@cache
def pricer(device: str, size: int, nodes: int = 1) -> StepPricer:
    model = find_model("deepseek-ai/DeepSeek-R1")
    beyond = Parallelism(nodes=nodes)
    return Deployment(find_hardware(device), ENGINE, model, "fp8", tensor_parallel_size=size, parallelism=beyond).pricer()


@pytest.mark.parametrize(("prompt", "measured_s"), [(128, 0.180), (2048, 0.190), (3072, 0.200), (4096, 0.200), (8192, 0.264)])
def test_short_prompts_of_a_large_mixture_wait_for_launches(prompt: int, measured_s: float) -> None:
    """tenstorrent/tt-inference-server#356: sixteen H100, TTFT hardly grows from 128 to 4096 tokens."""
    ttft_s = pricer("h100_sxm", 16, 2).prefill_s(prompt, ENGINE.max_num_batched_tokens) + ENGINE.prompt_overhead_s.value
    assert ttft_s == pytest.approx(measured_s, rel=0.36)


@pytest.mark.parametrize(("batch", "measured_s"), [(8, 0.0128), (16, 0.0172), (32, 0.0256), (64, 0.0346)])
def test_time_per_token_of_a_closed_loop_holds_steps_and_the_prompts_of_others(batch: int, measured_s: float) -> None:
    """SemiAnalysisAI/InferenceX#870, 0.5.7, eight H200, 1024 tokens in and out: while one sequence writes its 1024 tokens, each of
    the others finishes once and a prompt takes its place."""
    steps = pricer("h200_sxm", 8)
    prompt_s = steps.prefill_s(1024, ENGINE.max_num_batched_tokens)
    tpot_s = steps.plain(batch, 1024 + 512).seconds + (batch - 1) * prompt_s / 1024
    assert tpot_s == pytest.approx(measured_s, rel=0.15)
