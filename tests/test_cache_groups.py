"""Groups of layers with block tables of their own, and what preparing them costs under speculation (vLLM)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.architecture import find_model
from simulator.cost.cache_groups import cache_groups
from simulator.cost.deployment import Deployment
from simulator.hardware import find_hardware
from simulator.prediction import predict
from simulator.serving_engine import find_engine


def deployment(target: str, drafter: str, device: str = "h200_sxm", engine: str = "vllm") -> Deployment:
    models = {"target": find_model(target), "drafter": find_model(drafter)}
    return Deployment(find_hardware(device), find_engine(engine), weights="bf16", method="block", **models)


HYBRID = deployment("Qwen/Qwen3.6-35B-A3B", "z-lab/Qwen3.6-35B-A3B-DFlash")


@pytest.mark.parametrize(
    ("target", "drafter", "groups"),
    [
        ("Qwen/Qwen3.6-35B-A3B", "z-lab/Qwen3.6-35B-A3B-DFlash", 46),  # vllm-project/vllm#51742
        ("Qwen/Qwen3.5-27B", None, 4),  # vllm-project/vllm#49730, as the next
        ("Qwen/Qwen3.5-27B", "z-lab/Qwen3.5-27B-DFlash", 70),
        ("Qwen/Qwen3-8B", "z-lab/Qwen3-8B-DFlash-b16", 1),  # every layer has full attention
        ("google/gemma-3-27b-it", None, 7),  # five windows to one full: 52 layers and 10
        ("openai/gpt-oss-20b", None, 2),
    ],
)
def test_counts_are_those_that_the_engine_reports(target: str, drafter: str | None, groups: int) -> None:
    assert cache_groups(find_model(target), find_model(drafter) if drafter else None) == groups


def test_a_round_waits_for_the_host_until_the_device_has_more_to_do() -> None:
    free = replace(HYBRID, engine=HYBRID.engine.model_copy(update={"cache_group_overhead_s": None}))
    waits = [HYBRID.pricer().round(7, batch, 300).round_s - free.pricer().round(7, batch, 300).round_s for batch in (1, 4, 64)]
    assert waits[0] > waits[1] >= waits[2] == 0
    assert HYBRID.pricer().round(7, 1, 300).plain_step_s == free.pricer().round(7, 1, 300).plain_step_s


def test_rounds_of_a_slow_and_a_fast_host_lie_within_the_doubt_of_the_constant() -> None:
    """21.1 ms in 46 groups on an H200's host, one request at a time (vllm-project/vllm#51742, which does not say how many drafts);
    5.65 tokens at 379.5 a second in 70 on a B200's (published_cases family TR)."""
    each = HYBRID.engine.cache_group_overhead_s
    assert each is not None
    slow, fast = (
        HYBRID.engine.model_copy(update={"cache_group_overhead_s": each.model_copy(update={"value": each.value * factor})})
        for factor in (1 + 2 * each.relative_std, 1 - each.relative_std)
    )
    assert replace(HYBRID, engine=slow).pricer().round(7, 1, 300).round_s == pytest.approx(21.1e-3, rel=0.25)
    dense = replace(deployment("Qwen/Qwen3.5-27B", "z-lab/Qwen3.5-27B-DFlash"), engine=fast)
    assert dense.pricer().metadata_s < 5.65 / 379.5


def test_prompts_beside_rounds_cost_recurrent_models_more_than_prompts_apart() -> None:
    pricer = HYBRID.pricer()
    decode, prompt = [(300, 7)] * 8, ((60, 0),)
    together = pricer.price(decode, prompt, 1).seconds
    apart = pricer.price(decode, (), 0).seconds + pricer.price((), prompt, 1).seconds
    assert together > apart + 0.5 * pricer.beside_rounds_s > apart
    for other in (deployment("Qwen/Qwen3-8B", "z-lab/Qwen3-8B-DFlash-b16"), replace(HYBRID, engine=find_engine("sglang"))):
        assert other.pricer().beside_rounds_s == other.pricer().metadata_s == 0


def test_a_batch_that_drafts_on_pays_for_prompts_that_come_in() -> None:
    asked = {"hardware": "h200_sxm", "target_model": "Qwen/Qwen3.6-35B-A3B", "method": "block", "num_speculative_tokens": 7,
             "draft_model": "z-lab/Qwen3.6-35B-A3B-DFlash", "mean_acceptance_length": 5.0, "prompt_len": 60, "context_len": 200}  # fmt: skip

    def loss(batch: int, output: int, engine: str) -> float:
        told = predict(**asked, batch=batch, output_len=output, engine=engine)
        assert told.speedup is not None
        assert told.r is not None
        return 1 - told.speedup / (5.0 / told.r)

    assert loss(16, 256, "vllm") > loss(16, 2048, "vllm") > 0
    assert loss(16, 256, "vllm") > loss(1, 256, "vllm")
