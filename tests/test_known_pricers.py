"""Pricers shared between questions: the same answers in any order, from no constant that could have moved them."""

from __future__ import annotations

import csv
import math
import os
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from simulator import predict
from simulator.architecture import eagle_head, find_model
from simulator.cost import known_pricers, uncertainty
from simulator.cost.deployment import Deployment
from simulator.cost.uncertainty import UncertainPricer
from simulator.hardware import find_hardware
from simulator.prediction import COLUMNS, as_row, predict_table
from simulator.serving_engine import find_engine

ROOT = Path(__file__).resolve().parents[1]
CASES = ROOT.parent / "shared" / "data" / "prediction_cases.csv"


def deployment() -> Deployment:
    target = find_model("meta-llama/Llama-3.1-8B")
    return Deployment(
        find_hardware("h100_sxm"), find_engine("vllm"), target, method="eagle3", drafter=eagle_head(target, "eagle3")
    )


POINT = {
    "hardware": "h100_sxm", "engine": "vllm", "target_model": "meta-llama/Llama-3.1-8B-Instruct", "method": "eagle3",
    "num_speculative_tokens": 3, "precision": "bf16", "tensor_parallel_size": 1,
}  # fmt: skip


def test_answers_do_not_depend_on_what_was_asked_before():
    asked = [
        {"batch": 1, "context_len": 800, "acceptance_rate": 0.7},
        {"batch": 16, "context_len": 800, "acceptance_rate": 0.7},
        {"batch": 16, "context_len": 4000, "acceptance_rate": 0.2},
        {"batch": 16, "context_len": 800, "acceptance_rate": 0.7, "engine": "sglang"},
        {"batch": 16, "context_len": 800, "acceptance_rate": 0.7, "method": "ngram"},
        {"batch": 16, "context_len": 800, "acceptance_rate": 0.7, "precision": "fp8"},
    ]
    alone = []
    for fields in asked:
        known_pricers._KEPT.clear()
        alone.append(predict(**{**POINT, **fields}))
    assert [predict(**{**POINT, **fields}) for fields in reversed(asked)] == alone[::-1]
    assert len({(answer.r, answer.r_high) for answer in alone}) == len(alone)


def test_devices_of_one_name_with_other_constants_do_not_share():
    deployed = deployment()
    slower = uncertainty.with_coefficient(
        deployed.hardware, "memory_bandwidth_fraction",
        deployed.hardware.coefficients.memory_bandwidth_fraction.model_copy(update={"value": 0.4}),
    )  # fmt: skip
    one, other = (known_pricers.uncertain_pricer(each, 0.5) for each in (deployed, replace(deployed, hardware=slower)))
    assert one.base.plain(1, 500).seconds < other.base.plain(1, 500).seconds
    assert known_pricers.uncertain_pricer(deployment(), 0.5).base.target is one.base.target
    assert known_pricers.uncertain_pricer(deployment(), 0.3).base.target is one.base.target


@pytest.mark.parametrize(
    ("weights", "device"), [("bf16", "h100_sxm"), ("fp8", "h100_sxm"), ("int4", "rtx_4090"), ("fp8", "a100_sxm_80gb")]
)
def test_constants_of_types_that_nothing_computes_in_cannot_move_r(weights, device, monkeypatch):
    asked = replace(deployment(), weights=weights, hardware=find_hardware(device))
    kept = {name for name, _ in UncertainPricer(asked).shifted}
    spread = UncertainPricer(asked).spread(3, 16, 900)
    monkeypatch.setattr(
        uncertainty, "_relevant", lambda _: lambda name: name.partition(".")[0] in uncertainty._BY_TYPE or name in kept
    )
    every = UncertainPricer(asked)
    left_out = [place for place, (name, _) in enumerate(every.shifted) if name not in kept]
    assert left_out
    for batch in (1, 300):
        ratio, plain = every.sensitivities(3, batch, 900, 1.0)
        assert not ratio[left_out].any()
        assert not plain[left_out].any()
    assert every.spread(3, 16, 900).up == pytest.approx(spread.up, rel=1e-12)


def test_a_fractional_context_is_priced_between_its_neighbours(tmp_path):
    steps = [predict(**POINT, batch=64, context_len=tokens).plain_step_s for tokens in (2000, 2000.5, 2001)]
    assert steps[0] < steps[1] < steps[2]
    assert steps[1] == pytest.approx((steps[0] + steps[2]) / 2, rel=1e-6)
    path = tmp_path / "cases.csv"
    path.write_text(
        "hardware,target_model,method,num_speculative_tokens,batch,context_len\nh100_sxm,Qwen/Qwen3-8B,ngram,3,64,2000.5\n"
    )
    (answer,) = predict_table(path)
    assert answer.status == "ok"


def test_a_row_of_predictions_holds_tau_and_the_textbook_answer_after_all_else():
    assert COLUMNS[-2:] == ("mean_acceptance_length", "textbook_speedup")
    row = as_row(predict(**POINT, batch=1, context_len=800, acceptance_rate=0.5))
    assert row["mean_acceptance_length"] == f"{1 + 0.5 + 0.25 + 0.125:.6g}"
    assert float(row["textbook_speedup"]) > float(row["speedup"])
    assert as_row(predict(**POINT, batch=1, context_len=800))["textbook_speedup"] == ""


@pytest.mark.skipif(not CASES.exists(), reason="the shared table of published cases is not here")
def test_every_published_case_is_priced_in_two_seconds_by_the_whole_command(tmp_path):
    """Time of the processor; half as much again is left for what else runs on its core."""
    out = tmp_path / "p.csv"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [sys.executable, "-m", "simulator", "predict", "--table", str(CASES), "--out", str(out)]
    subprocess.run(words, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime < 2 * 1.5
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(CASES.read_text().splitlines()) - 1
    assert all(row["status"] == "ok" and math.isfinite(float(row["r"])) for row in rows)
