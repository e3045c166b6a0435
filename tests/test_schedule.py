"""Schedules of γ by batch: each cell against the prices, the table in the engines' words, and its gain held out."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import yaml

from simulator.__main__ import main
from simulator.cost.spread import Estimate
from simulator.draft_policy import tokens_in
from simulator.interchange import trtllm_config
from simulator.interchange.engine_flags import parse_command
from simulator.questions.schedule import ScheduleAnswer, schedule
from simulator.reports.schedule import schedule_notes, schedule_sentences, schedule_snippets
from simulator.simulation import TIE, Server
from simulator.spec import SpecError
from tests.test_capacity import BASE, scenario

FAST = {"service_level": None}
BURSTY = {
    "arrivals": {"process": "gamma", "rate_per_s": 40.0, "burstiness": 30.0},
    "lengths": {"prompt": 300, "output": 100},
    "num_requests": 250,
}


@pytest.fixture(scope="module")
def bursty() -> ScheduleAnswer:
    """Quiet spells and bursts up to the largest batch: no γ suits both."""
    profile = {"conditional_acceptance_rates": [0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8]}
    drafts = {**BASE["speculation"], "num_speculative_tokens": 6}
    return schedule(
        scenario(**FAST, workload=BURSTY, acceptance=profile, speculation=drafts, limits={"max_num_seqs": 160}), held_out=4
    )


def test_ranges_cover_every_batch_once(bursty):
    assert bursty.table[0][0] == 1
    assert bursty.table[-1][1] == 160
    for (_, before, one), (first, _, other) in zip(bursty.table, bursty.table[1:], strict=False):
        assert first == before + 1
        assert one != other


def test_every_cell_is_within_three_per_cent_of_the_most_tokens_per_second(bursty):
    """Prices of the simulation itself, not those that chose."""
    asked = bursty.scenario
    for cell in bursty.cells:
        if cell.context_tokens != bursty.own_context:
            continue
        rates = {}
        for gamma in range(8):
            law = asked.acceptance(max(gamma, 1)).law
            server = Server(asked, asked.deployed(asked.shapes[0]), asked.shapes[0], law)
            tau = law.mean_acceptance_length(gamma) if gamma else 1.0
            rates[gamma] = tau / server.round_s(gamma, cell.batch, cell.context_tokens)
        assert rates[cell.num_speculative_tokens] > (1 - TIE - 0.005) * max(rates.values())
        assert rates[cell.fastest] > 0.99 * max(rates.values())


def test_larger_batches_draft_less(bursty):
    own = [cell.num_speculative_tokens for cell in bursty.cells if cell.context_tokens == bursty.own_context]
    assert own == sorted(own, reverse=True)
    assert own[0] > own[-1]


def test_a_schedule_pays_where_load_comes_and_goes_and_seeds_that_chose_nothing_say_so(bursty):
    assert bursty.gain is not None
    assert bursty.scenario.file.seed not in bursty.held_out_seeds
    assert bursty.gain.low < bursty.gain.value < bursty.gain.high
    assert bursty.needed == (bursty.gain.low > 1.005)
    assert bursty.gain.value > 1.0
    gains = dict(bursty.fixed_gains)
    assert gains[bursty.fastest_fixed] == max(gains.values())
    assert bursty.best_fixed == min(gamma for gamma in gains if gains[gamma] >= (1 - TIE) * max(gains.values()))


def test_a_constant_light_load_needs_no_schedule():
    light = {**BURSTY, "arrivals": {"process": "constant", "rate_per_s": 2.0}, "num_requests": 60}
    answer = schedule(scenario(**FAST, workload=light, limits={"max_num_seqs": 64}), held_out=3)
    assert not answer.needed
    assert schedule_sentences(answer)[0].startswith("No schedule needed")
    (vllm,) = next(found for engine, found, _ in schedule_snippets(answer) if engine == "vllm")
    assert "per_batch_size" not in vllm.text
    assert f'"num_speculative_tokens": {answer.best_fixed}' in vllm.text


@pytest.mark.parametrize("value", [0.9992, 1.0, 1.0003])
def test_a_gain_that_would_read_as_one_is_neither_better_nor_worse(bursty, value):
    first, *_ = schedule_sentences(replace(bursty, gain=Estimate(value, value - 0.002, value + 0.002)))
    assert "no better (80 % interval" in first
    assert "1.00× " not in first


@pytest.mark.parametrize(("value", "words"), [(0.0, "∞× worse"), (math.inf, "∞× better")])
def test_a_table_that_serves_nobody_within_the_level_or_alone_somebody_is_told(bursty, value, words):
    first, *_ = schedule_sentences(replace(bursty, gain=Estimate(value, 0.0, math.inf)))
    assert f"{words} (80 % interval too few" in first


def test_a_table_that_loses_is_not_said_to_be_below_noise(bursty):
    worse = replace(bursty, gain=Estimate(0.95, 0.94, 0.96))
    first, *_ = schedule_sentences(worse)
    assert "loses" in first
    assert "1.05× worse" in first
    assert "(80 % interval 1.04–1.06, simulated on 4 seeds that chose neither)" in first


def test_answers_of_one_token_are_compared_end_to_end():
    short = {**BURSTY, "lengths": {"prompt": 300, "output": 1}, "num_requests": 40}
    answer = schedule(scenario(**FAST, workload=short, limits={"max_num_seqs": 16}), held_out=2)
    assert answer.metric == "mean end-to-end latency"
    assert answer.best_fixed == 0


def test_requests_that_do_not_fit_are_counted_by_reason():
    long = {**BURSTY, "lengths": {"prompt": 600_000, "output": 10}, "num_requests": 5}
    with pytest.raises(SpecError, match="5 longer than max_model_len"):
        schedule(scenario(**FAST, workload=long))


def test_where_drafts_are_never_accepted_the_table_is_off_everywhere():
    never = scenario(
        **FAST, acceptance={"acceptance_rate": 0.0}, limits={"max_num_seqs": 32}, workload={**BURSTY, "num_requests": 40}
    )
    answer = schedule(never, held_out=2)
    assert answer.table == ((1, 32, 0),)
    assert answer.best_fixed == 0
    assert answer.gain is None
    assert all(not found and "leave speculation off" in reason for _, found, reason in schedule_snippets(answer))


def test_settings_read_back_as_the_table(bursty, tmp_path):
    worth_it = replace(bursty, gain=Estimate(1.1, 1.05, 1.15))
    found = {engine: snippets for engine, snippets, _ in schedule_snippets(worth_it)}
    vllm = parse_command(f"vllm serve meta-llama/Llama-3.1-8B-Instruct {found['vllm'][0].text}")
    read = tuple((first, last, gamma) for first, last, gamma in vllm.sections["speculation"]["by_batch"])
    assert all(tokens_in(read, batch) == tokens_in(bursty.table, batch) for batch in range(1, 161))
    flags, adaptive = found["sglang"]
    assert "--speculative-adaptive" in flags.text
    assert {int(batch): row["candidate_steps"] for batch, row in json.loads(adaptive.text).items()} == {
        first: [gamma] for first, _, gamma in bursty.table
    }
    (config,) = found["trtllm"]
    path = tmp_path / "config.yaml"
    path.write_text(config.text)
    section = trtllm_config.read(path).sections["speculation"]
    assert section.get("num_speculative_tokens", 0) == bursty.best_fixed or "by_batch" in section


def test_the_command_prints_the_map_and_writes_what_engines_read(tmp_path, capsys):
    data = {**BASE, "workload": {**BASE["workload"], "num_requests": 30}, "limits": {"max_num_seqs": 16}}
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(data))
    assert main(["schedule", str(path), "--out", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert "context \\ batch" in text
    assert "# vllm" in text
    written = json.loads((tmp_path / "out" / "schedule.json").read_text())
    assert (tmp_path / "out" / "vllm_flags.txt").read_text().startswith("--speculative-config")
    assert len((tmp_path / "out" / "schedule.csv").read_text().splitlines()) == 1 + len(written["map"])
    assert main(["schedule", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == written


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"speculation": None, "acceptance": None}, "speculation: must be given"),
        ({"acceptance": None}, "acceptance: must be given: the best γ depends on it"),
    ],
)
def test_what_no_schedule_can_be_made_of_is_told(changes, words):
    with pytest.raises(SpecError, match=words):
        schedule(scenario(**changes))


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
def test_the_settings_of_the_engine_simulated_come_first(engine):
    """llama.cpp takes no table, and so none is asked of it: its one γ is set."""
    answer = schedule(scenario(**FAST, engine=engine, target={**BASE["target"], "weights": "fp16"}), held_out=1)
    first, *others = [(name, found) for name, found, _ in schedule_snippets(answer)]
    assert first[0] == engine
    assert first[1] or engine == "llamacpp"
    assert {name for name, _ in others} == {"vllm", "sglang", "trtllm"} - {engine}


def test_an_engine_without_a_table_is_told_the_best_fixed_gamma(bursty):
    drafts = {"method": "draft_model", "drafter": "meta-llama/Llama-3.2-1B-Instruct", "num_speculative_tokens": 6}
    served = scenario(**FAST, engine="llamacpp", speculation=drafts, workload=BURSTY)
    answer = replace(bursty, scenario=served, gain=Estimate(1.1, 1.05, 1.15))
    assert answer.needed
    (setting,) = next(found for name, found, _ in schedule_snippets(answer) if name == "llamacpp")
    assert f"--spec-draft-n-max {answer.best_fixed}" in setting.text
    assert any("takes one γ, not the table" in note for note in schedule_notes(answer))


def test_a_gain_of_few_requests_within_the_service_level_is_none(bursty):
    """Every seed agrees that four more of a thousand come within the level: which they are is chance all the same."""
    gained = {"metric": "goodput", "gain": Estimate(1.02, 1.01, 1.03), "best_fixed": bursty.best_fixed}
    few, many = (replace(bursty, **gained, within=(900 + more, 900, 1000)) for more in (4, 40))
    assert not few.needed
    assert many.needed
    assert schedule_sentences(few)[0].startswith("No schedule needed")
    for told, count in ((few, 904), (many, 940)):
        assert f"{count} instead of 900 of 1,000 requests are within the service level" in schedule_sentences(told)[0]


def test_where_few_requests_are_outside_the_level_time_decides_and_not_which_of_them_one_seed_lets_in():
    burst = {"process": "gamma", "rate_per_s": 10, "burstiness": 20.0}
    lengths = {"prompt": 600, "output": {"distribution": "lognormal", "median": 80, "p90": 200}}
    served = {"arrivals": burst, "lengths": lengths, "num_requests": 300}
    level = {"ttft_p90_s": 0.5, "tpot_p90_s": 0.015}
    asked = scenario(workload=served, service_level=level, acceptance={"acceptance_rate": 0.6}, seed=100)
    found = schedule(asked, held_out=2)
    assert found.metric == "mean time per output token"
    assert "99." in found.remark
    assert "too little to gain" in found.remark
    gains = dict(found.fixed_gains)
    assert gains[found.best_fixed] >= (1 - TIE) * max(gains.values()) > 1.2


def test_leaving_it_off_is_said_by_seeds_that_did_not_choose():
    found = schedule(scenario(**FAST, acceptance={"acceptance_rate": 0.05}), held_out=3)
    assert found.off
    assert found.over_none.high < 1
    said = schedule_sentences(found)[0]
    assert "on 3 seeds that did not choose it" in said
    assert f"{found.over_none.value:.3f}" in said or f"{found.over_none.value:.2f}" in said
