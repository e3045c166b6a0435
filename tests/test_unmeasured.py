"""What nobody measured is said, and widens the interval: to the side of dearer rounds most."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from simulator.__main__ import main
from simulator.cost.doubts import shipped_doubts
from simulator.cost.spread import Estimate, Spread
from simulator.cost.unmeasured import Unmeasured, measured_in
from simulator.hardware import find_hardware
from simulator.prediction import Prediction, predict
from simulator.questions.engine_fit import EngineFit
from simulator.questions.published_cases import published_cases


def asked(**changes: object) -> Prediction:
    fields: dict[str, object] = {
        "hardware": "h100_sxm", "engine": "vllm_2025", "target": "meta-llama/Llama-3.1-8B-Instruct", "precision": "bf16",
        "method": "eagle3", "num_speculative_tokens": 3, "batch": 1, "context_len": 512, "mean_acceptance_length": 2.6,
    }  # fmt: skip
    return predict(**{**fields, **changes})


def half_widths(found: Prediction) -> tuple[float, float]:
    assert found.r is not None
    assert found.r_low is not None
    assert found.r_high is not None
    return math.log(found.r / found.r_low), math.log(found.r_high / found.r)


@pytest.mark.parametrize(
    ("changes", "part", "words"),
    [
        ({"engine": "trtllm"}, "engine", "TensorRT-LLM"),
        ({"method": "ngram"}, "method", "drafting by n-gram lookup"),
        ({"hardware": "b200_sxm"}, "kernels", "bf16 weights on NVIDIA B200"),
        ({"precision": "fp8"}, "kernels", "fp8 weights on NVIDIA H100"),
        ({"target": "Qwen/Qwen3-30B-A3B"}, "layers", "routed experts"),
    ],
)
def test_each_part_that_no_measured_run_had_is_named_once_and_widens_r(changes: dict[str, object], part: str, words: str) -> None:
    known, other = asked(), asked(**changes)
    assert known.unmeasured == ()
    assert not any("never measured" in warning for warning in known.warnings)
    assert other.unmeasured == (part,)
    (said,) = (warning for warning in other.warnings if "never measured" in warning)
    assert words in said
    down, up = half_widths(other)
    assert up > half_widths(known)[1]
    assert up > down


def test_parts_add_up_as_independent_doubts() -> None:
    doubts = shipped_doubts()
    one, two = (Unmeasured(kernels=True, method=both).spread(doubts) for both in (False, True))
    assert two.up == pytest.approx(math.sqrt(2) * one.up)
    assert Unmeasured().spread(doubts) == Spread(0, 0)


def test_the_sides_of_a_ratio_change_places_with_its_inverse() -> None:
    spread = Spread(0.1, 0.3).widened(0.2)
    r, gain = Estimate.lognormal(2.0, spread), Estimate.lognormal(0.5, spread.inverse())
    assert (gain.low, gain.high) == pytest.approx((1 / r.high, 1 / r.low))
    assert r.high / r.value > r.value / r.low


def test_what_runs_had_is_what_is_not_new() -> None:
    fit = EngineFit([case for case in published_cases() if case.family in ("D7", "C13", "C65")])
    measured = fit.measured()
    assert measured["llamacpp"].kernels == {"RDNA 4": ("q5_k_m", "q6_k", "q8_0")}
    assert "vllm" not in measured  # nothing was set on C65
    assert fit.measured(fit.of_family("D7"))["llamacpp"].kernels == {"RDNA 4": ("q5_k_m", "q6_k")}
    assert measured_in([question.deployment for question in fit.questions[:2]]).methods == ("mtp",)


def test_devices_of_one_generation_share_their_kernels_and_others_do_not() -> None:
    of = {name: find_hardware(name).profile.architecture for name in ("m1_max", "m1_ultra", "m5_max", "rx_7900_xtx", "r9700")}
    assert of["m1_max"] == of["m1_ultra"] != of["m5_max"]
    assert of["rx_7900_xtx"] != of["r9700"]


def test_run_explain_and_break_even_say_it_in_words_and_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario = tmp_path / "new.yaml"
    scenario.write_text(
        "hardware: m4_max\nengine: mlx\ntarget: {model: Qwen/Qwen3-8B}\n"
        "speculation: {method: block, num_speculative_tokens: 7}\nacceptance: {mean_acceptance_length: 3.0}\n"
        "workload: {arrivals: {process: closed_loop, users: 1}, lengths: {prompt: 200, output: 100}, num_requests: 8}\n"
    )
    for verb in ("run", "explain", "break-even"):
        assert main([verb, str(scenario), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["unmeasured"] == ["kernels"]
        assert sum("never measured against in" in warning for warning in told["warnings"]) == 1
        assert main([verb, str(scenario)]) == 0
        assert "never measured against" in " ".join(capsys.readouterr().out.split())
