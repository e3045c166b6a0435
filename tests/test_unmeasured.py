"""What nobody measured is said, and widens the interval: of what a round adds to a plain step, so to the dearer side most."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from simulator.__main__ import main
from simulator.cost.doubts import shipped_doubts
from simulator.cost.spread import Z80, Estimate, Spread
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
        ({"hardware": "a100_sxm_80gb"}, "setup", "drafting by EAGLE-3 with bf16 weights on NVIDIA A100"),
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
    assert up > down or part == "setup"


def test_parts_add_up_as_independent_doubts() -> None:
    doubts = shipped_doubts().model_copy(update={"part_std": 1e-3, "setup_std": 0.0})
    one, two = (Unmeasured(kernels=True, method=both).spread(doubts, 2.0) for both in (False, True))
    assert two.up == pytest.approx(math.sqrt(2) * one.up, rel=0.01)
    assert one.up == pytest.approx(one.down, rel=0.01) == pytest.approx(0.5e-3, rel=0.01)  # half of a round of 2 steps is new
    assert Unmeasured().spread(doubts, 2.0) == Spread(0, 0)


@pytest.mark.parametrize("r", [1.05, 1.5, 3.0, 8.0])
def test_what_is_new_leaves_the_plain_step_that_a_round_holds_alone(r: float) -> None:
    """R - 1 is log-normal: however unsure, R stays above 1, is off by less than R - 1 is, and by more the more a round adds."""
    doubts = shipped_doubts()
    spread = Unmeasured(method=True, kernels=True, layers=("linear",)).spread(doubts.model_copy(update={"setup_std": 0.0}), r)
    low, high = r * spread.low, r * spread.high
    added = math.exp(Z80 * math.sqrt(3) * doubts.part_std)
    assert 1 < low < r < high
    assert (high - 1) / (r - 1) == pytest.approx(added)
    assert (r - 1) / (low - 1) == pytest.approx(added)
    assert spread.up > spread.down
    assert spread.up < Unmeasured(method=True, kernels=True, layers=("linear",)).spread(doubts, 1.1 * r).up


def test_prompts_dilute_the_doubt_of_terms_and_not_that_of_what_nobody_ran() -> None:
    """At a batch of 64 after long prompts, R hardly matters; but a method that nobody ran has prompts that nobody timed."""
    lengths: dict[str, object] = {"context_len": None, "batch": 64, "prompt_len": 4000, "output_len": 100}
    known, new = (asked(**lengths, **more) for more in ({}, {"target": "Qwen/Qwen3-30B-A3B"}))

    def shares(found: Prediction) -> float:
        assert found.speedup is not None
        assert found.speedup_low is not None
        return math.log(found.speedup / found.speedup_low) / half_widths(found)[1]

    assert shares(known) < 0.5
    assert shares(new) > 0.8


def test_unknown_lengths_leave_open_what_prompts_take_of_a_large_batch() -> None:
    """Alone they hardly matter; in company a benchmark's throughput is that of prompts too. Whoever states a context asks about
    decoding."""
    blank = {"context_len": None}
    alone, many, stated = asked(**blank), asked(**blank, batch=48), asked(context_len=1024, batch=48)

    def below(found: Prediction) -> float:
        assert found.speedup is not None
        assert found.speedup_low is not None
        return math.log(found.speedup / found.speedup_low)

    assert many.speedup == pytest.approx(stated.speedup)
    assert below(many) > 1.3 * below(stated)
    assert many.speedup_high == pytest.approx(stated.speedup_high)
    assert below(alone) < 1.1 * below(asked(context_len=1024))


def test_the_sides_of_a_ratio_change_places_with_its_inverse() -> None:
    spread = Spread(0.1, 0.3).widened(0.2)
    r, gain = Estimate.lognormal(2.0, spread), Estimate.lognormal(0.5, spread.inverse())
    assert (gain.low, gain.high) == pytest.approx((1 / r.high, 1 / r.low))
    assert r.high / r.value > r.value / r.low


def test_what_runs_had_is_what_is_not_new() -> None:
    fit = EngineFit([case for case in published_cases() if case.family in ("D7", "C13", "C65")])
    measured = fit.measured()
    assert measured["llamacpp"].setups == {"mtp": {"RDNA 4": ("q5_k_m", "q6_k", "q8_0")}}
    assert "vllm" not in measured  # nothing was set on C65
    assert fit.measured(fit.of_family("D7"))["llamacpp"].setups == {"mtp": {"RDNA 4": ("q5_k_m", "q6_k")}}
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
