"""Draft trees in scenarios: rows by nodes, depth by steps, acceptance measured with the tree and never a chain's."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import break_even, load_scenario, predict, simulate
from simulator.__main__ import main
from simulator.acceptance import tree_law
from simulator.draft_tree import Tree, read_tree
from simulator.questions.explanation import explain
from simulator.reports.files import write_run
from simulator.reports.summary import break_even_csv
from simulator.reports.tables import break_even_tables
from simulator.simulation import batching_rules
from simulator.spec import SpecError
from tests.test_scenario import run_quietly
from tests.test_simulation import BASE, scenario, workload

SHAPE = {"steps": 5, "topk": 4, "draft_tokens": 16}
TREE = read_tree(SHAPE)
EAGLE = {"method": "eagle3", "drafter": BASE["speculation"]["drafter"]}  # type: ignore[index]
ONE_USER = workload("closed_loop", users=1, requests=40, prompt=64, output=400)


def with_tree(acceptance: dict | None = None, shape: object = SHAPE, **changes):
    acceptance = {"mean_acceptance_length": 3.2} if acceptance is None else acceptance
    return scenario(speculation={**EAGLE, "tree": shape}, acceptance=acceptance, **changes)


# ---------------------------------------------------------------------------------------------------------------- shapes


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(2, 128))
def test_mapping_and_text_are_one_tree_and_none_has_more_nodes_than_it_can(steps, topk, nodes):
    sizes = {"steps": steps, "topk": topk, "draft_tokens": nodes}
    text = ",".join(f"{name}={value}" for name, value in sizes.items())
    try:
        tree = read_tree(sizes)
    except ValueError:
        assert nodes != steps + 1 if topk == 1 else nodes > 1 + topk + (steps - 1) * topk**2
        with pytest.raises(ValueError, match="must"):
            read_tree(text)
        return
    assert read_tree(text) == tree
    assert tree.nodes == nodes
    assert tree.depth <= steps
    assert tree.is_chain == (topk == 1)


def test_a_chain_written_as_a_tree_is_that_chain():
    chain, written = (
        simulate(scenario(speculation={**EAGLE, **how})).comparisons[0]
        for how in ({"num_speculative_tokens": 3}, {"tree": "steps=3,topk=1,draft_tokens=4"})
    )
    assert chain.gain == written.gain
    assert chain.variant.label == written.variant.label


@pytest.mark.parametrize(
    ("speculation", "expected"),
    [
        ({**EAGLE, "tree": "five"}, "must be such as steps=5"),
        ({**EAGLE, "tree": {"steps": 2, "topk": 2, "draft_tokens": 9}}, "at most 1 + topk"),
        ({**EAGLE, "tree": {"steps": 3, "topk": 1, "draft_tokens": 8}}, "one node more than steps"),
        ({**EAGLE, "tree": {"nodes": 8, "draft_tokens": 8}}, "not both"),
        ({**EAGLE, "tree": {"nodez": 8}}, "did you mean nodes"),
        ({**EAGLE, "tree": ["nodes=8", "nodes=8"]}, "stands twice"),
        ({**EAGLE, "tree": "nodes=8", "by_batch": [[1, 8, 3]]}, "no tree beside by_batch"),
        ({"method": "ngram", "tree": "nodes=8"}, "drafts no trees"),
        ({"method": "layer_skip", "draft_layers": 8, "tree": "nodes=8"}, "drafts no trees"),
    ],
)
def test_what_is_no_tree_is_refused(speculation, expected):
    with pytest.raises(SpecError) as caught:
        scenario(speculation=speculation)
    assert expected in str(caught.value)
    assert str(caught.value).startswith("s.yaml:")


# ------------------------------------------------------------------------------------------------------------ simulation


def test_every_sequence_verifies_the_nodes_and_keeps_slots_for_them():
    loaded = with_tree()
    variant = simulate(loaded).comparisons[0].variant
    steps = variant.result.steps
    rows, sequences = steps.column("rows"), steps.column("decode_sequences")
    assert (rows[sequences > 0] == TREE.nodes * sequences[sequences > 0]).all()
    rules = batching_rules(loaded, loaded.deployed(TREE), TREE.nodes - 1)
    extra = loaded.deployment.engine.lookahead_extra_slots
    assert rules.lookahead_slots(TREE.nodes - 1) == TREE.nodes - 1 + extra


def test_the_token_budget_of_a_step_counts_nodes():
    variant = simulate(with_tree(limits={"max_num_batched_tokens": 64}, workload=workload("closed_loop", users=12, requests=40))).comparisons[0].variant  # fmt: skip
    steps = variant.result.steps
    tokens = steps.column("rows") + steps.column("prefill_tokens")
    assert tokens.max() <= 64
    assert steps.column("decode_sequences").max() <= 64 // TREE.nodes + 1
    with pytest.raises(SpecError, match="the nodes of tree 5/4/16 = 16"):
        with_tree(limits={"max_num_batched_tokens": 15})


def test_a_round_accepts_at_most_the_depth_and_yields_the_stated_length_on_average():
    comparison = simulate(with_tree(workload=ONE_USER)).comparisons[0]
    rounds = comparison.variant.summary.acceptance.rounds
    law = tree_law(TREE, 3.2)
    depths = [math.prod(law.conditional_rates(i)) for i in range(1, TREE.depth + 1)]
    variance = sum((2 * i - 1) * p for i, p in enumerate(depths, start=1)) - 2.2**2
    assert comparison.mean_acceptance_length == pytest.approx(3.2, abs=4 * math.sqrt(variance / rounds))
    # The cut at the end of an output apart, a burst is the accepted path and the bonus.
    assert max(max(record.emission_tokens) for record in comparison.variant.result.records) == TREE.depth + 1


def test_batch_one_is_the_closed_form():
    comparison = simulate(with_tree(workload=ONE_USER)).comparisons[0]
    assert comparison.batch == 1
    assert comparison.tpot.value == pytest.approx(comparison.mean_acceptance_length / comparison.round.r, rel=0.03)
    assert comparison.break_even_acceptance_rate is None


def test_a_round_costs_what_predict_says():
    comparison = simulate(with_tree(workload=ONE_USER)).comparisons[0]
    predicted = predict(
        hardware="h100_sxm", engine="vllm", target=BASE["target"]["model"], method="eagle3", draft_model=EAGLE["drafter"], batch=1,
        precision="bf16", tensor_parallel_size=1, context_len=round(comparison.context), mean_acceptance_length=3.2,
        tree_shape="steps=5,topk=4,draft_tokens=16",
    )  # fmt: skip
    assert comparison.round.r == pytest.approx(predicted.r, rel=1e-3)


@pytest.mark.parametrize("method", ["eagle", "medusa", "hydra", "mtp", "draft_model"])
def test_every_method_that_can_branch_runs_and_a_wider_tree_costs_more(method):
    target = {"model": "deepseek-ai/DeepSeek-V3" if method == "mtp" else BASE["target"]["model"]}
    speculation = {"method": method}
    if method == "draft_model":
        speculation["drafter"] = "meta-llama/Llama-3.2-1B"
    big = {"hardware": "h200_sxm", "parallel": {"tensor_parallel_size": 8}, "target": {**target, "weights": "fp8"}}
    changes = big if method == "mtp" else {}
    trees = [{"steps": 3, "topk": 2, "draft_tokens": 6}, {"steps": 3, "topk": 8, "draft_tokens": 64}]
    result = simulate(
        scenario(
            speculation={**speculation, "tree": trees},
            acceptance={"trees": [{"tree": tree, "mean_acceptance_length": 2.5} for tree in trees]},
            workload=workload(requests=20, rate_per_s=4.0),
            **changes,
        )
    )
    small, large = result.comparisons
    assert 1 < small.round.r < large.round.r


# ------------------------------------------------------------------------------------------------------------ acceptance


def test_trees_and_chains_are_compared_each_by_its_own_measured_acceptance():
    loaded = scenario(
        speculation={**EAGLE, "num_speculative_tokens": [3, 5], "tree": ["steps=5,topk=3,draft_tokens=6"]},
        acceptance={"profile": "llama31_8b_eagle3_specforge", "domain": "mtbench"},
        workload=workload("closed_loop", users=8, requests=24, prompt=64, output=150),
    )
    result = simulate(loaded)
    assert [c.variant.label for c in result.comparisons] == ["γ = 3", "γ = 5", "tree 5/3/6"]
    published = {"γ = 3": 2.898, "γ = 5": 3.516, "tree 5/3/6": 3.006}
    for comparison in result.comparisons:
        assert comparison.mean_acceptance_length == pytest.approx(published[comparison.variant.label], rel=0.04)


def test_over_all_texts_a_profiles_tree_is_counted_over_rounds():
    """Texts of equal length have rounds in inverse proportion to their τ: the mean over rounds is the harmonic one."""
    tree = read_tree("steps=7,topk=4,draft_tokens=8")
    law = scenario(
        speculation={**EAGLE, "tree": "steps=7,topk=4,draft_tokens=8"}, acceptance={"profile": "llama31_8b_eagle3_specforge"}
    )
    lengths = [2.938, 2.367, 4.256, 3.126, 3.585, 2.25, 3.692]
    tau = law.acceptance(tree.steps, tree).law.mean_acceptance_length(tree.depth)
    assert tau == pytest.approx(len(lengths) / sum(1 / length for length in lengths), rel=1e-6)


@pytest.mark.parametrize(
    ("acceptance", "expected"),
    [
        ({"acceptance_rate": 0.7}, "acceptance_rate: must not stand for tree 5/4/16"),
        ({"profile": "llama31_8b_eagle3_mtbench"}, "must be a profile measured with tree 5/4/16"),
        ({"profile": "llama31_8b_eagle3_specforge"}, "holds trees: tree 5/3/6, tree 7/4/8"),
        ({"mean_acceptance_length": 6.5}, "must be at most 6"),
        ({"acceptance_rates_per_position": [0.7, 0.5]}, "must hold 5 rates"),
        ({"conditional_acceptance_rates": [0.7] * 6}, "must hold 5 rates"),
        ({"trees": [{"tree": "nodes=64", "mean_acceptance_length": 2.0}]}, "must be a tree of the speculation section"),
        ({"trees": [{"tree": SHAPE}]}, "exactly one of mean_acceptance_length"),
        ({"mean_acceptance_length": 3, "trees": [{"tree": SHAPE, "mean_acceptance_length": 3}]}, "must be left out"),
    ],
)
def test_a_chains_acceptance_is_never_taken_for_a_tree(acceptance, expected):
    with pytest.raises(SpecError) as caught:
        with_tree(acceptance)
    assert expected in str(caught.value)


def test_several_shapes_need_an_acceptance_each():
    two = {**EAGLE, "num_speculative_tokens": 3, "tree": SHAPE}
    for acceptance, expected in (
        ({"mean_acceptance_length": 2.5}, "trees: must hold tree 5/4/16"),
        ({"trees": [{"tree": SHAPE, "mean_acceptance_length": 3}]}, "must stand beside the acceptance of chains"),
    ):
        with pytest.raises(SpecError, match=expected):
            scenario(speculation=two, acceptance=acceptance)
    both = {"acceptance_rate": 0.7, "trees": [{"tree": SHAPE, "mean_acceptance_length": 3}]}
    assert len(scenario(speculation=two, acceptance=both).shapes) == 2


def test_rates_by_depth_are_taken_as_they_are_and_a_spread_keeps_their_length():
    rates = [0.8, 0.6, 0.3, 0.2, 0.1]
    loaded = with_tree({"acceptance_rates_per_position": rates})
    assert loaded.acceptance(5, TREE).law.mean_acceptance_length(TREE.nodes - 1) == pytest.approx(3.0)
    spread = with_tree({"acceptance_rates_per_position": rates, "request_spread": 0.15}).acceptance(5, TREE).law
    assert spread.mean_acceptance_length(TREE.nodes - 1) == pytest.approx(3.0, rel=1e-3)


def test_open_acceptance_of_a_tree_takes_measurements_with_that_tree_only():
    measured = {**EAGLE, "tree": "steps=5,topk=3,draft_tokens=6"}
    result = simulate(scenario(speculation=measured, acceptance=None, workload=workload(requests=20, rate_per_s=4.0)))
    assert ["low end" in c.variant.label for c in result.comparisons] == [True, False]
    assert any("1.75 (llama31_8b_eagle3_lmsys (gsm8k))" in warning for warning in result.warnings)
    with pytest.raises(SpecError, match="no measured acceptance of tree 5/4/16"):
        simulate(scenario(speculation={**EAGLE, "tree": SHAPE}, acceptance=None))


def test_predict_refuses_a_chains_acceptance_and_a_gamma_that_contradicts_the_tree():
    point = {"hardware": "h100_sxm", "target": BASE["target"]["model"], "method": "eagle3", "batch": 1, "context_len": 500}
    tree = {"tree_shape": "steps=5,topk=4,draft_tokens=16"}
    with pytest.raises(SpecError, match="it is of a chain"):
        predict(**point, **tree, acceptance_rate=0.7)
    for agreeing in (5, 15, None):
        assert predict(**point, **tree, num_speculative_tokens=agreeing, mean_acceptance_length=3.0).status == "ok"
    with pytest.raises(SpecError, match="agree with its 5 steps and 15 drafts"):
        predict(**point, **tree, num_speculative_tokens=3, mean_acceptance_length=3.0)


# ------------------------------------------------------------------------------------------- break-even, explain, reports


def test_break_even_of_a_tree_is_a_length_and_has_no_rate():
    answer = break_even(with_tree(), batches=(1, 64), contexts=(512,))
    assert {point.tree for point in answer.points} == {TREE}
    assert all(point.break_even_acceptance_rate is None and point.r > 1 for point in answer.points)
    assert any("τ* only" in warning for warning in answer.warnings)
    titles = [title for title, _, _ in break_even_tables(answer)]
    assert titles == ["Break-even acceptance length τ* at context 512 tokens"]
    lines = break_even_csv(answer).splitlines()
    assert lines[1].startswith("5,5/4/16,1,512,,")


def test_explain_takes_the_tree_and_refuses_what_the_scenario_does_not_draft():
    answer = explain(with_tree(), batch=1, context=500)
    assert answer.shape == TREE
    assert answer.break_even_acceptance_rate is None
    for arguments, expected in (
        (["--gamma", "9", "--tree-shape", "nodes=64"], "must be left out with --tree-shape"),
        (["--tree-shape", "nodes=64"], "must be a tree of the scenario"),
    ):
        code, shown = run_quietly(["explain", "tree_under_load", *arguments])
        assert code == 2
        assert expected in shown
    with pytest.raises(ValueError, match="trees only"):
        explain(with_tree(), gamma=3, batch=1)


def test_a_report_of_trees_has_its_figures_and_settings(tmp_path):
    loaded = with_tree(workload=workload(requests=30, rate_per_s=4.0))
    write_run(simulate(loaded), tmp_path)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "tree 5/4/16" in text
    assert "draft_tokens: 16" in text
    assert "break_even_length.png" in text
    assert not (tmp_path / "figures" / "break_even.png").exists()
    summary = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert summary["comparisons"][0]["tree"] == "5/4/16"
    r = summary["comparisons"][0]["round_cost_ratio"]["value"]
    assert summary["comparisons"][0]["break_even_draft_acceptance_rate"] == pytest.approx((r - 1) / 15, rel=1e-4)


def test_the_shipped_tree_wins_for_one_user_and_loses_under_load(capsys):
    """At batch 1 the measured speedup is 1.62 (SpecForge SpecBundle, Llama-3.1-8B, MT-Bench, 7/4/8 on an H200)."""
    loaded = load_scenario("tree_under_load")
    tree = read_tree("steps=7,topk=4,draft_tokens=8")
    alone = explain(loaded, batch=1, tree=tree)
    assert alone.verdict == "win"
    assert alone.speedup.value == pytest.approx(1.6213, rel=0.1)
    assert explain(loaded, batch=256, tree=tree).verdict == "lose"
    fewer = loaded.file.workload.model_copy(update={"num_requests": 512})
    busy = simulate(dataclasses.replace(loaded, file=loaded.file.model_copy(update={"workload": fewer})))
    assert [c.verdict for c in busy.comparisons if c.variant.shape == tree] == ["lose"]
    assert main(["break-even", "tree_under_load"]) == 0
    assert "tree 7/4/8, τ*" in capsys.readouterr().out


def test_a_chain_is_a_tree_of_width_one():
    assert [Tree.chain(gamma).nodes for gamma in (1, 5)] == [2, 6]
    assert Tree.chain(4).depth == 4
