"""Intervals that mean something: R is never said to be below 1, and too few requests are said to be that."""

from __future__ import annotations

import json
import math

import pytest
import yaml

from simulator import predict, simulate
from simulator.__main__ import main
from simulator.cost.spread import Z80, Estimate, Spread
from simulator.plots.words import interval, is_known
from simulator.questions import accuracy
from simulator.reports.verdict import headline
from simulator.simulation.gains import FEWEST_REQUESTS, Doubted
from simulator.simulation.verdict import requests_to_tell, verdict_of
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
