"""vLLM on Intel's devices: its own attention kernels, and experts without graphs."""

from __future__ import annotations

import pytest

from simulator import predict
from simulator.architecture import find_model
from simulator.cost.deployment import Deployment
from simulator.cost.forward import ForwardCost
from simulator.cost.forward_pass import uniform_pass
from simulator.cost.uncertainty import UncertainPricer
from simulator.hardware import find_hardware
from simulator.prediction import Prediction
from simulator.serving_engine import find_engine
from simulator.speculation import built_head

MIXTURE, DENSE = "Qwen/Qwen3.6-35B-A3B", "Qwen/Qwen3.6-27B"


def one_draft(context: int) -> Prediction:
    return predict(
        hardware="arc_pro_b70", engine="vllm", target_model=MIXTURE, precision="int4", method="mtp", drafter_weights="bf16",
        num_speculative_tokens=1, batch=1, context_len=context,
    )  # fmt: skip


def test_rounds_read_the_cache_once_however_long() -> None:
    """Stored public file 57428533690: R 1.30 after 576 tokens, 1.28 after 8,256, 1.21 after 131,000."""
    near, far = one_draft(576).r, one_draft(131_000).r
    assert near is not None
    assert far is not None
    assert near == pytest.approx(1.30, rel=0.1)
    assert far == pytest.approx(1.21, rel=0.1)
    assert find_engine("vllm").attention_regime(find_hardware("rtx_3090")) == "serial_walk"


def unfused_s(device: str, model: str) -> float:
    cost = ForwardCost(find_model(model), find_hardware(device), find_engine("vllm"), 1, "int4", "fp16")
    return sum(term.seconds for term in cost.price(uniform_pass(1, 1, 512, None)).terms if term.name == "unfused_kernels")


def test_layers_with_experts_take_what_dense_ones_do_not() -> None:
    """vllm-project/vllm-xpu-kernels#509: 5 to 6.6 ms a step of 40 layers, and none of a dense model of the same family."""
    assert 0.005 < unfused_s("arc_pro_b70", MIXTURE) < 0.0066
    assert unfused_s("arc_pro_b70", DENSE) == unfused_s("rtx_4090", MIXTURE) == 0
    assert one_draft(576).plain_step_s == pytest.approx(1 / 70.74, rel=0.15)


def test_what_is_not_sure_of_them_is_not_sure_of_r() -> None:
    named = []
    for model in (MIXTURE, DENSE):
        target = find_model(model)
        head = built_head(target, "mtp", 1)
        pricer = UncertainPricer(
            Deployment(find_hardware("arc_pro_b70"), find_engine("vllm"), target, "int4", "fp16", method="mtp", drafter=head)
        )
        named.append("expert_layer_overhead_s.Intel" in dict(pricer.shifted))
    assert named == [True, False]
