"""Schedules of several methods, and what they are judged by: each as it would be alone, the best confirmed on other seeds."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import yaml

from simulator import simulate
from simulator.__main__ import main
from simulator.cost.spread import Estimate
from simulator.questions.schedule import ScheduleAnswer, schedule
from simulator.questions.schedule_worth import Judge, held_out_gain, judge_of, records_of
from simulator.reports.schedule import methods_table, schedule_sentences, schedule_tables
from simulator.simulation import Server
from simulator.spec import SpecError
from simulator.workload import ServiceLevel
from tests.test_alternatives import NGRAM
from tests.test_alternatives import scenario as with_alternatives
from tests.test_capacity import BASE, scenario

FEW = {**BASE["workload"], "num_requests": 80}
LOW_BATCH = {"limits": {"max_num_seqs": 48}, "workload": FEW, "service_level": None}
SMALL = {
    "speculation": {"method": "draft_model", "drafter": "meta-llama/Llama-3.2-1B-Instruct", "num_speculative_tokens": 2},
    "acceptance": {"acceptance_rate": 0.7},
}
OPEN = {"speculation": {"method": "suffix", "num_speculative_tokens": 2}}
TREE = {
    "speculation": {"method": "medusa", "tree": "steps=4,topk=4,draft_tokens=16"},
    "acceptance": {"mean_acceptance_length": 2.4},
}


@pytest.fixture(scope="module")
def several() -> ScheduleAnswer:
    return schedule(with_alternatives([NGRAM, SMALL, OPEN, TREE], **LOW_BATCH), held_out=3)


def test_each_method_has_the_schedule_that_it_has_alone(several):
    for way in ({}, NGRAM, SMALL):
        alone = schedule(scenario(**LOW_BATCH, **way), held_out=2)
        (found,) = [each for each in several.methods if each.scenario.file.speculation == alone.scenario.file.speculation]
        assert found.table == alone.table
        assert found.fixed_gains == alone.fixed_gains
        assert found.cells == alone.cells


def test_the_best_comes_first_and_its_lead_is_of_seeds_that_did_not_choose_it(several):
    assert several.method == "EAGLE-3"
    best = [max(gain for _, gain in each.fixed_gains) for each in several.methods]
    assert best == sorted(best, reverse=True)
    assert several.lead is not None
    assert several.scenario.file.seed not in several.held_out_seeds
    ratio = several.over_none.value / several.others[0].over_none.value
    assert several.lead.value == pytest.approx(ratio, rel=0.01)
    assert several.lead.low > 1.1  # an EAGLE-3 head against a separate model at the same acceptance


def test_what_has_no_schedule_is_left_out_with_its_reason(several):
    reasons = dict(several.left_out)
    assert "acceptance must be given" in reasons["suffix decoding"]
    assert "must draft chains" in next(why for name, why in reasons.items() if name.startswith("Medusa"))
    with pytest.raises(SpecError, match="acceptance: must be given") as none_left:
        schedule(with_alternatives([TREE], **LOW_BATCH, acceptance=None))
    assert len(none_left.value.problems) == 2


def test_the_sentences_name_the_method_and_how_sure_that_is(several):
    first = schedule_sentences(several)[0]
    assert first.startswith("Draft with EAGLE-3: mean time per output token")
    assert f"than with the next, {several.others[0].method}" in first
    unsure = replace(several, lead=Estimate(1.01, 0.99, 1.03))
    assert "hardly told apart" in schedule_sentences(unsure)[0]
    turned = replace(several, lead=Estimate(0.9, 0.88, 0.92))
    assert schedule_sentences(turned)[0].startswith(f"Draft with {several.others[0].method}")
    off = replace(several, best_fixed=0, gain=None, lead=None)
    assert schedule_sentences(off)[0].startswith("No method gains")
    assert [row[0] for row in methods_table(several)[1]] == [each.method for each in several.methods]


def test_the_command_compares_the_alternatives(tmp_path, capsys):
    data = {**BASE, "workload": {**FEW, "num_requests": 30}, "limits": {"max_num_seqs": 16}, "alternatives": [NGRAM]}
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(data))
    assert main(["schedule", str(path), "--out", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert "γ to run at, EAGLE-3" in text
    assert "γ to run at, n-gram lookup" in text
    assert "about EAGLE-3 alone" not in text
    written = json.loads((tmp_path / "out" / "schedule.json").read_text())
    assert [each["method"] for each in written["other_methods"]] == ["n-gram lookup"]
    rows = (tmp_path / "out" / "schedule.csv").read_text().splitlines()
    assert len(rows) == 1 + len(written["map"]) + len(written["other_methods"][0]["map"])


# ------------------------------------------------------------------------------------------------ what it is judged by

BUSY = {
    "workload": {**BASE["workload"], "arrivals": {"process": "gamma", "rate_per_s": 45.0, "burstiness": 6.0}},
    "limits": {"max_num_seqs": 48},
}
TIGHT = {"service_level": {"tpot_p90_s": 0.0085, "ttft_p90_s": 0.5}}


def test_under_a_service_level_goodput_decides_as_it_does_in_run():
    asked = scenario(**BUSY, **TIGHT, speculation={**BASE["speculation"], "num_speculative_tokens": [1, 3, 5]})
    answer = schedule(asked, held_out=2)
    assert answer.metric == "goodput"
    assert answer.remark == ""
    gains = dict(answer.fixed_gains)
    for comparison in simulate(asked).comparisons:
        assert comparison.metric == "goodput"
        assert gains[comparison.variant.gamma] == pytest.approx(comparison.gain.value)
    assert "Best for goodput" in " ".join(schedule_sentences(answer))


def test_a_level_that_everything_meets_leaves_it_to_time_and_is_not_given_up():
    asked = scenario(**LOW_BATCH | {"service_level": {"tpot_p90_s": 1.0}})
    answer = schedule(asked, held_out=2)
    assert answer.metric == "mean time per output token"
    assert "100.0 % of the requests are within the service level without speculation" in answer.remark
    assert answer.fixed_gains == schedule(scenario(**LOW_BATCH), held_out=2).fixed_gains
    assert any("judged by mean time per output token" in sentence for sentence in schedule_sentences(answer))
    # Quicker on average, but with a tail beyond the level: the rank is the share of the level that is left.
    judge = Judge(asked, "", lambda records: records.tpot_s, kept=ServiceLevel(ttft_p90_s=0.0295))
    runs = records_of({("", 0): Server.of(asked), ("", 3): Server.of(asked, asked.shapes[0])}, asked, None, lambda: None)
    plain, drafted = runs.values()
    assert judge.gain(drafted, plain) > 1
    assert judge.worth(drafted, plain) < 1


def test_a_level_that_nothing_meets_leaves_it_to_time():
    asked = scenario(**LOW_BATCH | {"service_level": {"tpot_p90_s": 1e-6}})
    answer = schedule(asked, held_out=2)
    assert answer.metric == "mean end-to-end latency"
    assert simulate(asked).best.metric.startswith(answer.metric)
    assert "no request is within the service level" in answer.remark


def test_users_who_wait_are_judged_by_their_output():
    users = {"arrivals": {"process": "closed_loop", "users": 6}, "lengths": {"prompt": 300, "output": 60}, "num_requests": 60}
    answer = schedule(scenario(**LOW_BATCH | {"workload": users}), held_out=2)
    assert answer.metric == "output rate per user"


def test_held_out_seeds_draw_acceptance_anew_even_where_requests_are_the_same():
    """Constant arrivals of one length: nothing but acceptance differs between seeds."""
    same = {"arrivals": {"process": "constant", "rate_per_s": 2.0}, "lengths": {"prompt": 300, "output": 60}, "num_requests": 40}
    asked = scenario(**LOW_BATCH | {"workload": same})
    ways = {("", 0): Server.of(asked), ("", 3): Server.of(asked, asked.shapes[0])}
    one, other = (records_of(ways, asked, seed, lambda: None) for seed in (7, 8))
    assert one["", 0].tpot_s == pytest.approx(other["", 0].tpot_s)
    assert np.any(one["", 3].tpot_s != other["", 3].tpot_s)
    again = records_of(ways, asked, 7, lambda: None)
    assert np.array_equal(one["", 3].tpot_s, again["", 3].tpot_s)
    gain = schedule(asked, held_out=3).over_none
    assert gain.low < gain.value < gain.high


def test_seeds_in_which_nothing_is_good_give_no_bounds():
    asked = scenario(**LOW_BATCH)
    records = records_of({("", 0): Server.of(asked), ("", 3): Server.of(asked, asked.shapes[0])}, asked, None, lambda: None)
    plain, drafted = records.values()
    between = (float(np.nanmax(drafted.tpot_s)) + float(np.nanmin(plain.tpot_s))) / 2
    judge = Judge(asked, "goodput", None, ServiceLevel(tpot_p90_s=between))
    assert math.isinf(judge.gain(drafted, plain))
    assert judge.gain(plain, drafted) == 0
    assert judge.worth(drafted, plain) == 1.0
    found = held_out_gain(judge, [(drafted, plain)] * 3)
    assert math.isinf(found.value)
    told = replace(schedule(asked, held_out=2), over_none=found, fixed_gains=((0, 1.0), (3, math.inf)))
    assert "none has any" in " ".join(schedule_sentences(told))
    assert all(text != "inf×" for _, _, rows in schedule_tables(told) for row in rows for text in row)
    assert judge_of(asked, plain, [drafted]).metric == "mean time per output token"
