"""How much traffic a deployment carries: against M/D/1, monotone in what must be monotone, and honest about short runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import yaml
from scipy.optimize import brentq

from simulator.__main__ import main
from simulator.cost.spread import Estimate
from simulator.planning import PlanningSpec
from simulator.questions.capacity import CapacityAnswer, capacity
from simulator.questions.sample import likeness
from simulator.questions.sustained import Sustained, at_rate, unit_stream
from simulator.reports.capacity import capacity_doubts, capacity_notes, capacity_sentences, capacity_tables
from simulator.scenario import Scenario, scenario_of
from simulator.simulation import Server, saturation_of
from simulator.spec import SpecError, parse_yaml
from simulator.waiting_time import waiting_time
from simulator.workload import again, requests_of

BASE = {
    "hardware": "h100_sxm",
    "engine": "vllm",
    "target": {"model": "meta-llama/Llama-3.1-8B-Instruct"},
    "speculation": {"method": "eagle3", "drafter": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 3},
    "acceptance": {"acceptance_rate": 0.7},
    "workload": {
        "arrivals": {"process": "poisson", "rate_per_s": 8.0},
        "lengths": {"prompt": 600, "output": 80},
        "num_requests": 250,
    },
    "service_level": {"tpot_p90_s": 0.015, "ttft_p90_s": 0.5},
    "seed": 5,
}


def scenario(**changes) -> Scenario:
    data = {key: value for key, value in {**BASE, **changes}.items() if value is not None}
    return scenario_of(parse_yaml(yaml.safe_dump(data, sort_keys=False), "s.yaml"))


def rate(answer: CapacityAnswer, row: int = 0) -> float:
    found = answer.rows[row].rate_per_s
    assert found is not None
    return found


def plain(level: dict | None, **changes) -> float:
    """The sustained rate without speculation."""
    return rate(capacity(scenario(speculation=None, acceptance=None, service_level=level, **changes), repetitions=2))


# ------------------------------------------------------------------------------------------------------- closed forms


def md1_waits_within(services: float, load: float) -> float:
    """P(wait ≤ so many service times) of M/D/1 at a load (Erlang 1909)."""
    terms = [
        math.exp(load * left) * (-load * left) ** k / math.factorial(k)
        for k in range(math.floor(services) + 1)
        for left in [services - k]
    ]
    return (1 - load) * sum(terms)


def one_at_a_time(
    prompt: int, output: int, requests: int, level: Callable[[float, float], dict[str, float]]
) -> tuple[Sustained, float]:
    """(what is sustained, seconds of one service) where prompts and answers have one length each and are served one by one.
    level: of the seconds to a lone request's first token and its last."""
    served = {
        "lengths": {"prompt": prompt, "output": output},
        "num_requests": requests,
        "arrivals": {"process": "poisson", "rate_per_s": 1.0},
    }
    asked = {"speculation": None, "acceptance": None, "workload": served, "limits": {"max_num_seqs": 1}}
    one = scenario(**asked, service_level=None)
    alone = Server.of(one).run(one.requests()[:1]).records[0]
    found = capacity(scenario(**asked, service_level=level(alone.ttft_s, alone.e2e_latency_s)), repetitions=2).plain.sustained
    return found, alone.e2e_latency_s


@pytest.mark.parametrize(
    ("prompt", "output", "metric", "percentile", "services"),
    [(12000, 1, "e2e", 50, 0.5), (150, 20, "e2e", 99, 6.0), (2000, 1, "e2e", 90, 30.0)],
)
def test_one_request_at_a_time_carries_what_md1_says(prompt, output, metric, percentile, services):
    """Services of equal length, one at a time, in order: waits are those of M/D/1, and what follows them is certain. A scenario
    of few requests suffices: they are short, and more are drawn."""

    def level(first_s, all_s):
        return {f"{metric}_p{percentile}_s": {"ttft": first_s, "e2e": all_s}[metric] + services * all_s}

    found, service_s = one_at_a_time(prompt, output, 400, level)
    load = brentq(lambda r: md1_waits_within(services, r) - percentile / 100, 0.05, 0.99)
    assert found.rate.value * service_s == pytest.approx(load, rel=0.02)
    assert found.rate.low * service_s <= load <= found.rate.high * service_s
    assert not found.doubts


