"""The linter: each doubt appears where it must and not beside it, in run, explain and check-server."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from simulator import explain, load_scenario, simulate
from simulator.__main__ import main
from simulator.cost.deployment import Deployment
from simulator.draft_tree import Tree
from simulator.interchange import sglang, vllm_bench
from simulator.questions.server_check import check_server
from simulator.validity import doubts_at
from tests.test_explanation import flags
from tests.test_server_check import Server, check
from tests.test_server_check import scenario as served
from tests.test_simulation import scenario, workload


def with_short_drafter(deployment: Deployment) -> Deployment:
    """A draft head trained for 2,048 positions, as many are."""
    assert deployment.drafter is not None
    return replace(deployment, drafter=deployment.drafter.model_copy(update={"max_position_embeddings": 2048}))


def doubts(context: float = 900, batch: float = 8, tau: float | None = 2.5, gamma: int = 3) -> list[str]:
    deployment = with_short_drafter(load_scenario("quickstart").deployment)
    return [*doubts_at(deployment, Tree.chain(gamma), batch, context, tau)]


def test_an_ordinary_point_is_not_doubted():
    assert not doubts()
    assert not doubts(tau=None)


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("which no captured graph covers (plain steps have one)", {"batch": 200.0}),
        ("beyond the 2,048 positions", {"context": 5000.0}),
        ("far below what is measured elsewhere", {"tau": 1.1}),
    ],
)
def test_each_fault_brings_its_own_doubt_and_no_other(words, changes):
    (doubt,) = doubts(**changes)
    assert words in doubt


def test_graphs_that_count_sequences_cover_any_number_of_rows():
    deployment = load_scenario("quickstart").deployment
    ladder = deployment.engine.graphs.model_copy(update={"counts": "sequences"})
    other = replace(deployment, engine=deployment.engine.model_copy(update={"graphs": ladder}))
    assert not [*doubts_at(other, Tree.chain(3), 200, 900, 2.5)]


def test_run_says_what_is_doubtful_where_it_ran():
    low = simulate(scenario(acceptance={"acceptance_rate": 0.05}, workload=workload("closed_loop", users=2, requests=20)))
    assert sum("far below what is measured" in warning for warning in low.warnings) == 1
    usual = simulate(scenario(acceptance={"acceptance_rate": 0.6}, workload=workload("closed_loop", users=2, requests=20)))
    assert not any("far below" in warning or "captured graph" in warning for warning in usual.warnings)


def test_open_acceptance_is_not_doubted_against_its_own_band():
    result = simulate(scenario(acceptance=None, workload=workload("closed_loop", users=2, requests=20)))
    assert not any("far below" in warning for warning in result.warnings)


def test_explain_doubts_the_batch_and_the_context_it_is_asked_about():
    loaded = scenario()
    assert not any("captured graph" in warning for warning in explain(loaded, batch=8, context=700).warnings)
    assert any("captured graph" in warning for warning in explain(loaded, batch=200, context=700).warnings)
    short = replace(loaded, deployment=with_short_drafter(loaded.deployment))
    assert any("beyond the 2,048 positions" in warning for warning in explain(short, batch=2, context=9000).warnings)


def test_a_benchmark_of_random_tokens_is_doubted():
    answer = check(Server(), dataset_name="random")
    assert any("random tokens" in doubt and "acceptance forced" in doubt for doubt in answer.doubts)
    assert not any("random tokens" in doubt for doubt in check(Server(), dataset_name="sharegpt").doubts)


def test_answers_that_may_not_end_are_doubted():
    lengths = {"input_lens": [500] * 80, "output_lens": [200] * 80}
    run = vllm_bench.run(Server().bench(False, **lengths), "bench.json:1")
    assert any("ignore_eos" in doubt for doubt in check_server([run], served()).doubts)
    lengths["output_lens"] = [190 + i % 20 for i in range(80)]
    run = vllm_bench.run(Server().bench(False, **lengths), "bench.json:1")
    assert not any("ignore_eos" in doubt for doubt in check_server([run], served()).doubts)


def test_sglang_names_its_data_set():
    run = sglang.bench(
        {"dataset_name": "random", "duration": 1.0, "completed": 2, "total_output_tokens": 20, "mean_e2e_latency_ms": 9.0}, "here"
    )
    assert run.value("dataset") == "random"


def test_doubts_reach_the_reader(capsys):
    assert main(["explain", *flags(batch=200), "--json"]) == 0
    assert any("captured graph" in warning for warning in json.loads(capsys.readouterr().out)["warnings"])
    assert main(["explain", *flags(batch=200)]) == 0
    assert "Note: verification of 200 sequences is 800 rows" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize(("prompt", "told"), [(1_000, False), (2_300, True)])
def test_requests_longer_than_the_drafters_text_are_told_and_no_others(prompt: int, told: bool):
    run = simulate(
        scenario(
            target={"model": "meta-llama/Llama-2-7b-hf"},
            speculation={"method": "draft_model", "drafter": "JackFram/llama-68m", "num_speculative_tokens": 2},
            workload=workload(requests=30, prompt=prompt, output=40, rate_per_s=2.0),
        )
    )
    assert any("30 of 30 requests grow beyond the 2,048 positions" in warning for warning in run.warnings) == told
