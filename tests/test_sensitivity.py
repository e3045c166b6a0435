"""What moves the verdict: signs that physics fixes, changes that mean what they say, and the worth of a better draft."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from simulator import explain, load_scenario
from simulator.__main__ import main
from simulator.questions.priced_point import point_of_scenario
from simulator.questions.sensitivity import Change, Sensitivity, sensitivity, sensitivity_at
from simulator.serving_engine import captured_rows
from tests.test_simulation import scenario


def change(answer: Sensitivity, words: str) -> Change:
    (found,) = (each for lever in answer.levers for each in lever.changes if each.change.startswith(words))
    return found


def test_no_change_at_all_leaves_the_answer_of_explain():
    loaded = scenario()
    answer, explained = sensitivity(loaded, batch=8, context=700), explain(loaded, batch=8, context=700)
    assert (answer.r, answer.speedup, answer.verdict) == (explained.r, explained.speedup, explained.verdict)
    assert explained.sensitivity == answer


def test_levers_are_in_order_of_their_reach_and_effects_are_of_the_speedup():
    answer = sensitivity(scenario(), batch=8, context=700)
    reaches = [lever.reach for lever in answer.levers]
    assert reaches == sorted(reaches, reverse=True)
    for lever in answer.levers:
        for each in lever.changes:
            assert each.effect == pytest.approx(each.speedup / answer.speedup.value - 1)
            assert each.speedup == pytest.approx(each.mean_acceptance_length / each.r)


def test_physics_fixes_the_signs():
    """More acceptance helps, a slower host per round hurts, a smaller draft head helps; a plain step bound by memory alone gains
    more from bandwidth than a round does, so that more bandwidth makes speculation worth less."""
    answer = sensitivity(scenario(), batch=1, context=700)
    assert change(answer, "acceptance rate +").effect > 0 > change(answer, "acceptance rate -").effect
    slower = change(answer, "engine overhead per round and draft step doubled")
    assert slower.effect < 0 < change(answer, "engine overhead per round and draft step halved").effect
    assert change(answer, "memory bandwidth +").effect < 0 < change(answer, "memory bandwidth -").effect
    busy = sensitivity(scenario(), batch=256, context=300)
    assert change(busy, "batch halved").effect > 0.05
    assert change(busy, "arithmetic +").effect > 0.02


def test_a_tenth_more_acceptance_is_that_of_every_rate_and_stops_at_one():
    point = point_of_scenario(scenario(acceptance={"acceptance_rate": 0.95}), batch=4, context=700)
    better = replace(point, acceptance_factor=1.1)
    assert better.mean_acceptance_length() == pytest.approx(point.gamma + 1)
    point = point_of_scenario(scenario(acceptance={"acceptance_rate": 0.5}), batch=4, context=700)
    better = replace(point, acceptance_factor=1.1)
    assert better.mean_acceptance_length() == pytest.approx(sum(0.55**i for i in range(point.gamma + 1)))


def test_a_better_draft_is_worth_the_slope_of_speedup_over_acceptance_length():
    """R barely depends on acceptance, so that the slope is 1 / R, and with every draft accepted the speedup is (γ + 1) / R."""
    answer = sensitivity(scenario(), batch=4, context=700)
    assert answer.better_draft.per_token == pytest.approx(1 / answer.r.value, rel=0.02)
    assert answer.better_draft.most_tokens == answer.shape.depth + 1
    assert answer.better_draft.most_speedup == pytest.approx(answer.better_draft.most_tokens / answer.r.value, rel=0.02)
    assert answer.better_draft.needed_tokens == pytest.approx(answer.r.value)


def test_split_kv_turns_the_long_context_case_round():
    answer = sensitivity(load_scenario("long_context_4090"))
    assert answer.verdict == "lose"
    changed = change(answer, "verification attention that splits")
    assert changed.speedup > 1.1
    assert changed.verdict == "close"  # this engine was never measured on the device
    assert answer.levers[0].name.startswith("verification attention")
    assert [each.change for each in answer.flips] == ["verification attention that splits the KV cache"]


def test_graphs_are_a_lever_only_where_the_ladder_ends_below_the_batch():
    engine = scenario().deployment.engine
    slow = engine.launch_per_layer_s.model_copy(update={"value": 1e-3})
    engine = engine.model_copy(update={"launch_per_layer_s": slow})
    loaded = replace(scenario(), deployment=replace(scenario().deployment, engine=engine))
    inside, beyond = engine.graphs.largest // 4, engine.graphs.largest // 4 + 8
    for batch, there in ((inside, False), (beyond, True)):
        assert (captured_rows(engine, 4 * batch, batch) is None) is there
        names = [lever.name for lever in sensitivity(loaded, gamma=3, batch=batch, context=300).levers]
        assert any(name.startswith("captured graphs") for name in names) is there
    covered = change(sensitivity(loaded, gamma=3, batch=beyond, context=300), "captured graphs")
    assert covered.effect > 0


def test_a_draft_over_many_devices_may_try_one():
    answer = sensitivity(load_scenario("llama70b_draft8b_tp4"))
    assert change(answer, "the draft on one device instead of 4").r > answer.r.value
    assert not any(lever.name.startswith("the draft on one") for lever in sensitivity(scenario(), batch=2, context=700).levers)


def test_where_acceptance_is_open_it_is_r_that_moves():
    answer = sensitivity(scenario(acceptance=None), batch=8, context=700)
    assert answer.speedup is None
    assert answer.better_draft is None
    assert not any(lever.name == "acceptance rate" for lever in answer.levers)
    doubled = change(answer, "engine overhead per round and draft step doubled")
    assert doubled.effect == pytest.approx(doubled.r / answer.r.value - 1)


def test_explain_prints_what_moves_it_and_json_holds_all(capsys):
    assert main(["explain", "llama70b_draft8b_tp4"]) == 0
    printed = capsys.readouterr().out
    assert "what if" in printed
    assert "each further 0.1 token per round" in printed.replace("\n", " ")
    assert all(len(line) <= 100 for line in printed.splitlines())
    assert main(["explain", "llama70b_draft8b_tp4", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)["sensitivity"]
    expected = sensitivity_at(point_of_scenario(load_scenario("llama70b_draft8b_tp4")))
    assert [lever["name"] for lever in document["levers"]] == [lever.name for lever in expected.levers]
    assert document["better_draft"]["per_token"] == pytest.approx(expected.better_draft.per_token)