def test_near_saturation_a_run_is_too_short_to_tell_and_its_interval_knows():
    """At 99 % of saturation a queue settles over twenty thousand requests: waits as long as these were not seen at all."""
    found, service_s = one_at_a_time(2000, 1, 100, lambda _, all_s: {"e2e_p90_s": 151 * all_s})
    load = brentq(lambda r: waiting_time(np.array([1.0]), 1 / r, 1.0).within(np.array([150.0]))[0] - 0.9, 0.9, 0.999)
    assert load > 0.99
    assert found.rate.low * service_s < 0.97 * load
    assert found.rate.high * service_s > load
    assert any("a queue settles over more requests" in doubt for doubt in found.doubts)


def test_replicas_of_one_slot_carry_what_queues_for_slots_in_turn_say():
    """Every second arrival of a Poisson process at each: gaps of two phases, and a rare percentile."""
    served = {**BASE["workload"], "lengths": {"prompt": 400, "output": 12}, "num_requests": 100}
    asked = {"speculation": None, "acceptance": None, "limits": {"max_num_seqs": 1}, "workload": served}
    replicas = 2
    asked["parallel"] = {"data_parallel_size": replicas}
    one = scenario(**asked, service_level=None)
    alone = Server.of(one).run(one.requests()[:1]).records[0]
    service_s = alone.e2e_latency_s
    found = capacity(scenario(**asked, service_level={"ttft_p99_s": alone.ttft_s + 2 * service_s}), repetitions=2).plain.sustained

    def over(load: float) -> float:
        """The 99th percentile of the wait over what is allowed, from an own recursion over many queues at once."""
        rng, wait = np.random.default_rng([9, *b"phases"]), np.zeros(4000)
        longest = []
        for turn in range(400):
            wait = np.maximum(wait + 1 - rng.gamma(replicas, 1 / load / replicas, len(wait)), 0.0)
            if turn >= 100:
                longest.append((wait > 2.0).mean())
        return float(np.mean(longest)) - 0.01

    load = brentq(over, 0.3, 0.9, xtol=1e-3)
    assert found.rate.value * service_s / replicas == pytest.approx(load, rel=0.02)
    assert found.rate.low * service_s / replicas <= load <= found.rate.high * service_s / replicas


def test_a_limit_that_a_lone_request_just_meets_is_exceeded_by_those_that_wait_and_by_no_rounding():
    """P(W > 0) = ρ: half of the requests of a half loaded server do not wait at all."""
    found, service_s = one_at_a_time(2000, 4, 100, lambda _, all_s: {"e2e_p50_s": all_s})
    assert found.rate.value * service_s == pytest.approx(0.5, rel=0.01)


def test_batches_that_are_alike_say_less_of_the_share():
    """Exceedances in one long burst: the error by batch means alone would be that of independent batches."""
    rng = np.random.default_rng([3, *b"alike"])
    noise, slow = rng.random(40), np.convolve(rng.normal(size=45), np.ones(6), "valid")
    ordered = np.sort(slow)
    together, apart = [ordered[:20], ordered[20:]], [*np.array_split(rng.permutation(slow), 2)]
    assert likeness(together) > 0.7
    assert likeness(apart) < 0.4
    assert likeness([noise[:20], noise[20:]]) < 0.4
    assert likeness([np.zeros(10)]) == 0.0


def test_without_a_service_level_the_limit_is_saturation():
    served = {
        "lengths": {"prompt": 2000, "output": 1},
        "num_requests": 400,
        "arrivals": {"process": "poisson", "rate_per_s": 1.0},
    }
    one = scenario(speculation=None, acceptance=None, service_level=None, workload=served, limits={"max_num_seqs": 1})
    answer = capacity(one, repetitions=1)
    service_s = Server.of(one).pricer.price((), ((2000, 0),), 1).seconds
    assert answer.plain.sustained.limited_by == "saturation"
    assert rate(answer) == pytest.approx(1 / service_s, rel=0.02)
    assert answer.plain.analytic.rate_per_s == pytest.approx(1 / service_s, rel=0.001)


