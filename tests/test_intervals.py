"""Intervals that mean something: R is never said to be below 1, and too few requests are said to be that."""

from __future__ import annotations

import json
import math

import pytest
import yaml

from simulator import predict, simulate
from simulator.__main__ import main
from simulator.architecture import MixedWeights, ModelArchitecture, find_model
from simulator.cost.deployment import Deployment
from simulator.cost.spread import Z80, Estimate, Spread
from simulator.cost.uncertainty import STEP_NOISE_STD, UncertainPricer
from simulator.hardware import find_hardware
from simulator.plots.words import interval, is_known
from simulator.questions import accuracy
from simulator.reports.verdict import headline
from simulator.serving_engine import find_engine
from simulator.simulation.gains import FEWEST_REQUESTS, Doubted
from simulator.simulation.verdict import requests_to_tell, verdict_of
from simulator.speculation import built_head
from tests.test_simulation import BASE, scenario

NGRAM = {
    "hardware": "m3_max", "target_model": "Qwen/Qwen3-8B", "method": "ngram", "num_speculative_tokens": 1, "batch": 1,
    "context_len": 500, "mean_acceptance_length": 1.4,
}  # fmt: skip


@pytest.mark.parametrize("engine", ["vllm", "sglang", "mlx", "llamacpp", "hf_eager", None])
@pytest.mark.parametrize("measured_s", [None, 0.01, 1.0])
def test_a_round_is_never_said_to_be_cheaper_than_the_plain_step_it_holds(engine, measured_s):
    """Drafts of hardly any cost on an engine that nobody measured: the doubt is wide, and ends at 1 all the same."""
    answer = predict(**NGRAM, **({} if engine is None else {"engine": engine}), plain_step_s=measured_s)
    assert 1 <= answer.r_low <= answer.r <= answer.r_high
    assert answer.speedup_high <= answer.mean_acceptance_length * (1 + 1e-9)


def test_no_published_run_was_measured_below_one():
    """What the bound rests on, beside the argument."""
    scored = accuracy.as_shipped()
    assert min(each.case.measured_r for each in scored) >= 1
    assert min(each.prediction.r_low for each in scored) >= 1


def test_a_bound_cuts_one_side_of_an_interval_only():
    doubt = Spread(0.3, 0.3)
    bounded = doubt.not_below(1 / 1.05)
    assert Estimate.lognormal(1.05, bounded).low == pytest.approx(1)
    assert bounded.up == doubt.up
    assert doubt.not_below(1 / 2.0) == doubt
    assert doubt.not_below(1.0).down == 0


def few(requests: int, **changes):
    return simulate(scenario(workload={**BASE["workload"], "num_requests": requests}, **changes))


def test_from_ten_requests_no_interval_is_made_and_as_many_as_are_said_to_do_do():
    result = few(10)
    gain = result.best.gain
    assert not is_known(gain)
    assert interval(gain) == "too few"
    needed = result.best.requests_to_tell
    said = " ".join(headline(result)[0].split())
    assert f"from too few requests to tell (10); about {needed} would do" in said
    enough = few(needed)
    assert is_known(enough.best.gain)
    assert enough.best.verdict == "win"
    assert enough.best.requests_to_tell is None


def test_ten_requests_in_a_closed_loop_with_a_service_level_are_too_few_and_no_fault():
    closed = {**BASE["workload"], "arrivals": {"process": "closed_loop", "users": 4}, "num_requests": 10}
    result = simulate(scenario(workload=closed, service_level={"ttft_p99_s": 1.0}))
    assert result.best.verdict == "close"
    assert "too few requests to tell (10)" in headline(result)[0]


def test_where_the_doubt_of_r_alone_keeps_one_in_more_requests_are_not_asked_for():
    crowded = Doubted(ratio=1.02, requests=500, sampling=0.05, below=0.1, above=0.1)
    assert verdict_of(crowded.estimate) == "close"
    assert requests_to_tell(500, crowded) is None
    noisy = Doubted(ratio=1.2, requests=100, sampling=0.4, below=0.05, above=0.05)
    needed = requests_to_tell(100, noisy)
    assert needed > 100
    told = Doubted(1.2, needed, noisy.sampling * math.sqrt(100 / needed), 0.05, 0.05)
    assert told.estimate.low == pytest.approx(1, abs=0.01)
    assert Doubted(1.2, FEWEST_REQUESTS - 1, 0.01, 0.0, 0.0).estimate == Estimate(1.2, 0.0, math.inf)
    assert pytest.approx(1.2816) == Z80


