"""What run, capacity, schedule, break-even, compare and explain recommend: one rule of choice, and each says what it is best for."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import yaml

from simulator import explain, simulate
from simulator.__main__ import main
from simulator.questions.capacity import capacity
from simulator.questions.comparison import compare
from simulator.questions.schedule import schedule
from simulator.reports.best_for import FILLED, best_for_capacity, best_for_run, best_for_schedule
from simulator.reports.capacity import capacity_sentences
from simulator.reports.explanation import explanation_sentences
from simulator.reports.schedule import schedule_sentences
from simulator.reports.verdict import headline
from simulator.simulation import TIE, leading
from tests.test_simulation import BASE, scenario

CHAT = {
    "arrivals": {"process": "poisson", "rate_per_s": 4},
    "lengths": {"prompt": {"distribution": "lognormal", "median": 500, "p90": 1200}, "output": 120},
    "num_requests": 60,
}
GAMMAS = [1, 2, 3, 4, 5]
ASKED = {"speculation": {**BASE["speculation"], "num_speculative_tokens": GAMMAS}, "acceptance": {"acceptance_rate": 0.75}}


def chat(**changes):
    return scenario(**{**ASKED, "workload": CHAT, **changes})


@pytest.fixture(scope="module")
def ran():
    return simulate(chat())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"service_level": {"tpot_p99_s": 0.004}},
        {"workload": {**CHAT, "arrivals": {"process": "closed_loop", "users": 24}}},
        {"acceptance": None},
        {"speculation": {**ASKED["speculation"], "policy": [{"kind": "fixed"}, {"kind": "off_above", "batch": 2}]}},
    ],
    ids=["open loop", "goodput", "closed loop", "open acceptance", "policies"],
)
def test_explain_is_about_what_the_verdict_of_run_names(changes):
    asked = chat(**changes)
    named = simulate(asked).best.variant
    server, _ = leading(asked)
    assert (server.shape, server.policy) == (named.shape, named.policy)
    answer = explain(asked)
    assert answer.shape == named.shape
    said = explanation_sentences(answer)[1]
    assert f"it is {named.label.partition(', τ = ')[0]} that run names" in said
    assert "--gamma explains another" in said


def test_explain_of_a_stated_gamma_or_of_the_only_one_names_no_other():
    assert explain(chat(), gamma=2).num_speculative_tokens == 2
    for answer in (explain(chat(), gamma=2), explain(chat(speculation=BASE["speculation"]))):
        assert not any("that run names" in sentence for sentence in explanation_sentences(answer))


def test_run_schedule_and_compare_take_the_same_gamma_of_the_same_ones_by_the_same_gains(ran):
    answer = schedule(chat(), held_out=2)
    gains = dict(answer.fixed_gains)
    for comparison in ran.comparisons:
        assert gains[comparison.variant.gamma] == pytest.approx(comparison.gain.value)
    among = {gamma: gains[gamma] for gamma in GAMMAS}
    assert ran.best.variant.gamma == min(gamma for gamma in among if among[gamma] >= (1 - TIE) * max(among.values()))
    assert gains[answer.best_fixed] >= (1 - TIE) * gains[answer.fastest_fixed]
    row = compare(chat(), "hardware", ["h100_sxm"]).rows[0]
    assert row.num_speculative_tokens == ran.best.variant.gamma


def test_capacity_takes_the_smallest_gamma_within_a_tie_and_says_so():
    answer = capacity(chat(), repetitions=1)
    rates = {row.server.shape.depth: row.rate_per_s for row in answer.rows[1:] if row.rate_per_s is not None}
    taken = answer.drafting.server.shape.depth
    assert taken == min(gamma for gamma in rates if rates[gamma] >= (1 - TIE) * max(rates.values()))
    more = any(rate > rates[taken] for gamma, rate in rates.items() if gamma > taken)
    assert any("gains less than 3 % more" in sentence for sentence in capacity_sentences(answer)) == more


def test_each_says_what_it_is_best_for_and_which_of_them_decides(ran):
    said = best_for_run(ran, ran.best)
    assert said == headline(ran)[-1]
    assert re.match(
        r"Best at [\d.]+ requests per second \(\d+ % of what a plain server finishes\): γ = \d, of γ = 1, 2, 3, 4 and 5", said
    )
    assert "what capacity names" in said
    answer = capacity(chat(), repetitions=1)
    assert "set what run names" in best_for_capacity(answer)[0]  # its own traffic hardly fills a copy
    assert best_for_capacity(answer)[0] in capacity_sentences(answer)
    crowded = replace(answer, rows=tuple(replace(r, fleet=r.fleet and replace(r.fleet, load=FILLED)) for r in answer.rows))
    assert "set it; at less traffic what run names" in best_for_capacity(crowded)[0]
    table = schedule(chat(), held_out=2)
    assert best_for_schedule(table) in schedule_sentences(table)
    assert "run knows γ = 1, 2, 3, 4 and 5 only" in best_for_schedule(replace(table, gain=None))


def test_where_speculation_loses_none_is_best():
    lost = simulate(chat(acceptance={"acceptance_rate": 0.0}))
    assert lost.best.verdict == "lose"
    assert "no speculation" in best_for_run(lost, lost.best)


@pytest.mark.parametrize(
    ("speculation", "expected"),
    [
        (
            {"method": "eagle3", "num_speculative_tokens": 3},
            "no setting for EAGLE-3 will follow: method eagle3 must name its drafter",
        ),
        ({"method": "none"}, "no speculation is asked for"),
        ({"method": "ngram", "num_speculative_tokens": 3}, ""),
    ],
)
def test_what_the_answer_of_capacity_will_lack_is_said_before_it_is_searched_for(speculation, expected, tmp_path, capsys):
    drafts = speculation["method"] != "none"
    data = {**BASE, "speculation": speculation, "acceptance": {"acceptance_rate": 0.5} if drafts else None}
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in data.items() if value is not None}))
    assert main(["capacity", str(path), "--repetitions", "1"]) == 0
    first = capsys.readouterr().err.splitlines()[0]
    assert expected in first if expected else first.startswith("simulating")