# ----------------------------------------------------------------------------------------------------------- monotone


def test_a_tighter_service_level_never_raises_the_rate():
    rates = [plain({"tpot_p90_s": limit}) for limit in (0.0125, 0.014, 0.016, 0.02)]
    assert rates == sorted(rates)
    assert rates[0] < 0.8 * rates[-1]
    assert plain({"tpot_p90_s": 0.016, "ttft_p90_s": 0.06}) <= plain({"tpot_p90_s": 0.016})


def test_more_kv_memory_never_lowers_the_rate():
    rates = [plain({"e2e_p90_s": 3.0}, hardware={"base": "h100_sxm", "memory_bytes": size}) for size in (24e9, 25e9, 28e9, 60e9)]
    assert rates == sorted(rates)
    assert rates[0] < 0.8 * rates[-1]


def test_under_a_level_of_time_per_token_alone_fewer_at_once_carry_more_and_that_is_said():
    """What waits is not limited, and a small batch is quick; a limit on the first token takes that gain away."""
    quick, both = {"tpot_p90_s": 0.012}, {"tpot_p90_s": 0.012, "ttft_p90_s": 0.2}
    bursts = {**BASE["workload"], "arrivals": {"process": "gamma", "rate_per_s": 8.0, "burstiness": 20.0}, "num_requests": 150}
    many, few = ({"workload": bursts, "limits": {"max_num_seqs": size}} for size in (256, 32))
    assert plain(quick, **few) > 1.3 * plain(quick, **many)
    assert plain(both, **few) < 0.8 * plain(quick, **few)
    for level, said in ((quick, True), (both, False)):
        answer = capacity(scenario(speculation=None, acceptance=None, service_level=level), repetitions=1)
        assert any("limits.max_num_seqs" in note for note in capacity_notes(answer)) == said


