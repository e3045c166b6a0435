"""What people read: sentences that keep to what the run shows, tables that keep together what belongs together."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from simulator import simulate
from simulator.__main__ import main
from simulator.cost.spread import Estimate
from simulator.questions.schedule import schedule
from simulator.reports.best_for import best_for_run, best_for_schedule
from simulator.reports.run_page import advice
from simulator.reports.schedule import schedule_sentences
from simulator.reports.variants import run_table
from simulator.reports.verdict import headline
from simulator.scenario import load_scenario
from simulator.serving.record import RequestRecords
from simulator.simulation import leading
from simulator.simulation.verdict import worth_of
from tests.test_capacity import BASE, scenario
from tests.test_scenario import run_quietly

FEW = {**BASE["workload"], "num_requests": 60}
USERS = {"arrivals": {"process": "closed_loop", "users": 4}, "lengths": {"prompt": 300, "output": 60}, "num_requests": 40}
OPEN = {"acceptance": None, "service_level": None, "workload": FEW}


def test_both_ends_of_an_open_acceptance_stay_together_however_narrow_the_page():
    result = simulate(scenario(**OPEN, speculation={**BASE["speculation"], "num_speculative_tokens": [1, 2, 3]}))
    for columns in (60, 80, 100, 120, 400):
        header, _ = run_table(result, columns)
        ends = [name.split(" ")[3] for name in header[2:]]
        assert ends.count("low") == ends.count("high") >= 1
        named = result.best.variant.shape.depth
        assert f"γ = {named} low" in header
    assert len(header) == 2 + 6
    assert headline(result)[0].startswith(("At either end of the measured acceptance: ", "It depends on acceptance"))
    assert not re.search(r": [A-Z]", headline(result)[0])


def test_users_who_wait_are_not_sent_to_capacity_which_is_of_open_loops():
    asked = scenario(workload=USERS, service_level=None)
    assert "capacity" not in best_for_run(simulate(asked), simulate(asked).best)
    assert "capacity" not in best_for_schedule(schedule(asked, held_out=2))
    open_loop = scenario(workload=FEW, service_level=None)
    assert "capacity" in best_for_run(simulate(open_loop), simulate(open_loop).best)


def test_goodput_that_cannot_rise_is_said_to():
    loose = simulate(scenario(workload=FEW, service_level={"tpot_p90_s": 1.0}))
    assert "100.0 % of the requests are within the service level: goodput has nothing to gain" in " ".join(headline(loose))
    # A hair of goodput lost is no reason to leave speculation off where tokens come sooner.
    lost = replace(loose.best, gain=Estimate(0.998, 0.99, 1.002))
    assert "no speculation" not in best_for_run(loose, lost)
    assert advice(loose, loose.best).endswith("but time per output token is certainly shorter.")
    slower = replace(loose.best, tpot=Estimate(1.1, 0.9, 1.3))
    assert advice(loose, slower).startswith("No gain is certain")
    tight = simulate(scenario(workload=FEW, service_level={"tpot_p90_s": 0.0071}))
    assert tight.best.metric == "goodput"
    assert "nothing to gain" not in " ".join(headline(tight))


def test_a_gain_far_from_tau_over_r_is_explained_by_the_batch():
    """A constant stream: tokens that come sooner leave fewer sequences beside each other, and rounds of a tree are cheaper then."""
    workload = {
        "arrivals": {"process": "constant", "rate_per_s": 10},
        "lengths": {"prompt": 200, "output": 150},
        "num_requests": 80,
    }
    tree = {"method": "medusa", "tree": "steps=3,topk=4,draft_tokens=16"}
    asked = {"hardware": "a100_sxm_80gb", "engine": "trtllm", "target": {"model": "lmsys/vicuna-7b-v1.3"}, "speculation": tree}
    crowded = simulate(scenario(**asked, acceptance={"mean_acceptance_length": 2.5}, workload=workload, service_level=None))
    taken = crowded.best
    decode = taken.mean_acceptance_length / taken.r.value
    assert taken.tpot.value / decode > 1.1
    assert f"at the batch of {taken.batch} without speculation; with it" in " ".join(headline(crowded))
    alone = simulate(scenario(workload={**FEW, "arrivals": {"process": "poisson", "rate_per_s": 0.2}}, service_level=None))
    assert "without speculation; with it" not in " ".join(headline(alone))


def test_where_nothing_gains_the_schedule_says_so_first_and_names_what_comes_nearest():
    answer = schedule(scenario(workload=FEW, service_level=None, acceptance={"acceptance_rate": 0.02}), held_out=2)
    gains = {gamma: gain for gamma, gain in answer.fixed_gains if gamma}
    first = schedule_sentences(answer)[0]
    assert first.startswith(
        f"Leave speculation off: of every fixed γ the best, γ = {max(gains, key=gains.__getitem__)}, comes to"
    )
    assert "no speculation" in schedule_sentences(answer)[-1]


def test_explain_and_predict_name_causes_in_the_words_of_run(capsys, tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump({**BASE, "workload": FEW}))
    causes = [cause.rpartition(" +")[0] for cause in simulate(load_scenario(str(path))).best.causes[:2]]
    assert main(["explain", str(path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert all(cause in shown for cause in causes)
    assert "verify: " not in shown


def test_files_that_a_scenario_names_lie_beside_it(tmp_path, monkeypatch, capsys):
    """As its traces do: it can be moved with them, and run from anywhere."""
    asked, elsewhere = tmp_path / "asked", tmp_path / "elsewhere"
    for folder in (asked, elsewhere, asked / "model"):
        folder.mkdir()
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 1024, "intermediate_size": 2816,
        "num_hidden_layers": 12, "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 32000,
        "max_position_embeddings": 8192,
    }  # fmt: skip
    (asked / "model" / "config.json").write_text(json.dumps(config))
    shipped = Path(__file__).parents[1]
    (asked / "card.yaml").write_text((shipped / "hardware_profiles" / "l40s.yaml").read_text().replace("NVIDIA L40S", "My card"))
    (asked / "server.yaml").write_text((shipped / "engine_profiles" / "vllm.yaml").read_text())
    data = {
        "hardware": {"base": "card.yaml", "memory_bandwidth_fraction": 0.5}, "engine": "server.yaml",
        "target": {"model": "model/config.json"}, "speculation": {"method": "draft_model", "drafter": "./model", "num_speculative_tokens": 2},
        "acceptance": {"acceptance_rate": 0.5}, "workload": FEW,
    }  # fmt: skip
    (asked / "s.yaml").write_text(yaml.safe_dump(data))
    monkeypatch.chdir(elsewhere)
    deployment = load_scenario(str(asked / "s.yaml")).deployment
    assert (deployment.hardware.name, deployment.target.hidden_size, deployment.drafter.hidden_size) == ("My card", 1024, 1024)
    (asked / "s.yaml").write_text(yaml.safe_dump({**data, "hardware": "nowhere.yaml"}))
    code, shown = run_quietly(["run", str(asked / "s.yaml")])
    assert code == 2
    assert "must be a known hardware profile or the path of a file" in shown


def test_a_model_by_fields_is_told_to_be_a_file():
    with pytest.raises(
        ValueError, match=r"target.model: must be text: a name, or the path of a file that holds such keys \(got a mapping\)"
    ):
        scenario(target={"model": {"hidden_size": 1024}})


def test_where_goodput_has_nothing_to_gain_what_is_quickest_and_keeps_it_is_named():
    """Of run, explain and schedule alike: a level that all meet tells no γ from another."""
    several = {"speculation": {**BASE["speculation"], "num_speculative_tokens": [1, 3, 5]}, "workload": FEW}
    loose = scenario(**several, service_level={"tpot_p90_s": 1.0})
    free = scenario(**several, service_level=None)
    met, without = simulate(loose), simulate(free)
    assert {comparison.verdict for comparison in met.comparisons} == {"close"}
    assert met.best.variant.gamma == without.best.variant.gamma > 1
    assert leading(loose)[0].shape.steps == met.best.variant.gamma
    limit_s = float(np.quantile(RequestRecords.of(without.plain.result.records).tpot_s, 0.97))
    few_outside = scenario(**several, service_level={"tpot_p90_s": limit_s})
    assert "goodput has too little to gain" in " ".join(headline(nearly := simulate(few_outside)))
    assert nearly.best.variant.gamma == leading(few_outside)[0].shape.steps == without.best.variant.gamma
    assert "too little to gain" in schedule(few_outside, held_out=2).remark
    assert worth_of(0.9, 2.0, True) == 0.9  # quicker, but it loses the level
    assert worth_of(1.2, 2.0, False) == 1.2