@pytest.mark.parametrize("verb", [["run"], ["sweep", "--set", "workload.num_requests=10", "--out", "out"]])
def test_no_bound_of_many_digits_is_written(verb, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(yaml.safe_dump({**BASE, "workload": {**BASE["workload"], "num_requests": 10}}))
    assert main([verb[0], "s.yaml", *verb[1:], "--json"]) == 0
    text = capsys.readouterr().out
    json.loads(text)
    for file in tmp_path.rglob("*.csv"):
        text += file.read_text()
    assert "e+" not in text


def test_compare_makes_no_verdict_of_ten_requests_either(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(yaml.safe_dump({**BASE, "workload": {**BASE["workload"], "num_requests": 10}}))
    assert main(["compare", "s.yaml", "--by", "hardware", "--values", "h200_sxm"]) == 0
    out = capsys.readouterr().out
    assert out.count("too few") == 3  # both rows, and a note
    assert "win" not in out


def doubted_names(model: str, weights: str, hardware: str = "b200_sxm") -> set[str]:
    target = find_model(model)
    deployment = Deployment(
        find_hardware(hardware), find_engine("vllm"), target, weights, method="mtp", drafter=built_head(target, "mtp", 1)
    )
    return {name for name, _ in UncertainPricer(deployment).shifted}


def test_every_type_that_a_mixed_checkpoint_computes_in_is_doubted() -> None:
    """Attention in 8 bit between experts in 4 bit: the doubts of both kinds of kernels are in R."""
    mixed = doubted_names("Qwen/Qwen3.5-35B-A3B", "nvfp4")
    for dtype in ("bf16", "fp8", "fp4"):
        assert any(name.endswith(f".{dtype}") for name in mixed), dtype
    whole = doubted_names("Qwen/Qwen3.5-35B-A3B", "fp8")
    assert not any(name.endswith(".fp4") for name in whole)


def test_row_laws_of_all_parts_of_a_checkpoint_are_doubted() -> None:
    """The LM head of a 4-bit checkpoint runs the kernels of its own format, whose law is in doubt as well."""
    engine = find_engine("llamacpp")
    hardware = find_hardware("m4_max")
    target = find_model("Qwen/Qwen3-8B")
    mixed = target.model_copy(update={"mixed_weights": (MixedWeights(weights="q4_k_m", head="q8_0"),)})
    laws = {engine.small_rows.index(engine.row_law(weights, hardware)) for weights in ("q4_k_m", "q8_0")}
    assert len(laws) == 2
    drafter = find_model("Qwen/Qwen3-0.6B")

    def shifted(model: ModelArchitecture) -> set[int]:
        deployment = Deployment(
            hardware, engine, model, "q4_k_m", method="draft_model", drafter=drafter, drafter_weights="q4_k_m"
        )
        names = [name for name, _ in UncertainPricer(deployment).shifted]
        return {int(name.split(".")[1]) for name in names if name.startswith("small_rows.")}

    assert shifted(target) < shifted(mixed) == laws


def test_constants_that_one_fit_traded_for_each_other_leave_a_plain_step_less_doubt_than_independent_ones() -> None:
    """And constants that were wrong together more: of a model with experts and recurrent layers, which a step pays both."""
    target = find_model("Qwen/Qwen3.5-35B-A3B")
    engine, drafter = find_engine("vllm"), built_head(target, "mtp", 1)
    stds = []
    for correlation in (-0.9, 0.0, 0.9):
        told = engine.model_copy(update={"correlations": {"expert_overhead_s": {"state_overhead_s": correlation}}})
        deployment = Deployment(find_hardware("h100_sxm"), told, target, "fp8", method="mtp", drafter=drafter)
        stds.append(UncertainPricer(deployment).plain_step_std(1, 1, 1024))
    assert STEP_NOISE_STD < stds[0] < stds[1] < stds[2]