@pytest.mark.parametrize("prompt", [2000, {"distribution": "lognormal", "median": 400, "p90": 1200}])
def test_just_below_saturation_queues_do_not_grow_and_just_above_they_do(prompt):
    """Saturation is what a long run of the same requests says: an independent check of how it is measured."""
    lengths = {"prompt": prompt, "output": 60}
    asked = scenario(speculation=None, acceptance=None, service_level=None, workload={**BASE["workload"], "lengths": lengths})
    server, own = Server.of(asked), requests_of(asked.file.workload, 5)
    full = saturation_of(server, own).per_s
    waits = {}
    for share in (0.92, 1.1):
        again_and_again = tuple(again(r, i, i // len(own), i / (share * full)) for i, r in enumerate(own * 8))
        queueing = np.array([record.queueing_s for record in server.run(again_and_again).records])
        waits[share] = [part.mean() for part in np.array_split(queueing, 4)]
    assert waits[0.92][3] < 0.5
    assert waits[1.1][3] > waits[1.1][1] + 0.5


def test_the_share_of_good_requests_is_a_limit_too():
    level = {"tpot_p50_s": 0.015, "ttft_p50_s": 0.1}
    loose, strict = (
        rate(
            capacity(
                scenario(speculation=None, acceptance=None, service_level=level), PlanningSpec(good_share=share), repetitions=2
            )
        )
        for share in (None, 0.95)
    )
    assert strict < loose


def test_clients_that_give_up_were_not_served_within_the_level():
    """Every answer that is finished is fast, because slow ones are given up: that is no capacity."""
    impatient = {**BASE["workload"], "time_out_s": 0.65}
    found = capacity(
        scenario(speculation=None, acceptance=None, workload=impatient, service_level={"ttft_p99_s": 5.0}), repetitions=1
    ).plain
    assert found.sustained.limited_by == "TTFT p99"
    assert found.rate_per_s < 0.9 * found.saturation.value


# ----------------------------------------------------------------------------------------------------- what it reports


@pytest.fixture(scope="module")
def answer() -> CapacityAnswer:
    return capacity(scenario(planning={"demand_per_s": 100.0, "price_per_gpu_hour": 3.0}), repetitions=2)


def test_equal_seeds_give_equal_answers(answer):
    again = capacity(scenario(planning={"demand_per_s": 100.0, "price_per_gpu_hour": 3.0}), repetitions=2)
    assert [row.sustained for row in again.rows] == [row.sustained for row in answer.rows]
    other = capacity(scenario(seed=6, planning={"demand_per_s": 100.0, "price_per_gpu_hour": 3.0}), repetitions=2)
    assert rate(other) != rate(answer)
    assert rate(other) == pytest.approx(rate(answer), rel=0.1)


def test_speculation_carries_more_within_a_limit_on_time_per_token(answer):
    plain_row, row = answer.rows
    assert row.verdict == "win"
    assert row.gain.value == pytest.approx(rate(answer, 1) / rate(answer))
    assert row.gain.low > 1
    assert answer.best is row
    assert row.fleet.devices <= plain_row.fleet.devices
    assert row.sustained.limited_by == "TPOT p90"


def test_both_the_estimate_and_the_simulation_are_there_and_the_estimate_has_no_queue(answer):
    for row in answer.rows:
        assert rate(answer) < row.analytic.rate_per_s < 1.05 * row.saturation.value


def test_the_sustained_rate_meets_the_level_and_the_next_one_does_not(answer):
    for row in answer.rows:
        points = row.sustained.points
        assert [p.rate_per_s for p in points] == sorted({p.rate_per_s for p in points})
        at = row.sustained.at_rate
        assert at.sustained
        assert at.tpot_s.p90 <= 0.015 * 1.0001
        assert not next(p for p in points if p.rate_per_s > at.rate_per_s).sustained
        assert row.sustained.rate.low <= row.sustained.rate.value <= row.sustained.rate.high


def test_copies_carry_the_demand_with_head_room_and_cost_what_they_cost(answer):
    for row in answer.rows:
        fleet = row.fleet
        assert fleet.copies * row.rate_per_s * 0.8 >= 100.0 > (fleet.copies - 1) * row.rate_per_s * 0.8
        assert fleet.cost_per_hour == 3.0 * fleet.devices
        assert fleet.cost_per_million_tokens == pytest.approx(fleet.cost_per_hour / (100.0 * 80 * 3600) * 1e6)
        # One H100 of 700 W over its tokens per second: never more than all of it, never less than idling.
        typical, least, most = fleet.energy_per_token_j
        assert 0.11 * 700 / (row.rate_per_s * 80) < least < typical < most < 700 / (0.99 * row.rate_per_s * 80)


def test_a_number_of_copies_that_rests_on_the_middle_of_the_interval_says_so(answer):
    """Demand between what two copies carry at the low end of the rate and at its middle."""
    row = answer.plain
    low, middle = row.sustained.rate.low, row.rate_per_s
    for demand, said in ((low + middle, True), (1.9 * low, False)):
        planning = PlanningSpec(demand_per_s=demand, head_room=0.0)
        fleet = replace(row.fleet, copies=planning.copies(demand, middle), devices=planning.copies(demand, middle))
        asked = replace(answer, rows=(replace(row, fleet=fleet),), planning=planning, demand_per_s=demand)
        assert fleet.copies == 2
        assert ("3 × 1 at the low end of its rate" in " ".join(capacity_sentences(asked))) == said


def test_a_course_of_arrivals_is_taken_as_long_as_it_is_stated():
    """Of a ramp more requests would be more of the steady rate that comes after it; the demand is that of the same course."""
    ramp = {"process": "ramp", "rate_per_s": 1.0, "end_rate_per_s": 19.0, "ramp_s": 6}
    asked = {"speculation": None, "acceptance": None, "service_level": None}
    rising, steady = (
        capacity(scenario(**asked, workload={**BASE["workload"], "num_requests": 60, "arrivals": arrivals}), repetitions=1)
        for arrivals in (ramp, {"process": "poisson", "rate_per_s": 10.0})
    )
    assert rising.requests == 60 < steady.requests


def test_a_run_too_short_to_tell_says_so():
    few = {**BASE["workload"], "num_requests": 30}
    short = capacity(
        scenario(speculation=None, acceptance=None, workload=few, service_level={"tpot_p99_s": 0.015}), repetitions=1
    )
    assert any("rests on the slowest" in doubt for doubt in short.plain.sustained.doubts)
    brief = {**BASE["workload"], "lengths": {"prompt": 600, "output": 1500}, "num_requests": 120}
    unsettled = capacity(
        scenario(speculation=None, acceptance=None, workload=brief, service_level={"tpot_p50_s": 0.02}), repetitions=1
    )
    assert any("have not settled" in doubt for doubt in unsettled.plain.sustained.doubts)


def test_a_doubt_that_variants_share_is_said_once():
    """Ten variants too short alike must not bury the answer under ten lines; each variant keeps its own reasons."""
    short = capacity(
        scenario(workload={**BASE["workload"], "num_requests": 30}, service_level={"tpot_p99_s": 0.015}), repetitions=1
    )
    told = capacity_doubts(short)
    reasons = {doubt for row in short.rows for doubt in row.sustained.doubts}
    assert len(short.rows) > 1
    assert len(told) == len(reasons)
    shared = set.intersection(*({*row.sustained.doubts} for row in short.rows))
    assert shared
    assert all(f"every variant: {doubt}" in told for doubt in shared)
    for row in short.rows:
        for doubt in {*row.sustained.doubts} - shared:
            assert any(row.label in said and said.endswith(doubt) for said in told)


def test_a_level_that_nothing_meets_has_no_rate():
    nothing = capacity(scenario(service_level={"tpot_p50_s": 0.001}), repetitions=1)
    assert [row.rate_per_s for row in nothing.rows] == [None, None]
    assert nothing.best is None
    assert nothing.plain.analytic is None
    assert nothing.plain.sustained.limited_by == "TPOT p50"


def test_rates_compress_one_stream():
    own = requests_of(scenario().file.workload, 5)
    stream = unit_stream(own, 1000)
    assert stream[0].arrival_s == 0.0
    assert (len(stream) - 1) / stream[-1].arrival_s == pytest.approx(1.0)
    fast, slow = at_rate(stream, 8.0), at_rate(stream, 2.0)
    assert np.allclose([r.arrival_s for r in slow], [4 * r.arrival_s for r in fast])
    assert [replace(r, arrival_s=0.0) for r in slow] == [replace(r, arrival_s=0.0) for r in fast]


def test_a_recorded_trace_is_one_repetition_at_the_rate_in_question(tmp_path):
    rows = "".join(f"{0.2 * index + (index % 3) * 0.05:.3f},400,{40 + index % 30}\n" for index in range(80))
    (tmp_path / "trace.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    recorded = {"arrivals": {"process": "trace"}, "requests": {"trace": str(tmp_path / "trace.csv")}}
    answer = capacity(scenario(speculation=None, acceptance=None, workload=recorded), PlanningSpec(demand_scale=3.0))
    assert (answer.repetitions, answer.requests) == (1, 80)
    assert answer.demand_per_s == pytest.approx(3 * answer.own_rate_per_s)
    assert answer.own_rate_per_s == pytest.approx(5.0, rel=0.02)
    assert rate(answer) > answer.own_rate_per_s


def test_only_the_promising_are_simulated():
    many = scenario(speculation={**BASE["speculation"], "num_speculative_tokens": [1, 2, 3, 12, 16]})
    answer = capacity(many, repetitions=1, finalists=1)
    simulated = [row.sustained is not None for row in answer.rows]
    assert simulated[0]
    assert not simulated[-1]
    assert all(row.analytic is not None for row in answer.rows)


# ------------------------------------------------------------------------------------------------------------- command


@pytest.fixture(scope="module")
def small_file(tmp_path_factory) -> str:
    data = {**BASE, "workload": {**BASE["workload"], "num_requests": 60}, "planning": {"demand_per_s": 30}}
    path = tmp_path_factory.mktemp("capacity") / "small.yaml"
    path.write_text(yaml.safe_dump(data))
    return str(path)


def test_the_command_prints_verdict_and_tables_and_writes_the_data(small_file, tmp_path, capsys):
    assert main(["capacity", small_file, "--repetitions", "1", "--price-per-gpu-hour", "2", "--out", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "requests per second instead of" in text.splitlines()[0]
    assert "too short to tell" in text
    assert all(len(line) <= 100 for line in text.splitlines() if not line.startswith("--speculative-config"))
    assert "# vllm\n--speculative-config" in text
    assert (tmp_path / "vllm_flags.txt").read_text().strip() in text
    written = json.loads((tmp_path / "capacity.json").read_text())
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert 'aria-label="Latency against request rate' in page
    assert "Devices for 30.0 requests per second" in page
    curves = (tmp_path / "capacity.csv").read_text().splitlines()
    assert len(curves) == 1 + sum(len(variant["points"]) for variant in written["variants"])
    assert main(["capacity", small_file, "--repetitions", "1", "--price-per-gpu-hour", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == written


def test_flags_stand_in_for_the_scenarios_planning(small_file, capsys):
    def demanded(*flags: str) -> float:
        assert main(["capacity", small_file, "--repetitions", "1", "--json", *flags]) == 0
        return json.loads(capsys.readouterr().out)["demand_per_s"]

    own = 8.0
    assert demanded() == 30
    assert demanded("--demand", "50") == 50
    assert demanded("--demand", "3x") == pytest.approx(3 * own, rel=0.3)


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("--demand", "many", "--demand: must be a rate"),
        ("--head-room", "1.5", "--head-room: must be below 1"),
        ("--price-per-gpu-hour", "0", "--price-per-gpu-hour: must be above 0"),
    ],
)
def test_a_wrong_flag_is_named(small_file, flag, value, words, capsys):
    assert main(["capacity", small_file, flag, value]) == 2
    assert words in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------------ mistakes


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"workload": {**BASE["workload"], "arrivals": {"process": "closed_loop", "users": 4}}}, "must be an open loop"),
        ({"planning": {"good_share": 0.9}, "service_level": None}, "must be given beside planning.good_share"),
        ({"planning": {"demand_per_s": 4, "demand_scale": 2}}, "exclude each other"),
        ({"planning": {"head_room": 1.0}}, "head_room: must be below 1"),
        ({"planning": {"price_per_gpu_hours": 1.0}}, "price_per_gpu_hour"),
        ({"planning": {"demand_per_s": 0}}, "demand_per_s: must be above 0"),
    ],
)
def test_wrong_questions_are_told(changes, words):
    with pytest.raises(SpecError, match=words):
        capacity(scenario(**changes), repetitions=1)


def test_every_planning_key_moves_the_answer():
    base = {"demand_per_s": 60.0, "price_per_gpu_hour": 2.0}
    changes = [
        {"demand_per_s": 200.0},
        {"demand_scale": 20.0},
        {"price_per_gpu_hour": 4.0},
        {"head_room": 0.6},
        {"good_share": 0.999},
    ]
    small = {**BASE["workload"], "num_requests": 120}

    def fleet(section: dict) -> object:
        asked = scenario(speculation=None, acceptance=None, workload=small, planning=section)
        return capacity(asked, repetitions=1).plain

    before = fleet(base)
    for change in changes:
        section = {**base, **change}
        if "demand_scale" in change:
            del section["demand_per_s"]
        assert fleet(section) != before, change


def test_few_requests_of_differing_lengths_are_said_to_be_few(tmp_path):
    """A saturated server serves them over and over: no interval holds the doubt of their lengths. A law of lengths is drawn from
    as often as it takes."""
    (tmp_path / "few.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,300,20\n1,900,20\n2,500,20\n3,700,20\n")
    recorded = {"arrivals": {"process": "poisson", "rate_per_s": 1.0}, "requests": {"trace": str(tmp_path / "few.csv")}}
    asked = {"speculation": None, "acceptance": None, "service_level": None}
    few = capacity(scenario(**asked, workload=recorded), repetitions=1)
    assert any("4 requests say little" in warning for warning in few.warnings)
    lengths = {"prompt": {"distribution": "lognormal", "median": 500, "p90": 1500}, "output": 20}
    by_law = capacity(scenario(**asked, workload={**BASE["workload"], "lengths": lengths, "num_requests": 4}), repetitions=1)
    assert not any("say little" in warning for warning in by_law.warnings)


def test_heavy_tails_are_those_of_the_law_and_not_of_the_requests_that_were_drawn():
    """M/G/1 with answers whose squared variation is 3: waits are those of the lengths as they are
    stated; the requests drawn have a mean length off by a twentieth."""
    output = {"distribution": "lognormal", "median": 30, "p90": 130}
    served = {"lengths": {"prompt": 16, "output": output}, "num_requests": 300, "arrivals": BASE["workload"]["arrivals"]}
    asked = {"speculation": None, "acceptance": None, "limits": {"max_num_seqs": 1}, "workload": served}
    pricer = Server.of(scenario(**asked, service_level=None)).pricer
    step_s = pricer.price([(60, 0)], (), 0).seconds
    drawn = 30 * np.exp(math.log(130 / 30) / 1.2815516 * np.random.default_rng([8, *b"tails"]).standard_normal(400_000))
    service_s = np.maximum(np.rint(drawn), 1) * step_s
    load = 0.6
    law = waiting_time(service_s, float(service_s.mean()) / load, 1.0)
    limit_s = float(np.interp(0.9, law.up_to, (np.arange(len(law.up_to)) + 0.5) * law.step_s))
    found = capacity(scenario(**asked, service_level={"ttft_p90_s": limit_s + step_s}), repetitions=1).plain.sustained
    assert found.rate.value * float(service_s.mean()) == pytest.approx(load, rel=0.02)


def test_prompts_that_nothing_decodes_beside_share_their_steps():
    """By means as by simulation, prefill alone is bound by arithmetic, many prompts a step."""
    prompts = {**BASE["workload"], "lengths": {"prompt": 500, "output": 1}}
    found = capacity(scenario(workload=prompts, service_level=None), repetitions=1)
    assert found.plain.analytic is not None
    assert found.plain.analytic.rate_per_s == pytest.approx(rate(found), rel=0.05)


def test_where_no_rate_keeps_the_level_there_is_no_fleet_and_a_lone_variant_begins_as_it_is_written():
    none = capacity(scenario(service_level={"ttft_p90_s": 1e-6}), repetitions=1)
    assert len(capacity_tables(none)) == 1
    one = replace(none, rows=(none.rows[0], replace(none.rows[1], sustained=Sustained(Estimate(2.0, 1.9, 2.1), "", (), ()))))
    assert capacity_sentences(one)[0].startswith("γ = 3 carries 2.00")


def test_requests_that_are_refused_are_counted_in_rates_and_said():
    """Half of the requests cost nothing: twice as many may ask, and tokens are those of the other half."""
    text = """
hardware: l4
engine: vllm
target: {model: qwen3-0.6b}
speculation: {method: ngram, num_speculative_tokens: 3}
acceptance: {acceptance_rate: 0.7}
limits: {max_num_seqs: 1, max_model_len: LONGEST}
workload:
  arrivals: {process: constant, rate_per_s: 1}
  lengths: {prompt: {distribution: uniform, low: 1, high: 200}, output: 5}
  num_requests: 400
seed: 1
"""
    half, whole = (
        capacity(scenario_of(parse_yaml(text.replace("LONGEST", longest), "x")), repetitions=1) for longest in ("105", "1000")
    )
    told = [warning for warning in half.warnings if "refused on arrival (longer than max_model_len)" in warning]
    assert len(told) == 1
    assert not [warning for warning in whole.warnings if "refused" in warning]
    for few, all_served in zip(half.rows, whole.rows, strict=True):
        assert few.rate_per_s == pytest.approx(2 * all_served.rate_per_s, rel=0.1)
        assert few.sustained.at_rate.output_tokens_per_s == pytest.approx(
            all_served.sustained.at_rate.output_tokens_per_s, rel=0.1
        )
        assert few.analytic.rate_per_s > 1.8 * all_served.analytic.rate_per_s
