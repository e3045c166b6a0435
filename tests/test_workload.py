"""Arrival processes, lengths, profiles, service levels: their laws, that each key binds, that bad combinations are refused."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import kstest, spearmanr

from simulator.spec import SpecError, check, parse_yaml
from simulator.workload import (
    Request,
    RequestTrace,
    ServiceLevel,
    WorkloadProfile,
    WorkloadSpec,
    again,
    by_turns,
    load_workload_profile,
    profile_ids,
    requests_of,
    source_problems,
    usual_lengths,
)

CASES = Path(__file__).parents[2] / "shared" / "data" / "prediction_cases.csv"

LENGTHS = "lengths: {prompt: 512, output: 128}\n"
PROFILE = "requests: {trace: azure_conv_2023}\n"
TRACE = RequestTrace(np.array([0.0, 1.0, 1.0, 4.0]), np.array([10, 20, 30, 40]), np.array([1, 2, 3, 4]), "small.csv")


def workload(text: str) -> WorkloadSpec:
    return check(WorkloadSpec, parse_yaml(text, "s.yaml"))


def message(text: str) -> str:
    with pytest.raises(SpecError) as error:
        workload(text)
    return str(error.value)


def drawn(text: str, seed: int = 1, source: RequestTrace | WorkloadProfile | None = None) -> tuple[Request, ...]:
    return requests_of(workload(text), seed, source)


def times_s(requests: tuple[Request, ...]) -> Any:
    return np.array([request.arrival_s for request in requests])


def gaps_s(requests: tuple[Request, ...]) -> Any:
    return np.diff(times_s(requests), prepend=0.0)


def open_loop(arrivals: str, n: int = 20_000) -> str:
    return f"arrivals: {{{arrivals}}}\n{LENGTHS}num_requests: {n}\n"


# ------------------------------------------------------------------------------------------------------------ arrivals


def test_poisson_gaps_are_exponential_with_the_stated_rate() -> None:
    gaps = gaps_s(drawn(open_loop("process: poisson, rate_per_s: 4")))
    assert kstest(gaps, "expon", args=(0, 0.25)).pvalue > 0.01


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 6.0])
def test_gamma_gaps_have_the_stated_rate_and_squared_coefficient_of_variation(burstiness: float) -> None:
    gaps = gaps_s(drawn(open_loop(f"process: gamma, rate_per_s: 4, burstiness: {burstiness}")))
    assert kstest(gaps, "gamma", args=(1 / burstiness, 0, burstiness / 4)).pvalue > 0.01
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(burstiness, rel=0.1)


def test_constant_arrivals_are_evenly_spaced_from_zero() -> None:
    assert times_s(drawn(open_loop("process: constant, rate_per_s: 4", 5))).tolist() == [0, 0.25, 0.5, 0.75, 1]


RAMP = "process: ramp, rate_per_s: 2, end_rate_per_s: 8, ramp_s: 300"
DIURNAL = "process: diurnal, rate_per_s: 2, peak_rate_per_s: 3.5, period_s: 1000"


def expected_by(time_s: Any, text: str) -> Any:
    """Arrivals expected by then: the integral of the rate, summed up in small steps."""
    grid, step = np.linspace(0, float(time_s.max()), 400_001, retstep=True)
    rate = np.where(grid < 300, 2 + 6 * grid / 300, 8.0) if text is RAMP else 2 - 1.5 * np.cos(2 * np.pi * grid / 1000)
    summed = np.concatenate([[0.0], np.cumsum((rate[1:] + rate[:-1]) / 2) * step])
    return np.interp(time_s, grid, summed)


@pytest.mark.parametrize("text", [RAMP, DIURNAL])
def test_under_a_changing_rate_as_many_arrive_as_it_sums_up_to(text: str) -> None:
    """Rescaled by the summed rate the arrivals are a Poisson process of rate 1 (random time change)."""
    times = times_s(drawn(open_loop(text, 12_000)))
    assert kstest(np.diff(expected_by(times, text), prepend=0.0), "expon").pvalue > 0.01
    half_period = np.floor(times / 500) % 2
    if text is DIURNAL:  # the same before the peak as after it, and peaks are where they should be
        assert abs(half_period.mean() - 0.5) < 0.02
        assert np.histogram(times % 1000, bins=4, range=(0, 1000))[0].argsort().tolist()[:2] in ([0, 3], [3, 0])


def test_a_ramp_that_falls_almost_to_nothing_arrives_in_order() -> None:
    steep = (
        "process: ramp, rate_per_s: 107855.28947844806, end_rate_per_s: 3.1855869565496356e-05, ramp_s: 2.3471973784806523e-05"
    )
    found = times_s(drawn(open_loop(steep, 300)))
    assert np.isfinite(found).all()
    assert (np.diff(found) >= 0).all()


@pytest.mark.parametrize("text", [RAMP, DIURNAL])
def test_a_changing_rate_stretches_the_arrivals_of_a_steady_one(text: str) -> None:
    """The same draws whatever the rate; sessions come at one that makes it that of all turns."""
    steady, changing = (times_s(drawn(open_loop(each, 2000))) for each in ("process: poisson, rate_per_s: 1", text))
    assert expected_by(changing, text) == pytest.approx(steady, rel=1e-4)
    sessions = open_loop(text, 12_000) + "sessions: {turns: 3, think_time_s: 1}\n"
    first_turns = times_s(tuple(request for request in drawn(sessions) if request.follows is None))
    assert len(first_turns) == 4000
    assert 3 * len(first_turns) / expected_by(first_turns[-1:], text)[0] == pytest.approx(1, abs=0.05)


def test_a_closed_loop_starts_every_request_at_zero() -> None:
    requests = drawn(open_loop("process: closed_loop, users: 3, think_time_s: 1", 10))
    assert times_s(requests).tolist() == [0] * 10


@pytest.mark.parametrize(
    "text",
    [
        open_loop("process: poisson, rate_per_s: 4", 50),
        open_loop("process: gamma, rate_per_s: 4, burstiness: 3", 50),
        open_loop("process: ramp, rate_per_s: 4, end_rate_per_s: 1, ramp_s: 9", 50),
        open_loop("process: diurnal, rate_per_s: 4, peak_rate_per_s: 8, period_s: 30", 50),
        "arrivals: {process: trace}\nnum_requests: 50\n" + PROFILE,
        "arrivals: {process: poisson, rate_per_s: 1}\nnum_requests: 50\nlengths: "
        "{prompt: {distribution: lognormal, median: 9, p90: 99}, output: {distribution: uniform, low: 1, high: 9}}",
    ],
)
def test_same_seed_same_requests_and_more_requests_extend_them(text: str) -> None:
    requests = drawn(text)
    assert drawn(text) == requests
    assert drawn(text, seed=2) != requests
    assert drawn(text.replace("num_requests: 50", "num_requests: 80"))[:50] == requests
    assert [request.request_id for request in requests] == list(range(50))
    assert (np.diff(times_s(requests)) >= 0).all()


def test_equal_seeds_give_equal_lengths_whatever_the_arrivals() -> None:
    lengths = [
        [(r.prompt_tokens, r.output_tokens) for r in drawn(f"arrivals: {{{arrivals}}}\nnum_requests: 50\n{PROFILE}")]
        for arrivals in ("process: trace", "process: poisson, rate_per_s: 9", "process: closed_loop, users: 2")
    ]
    assert lengths[0] == lengths[1] == lengths[2]


# ------------------------------------------------------------------------------------------------------ recorded traces


RECORDED = "arrivals: {process: trace}\nrequests: {trace: small.csv}\n"


def test_a_trace_is_used_whole_unless_fewer_requests_are_asked_for() -> None:
    requests = drawn(RECORDED, source=TRACE)
    assert [(r.arrival_s, r.prompt_tokens, r.output_tokens) for r in requests] == [(0, 10, 1), (1, 20, 2), (1, 30, 3), (4, 40, 4)]
    assert drawn(RECORDED + "num_requests: 2", source=TRACE) == requests[:2]


def test_rate_scale_compresses_time() -> None:
    assert times_s(drawn(RECORDED.replace("trace}", "trace, rate_scale: 2}", 1), source=TRACE)).tolist() == [0, 0.5, 0.5, 2]


@pytest.mark.parametrize("text", [RECORDED, "arrivals: {process: trace}\nnum_requests: 1000\n" + PROFILE])
def test_rate_per_s_rescales_to_that_mean_rate_and_keeps_the_shape(text: str) -> None:
    source = TRACE if text == RECORDED else None
    natural, scaled = (
        times_s(drawn(text.replace("trace}", rest, 1), source=source)) for rest in ("trace}", "trace, rate_per_s: 7}")
    )
    assert (len(scaled) - 1) / scaled[-1] == pytest.approx(7)
    assert scaled / scaled[-1] == pytest.approx(natural / natural[-1])


def test_poisson_arrivals_take_the_lengths_of_a_trace_in_its_order() -> None:
    requests = drawn(
        RECORDED.replace("trace}", "poisson, rate_per_s: 1}", 1).replace("process: trace", "process: poisson"), source=TRACE
    )
    assert [(r.prompt_tokens, r.output_tokens) for r in requests] == [(10, 1), (20, 2), (30, 3), (40, 4)]


def test_what_only_the_source_can_tell_is_reported_where_it_stands() -> None:
    with pytest.raises(SpecError, match=r"workload: num_requests: must be at most 4, the requests of small.csv \(got 5\)"):
        drawn(RECORDED + "num_requests: 5", source=TRACE)
    with pytest.raises(SpecError, match="num_requests: must be given: a workload profile has no number of requests of its own"):
        drawn("arrivals: {process: trace}\n" + PROFILE)
    with pytest.raises(SpecError, match="rate_per_s: must be left out: the requests all arrive at one time"):
        drawn(RECORDED.replace("trace}", "trace, rate_per_s: 7}", 1) + "num_requests: 1", source=TRACE)
    document = parse_yaml(
        "workload:\n  arrivals: {process: trace}\n  requests: {trace: small.csv}\n  num_requests: 9\n", "s.yaml"
    )
    problems = source_problems(check(WorkloadSpec, document, ("workload",)), TRACE, document, ("workload",))
    assert [str(problem) for problem in problems] == [
        "s.yaml:4: workload.num_requests: must be at most 4, the requests of small.csv (got 9)"
    ]


# ------------------------------------------------------------------------------------------------------------- lengths


def lengths(prompt: str, output: str, n: int = 20_000) -> tuple[Any, Any]:
    requests = drawn(
        f"arrivals: {{process: constant, rate_per_s: 1}}\nnum_requests: {n}\nlengths: {{prompt: {prompt}, output: {output}}}"
    )
    return np.array([r.prompt_tokens for r in requests]), np.array([r.output_tokens for r in requests])


def test_constant_lengths_are_constant() -> None:
    prompts, outputs = lengths("512", "128", 10)
    assert set(prompts) == {512}
    assert set(outputs) == {128}


def test_lognormal_lengths_have_their_median_and_p90() -> None:
    prompts, outputs = lengths(
        "{distribution: lognormal, median: 800, p90: 4000}", "{distribution: lognormal, median: 2, p90: 9}"
    )
    assert np.quantile(prompts, [0.5, 0.9]) == pytest.approx([800, 4000], rel=0.05)
    assert np.quantile(outputs, [0.5, 0.9]).tolist() == [2, 9]
    assert outputs.min() == 1
    assert abs(spearmanr(prompts, outputs).statistic) < 0.03


def test_uniform_lengths_take_each_value_equally_often() -> None:
    prompts, _ = lengths("{distribution: uniform, low: 3, high: 6}", "1")
    values, counts = np.unique(prompts, return_counts=True)
    assert values.tolist() == [3, 4, 5, 6]
    assert counts / 20_000 == pytest.approx([0.25] * 4, abs=0.015)


# ------------------------------------------------------------------------------------- what requests have in common

SHARED = open_loop("process: poisson, rate_per_s: 4", 20) + "shared_prefix_tokens: 100"
IN_SESSIONS = open_loop("process: poisson, rate_per_s: 4", 20) + "sessions: {turns: 4, think_time_s: 7}"


def test_a_shared_prefix_is_the_beginning_of_every_prompt_and_part_of_its_length() -> None:
    requests, plain = drawn(SHARED), drawn(SHARED.replace("shared_prefix_tokens: 100", ""))
    assert [(r.prompt_tokens, r.output_tokens, r.arrival_s) for r in requests] == [
        (r.prompt_tokens, r.output_tokens, r.arrival_s) for r in plain
    ]
    assert all(request.content is None for request in plain)
    contents = [request.content or () for request in requests]
    assert {content[0] for content in contents} == {(0, 100)}
    assert len({content[1][0] for content in contents}) == len(requests)
    assert all(
        sum(n for _, n in content) == r.prompt_tokens + r.output_tokens for r, content in zip(requests, contents, strict=True)
    )
    longer = drawn(SHARED.replace("shared_prefix_tokens: 100", "shared_prefix_tokens: 100000"))
    assert all(
        request.content == ((0, request.prompt_tokens), (1 + request.request_id, request.output_tokens)) for request in longer
    )


def test_each_turn_of_a_session_says_again_all_that_was_said() -> None:
    requests = drawn(IN_SESSIONS)
    for request in requests:
        turn = request.request_id % 4
        assert request.follows == (request.request_id - 1 if turn else None)
        assert request.prompt_tokens == 512 * (turn + 1) + 128 * turn
        assert request.content == ((1 + request.request_id // 4, request.prompt_tokens + 128),)
        assert request.think_time_s == (7 if turn else 0)
    cut = drawn(IN_SESSIONS.replace("num_requests: 20", "num_requests: 18"))
    assert cut == requests[:18]


def test_sessions_begin_so_often_that_all_turns_make_the_stated_rate() -> None:
    for turns, mean in (("4", 4.0), ("{distribution: uniform, low: 1, high: 7}", 4.0)):
        text = open_loop("process: constant, rate_per_s: 4", 400) + f"sessions: {{turns: {turns}, think_time_s: 1}}"
        begun = [request.arrival_s for request in drawn(text) if request.follows is None]
        assert np.diff(begun) == pytest.approx(np.full(len(begun) - 1, mean / 4))


def test_requests_for_themselves_keep_only_the_shared_text_when_they_come_again() -> None:
    first = drawn(IN_SESSIONS + "\nshared_prefix_tokens: 100")[1]
    assert (again(first, 8, 0, 2.5).content, again(first, 8, 0, 2.5).follows) == (first.content, None)
    content = again(first, 8, 3, 2.5).content
    assert content is not None
    assert content[0] == (0, 100)
    assert content[1][0] not in {1, 2, 3, 4, 5}
    assert [r.request_id for r in by_turns(drawn(IN_SESSIONS.replace("rate_per_s: 4", "rate_per_s: 1000")))][:10] == [
        0, 4, 8, 12, 16, 1, 5, 9, 13, 17,
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------- every key binds


@pytest.mark.parametrize(
    ("text", "key", "other"),
    [
        (open_loop("process: poisson, rate_per_s: 4", 20), "process: poisson", "process: constant"),
        (open_loop("process: poisson, rate_per_s: 4", 20), "rate_per_s: 4", "rate_per_s: 5"),
        (open_loop("process: constant, rate_per_s: 4", 20), "rate_per_s: 4", "rate_per_s: 5"),
        (open_loop("process: gamma, rate_per_s: 4, burstiness: 2", 20), "rate_per_s: 4", "rate_per_s: 5"),
        (open_loop("process: gamma, rate_per_s: 4, burstiness: 2", 20), "burstiness: 2", "burstiness: 3"),
        *((open_loop(RAMP, 20), before, after) for before, after in (("s: 2", "s: 3"), ("s: 8", "s: 9"), ("s: 300", "s: 200"))),
        *(
            (open_loop(DIURNAL, 20), before, after)
            for before, after in (("s: 2", "s: 3"), ("s: 3.5", "s: 4"), ("s: 1000", "s: 90"))
        ),
        (open_loop("process: poisson, rate_per_s: 4", 20), "prompt: 512", "prompt: 513"),
        (open_loop("process: poisson, rate_per_s: 4", 20), "output: 128", "output: 129"),
        (open_loop("process: poisson, rate_per_s: 4", 20), "num_requests: 20", "num_requests: 21"),
        ("arrivals: {process: trace, rate_scale: 1}\nnum_requests: 20\n" + PROFILE, "rate_scale: 1", "rate_scale: 2"),
        ("arrivals: {process: trace, rate_per_s: 1}\nnum_requests: 20\n" + PROFILE, "rate_per_s: 1", "rate_per_s: 2"),
        ("arrivals: {process: trace}\nnum_requests: 20\n" + PROFILE, "azure_conv_2023", "azure_code_2023"),
        (
            open_loop("process: constant, rate_per_s: 4", 20).replace("512", "{distribution: lognormal, median: 90, p90: 900}"),
            "median: 90,",
            "median: 95,",
        ),
        (
            open_loop("process: constant, rate_per_s: 4", 20).replace("512", "{distribution: lognormal, median: 90, p90: 900}"),
            "p90: 900",
            "p90: 950",
        ),
        (
            open_loop("process: constant, rate_per_s: 4", 20).replace("512", "{distribution: uniform, low: 9, high: 90}"),
            "low: 9",
            "low: 8",
        ),
        (
            open_loop("process: constant, rate_per_s: 4", 20).replace("512", "{distribution: uniform, low: 9, high: 90}"),
            "90",
            "99",
        ),
        (SHARED, "shared_prefix_tokens: 100", "shared_prefix_tokens: 101"),
        (IN_SESSIONS, "turns: 4", "turns: 5"),
        (IN_SESSIONS, "think_time_s: 7", "think_time_s: 8"),
        (IN_SESSIONS, "rate_per_s: 4", "rate_per_s: 5"),
    ],
)
def test_every_key_changes_the_requests(text: str, key: str, other: str) -> None:
    changed = text.replace(key, other)
    assert changed != text
    assert drawn(changed) != drawn(text)


def test_users_and_think_time_are_handed_to_the_simulation() -> None:
    arrivals = workload(open_loop("process: closed_loop, users: 3, think_time_s: 1.5", 10)).arrivals
    assert (arrivals.users, arrivals.think_time_s) == (3, 1.5)


# --------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            open_loop("process: closed_loop, users: 2, rate_per_s: 4"),
            "rate_per_s goes with process poisson or gamma or constant or ramp or diurnal or trace, not with process closed_loop",
        ),
        (
            open_loop("process: poisson, rate_per_s: 4, burstiness: 2"),
            "burstiness goes with process gamma, not with process poisson",
        ),
        (
            open_loop("process: constant, rate_per_s: 4, rate_scale: 2"),
            "rate_scale goes with process trace, not with process constant",
        ),
        (
            open_loop("process: poisson, rate_per_s: 4, think_time_s: 2"),
            "think_time_s goes with process closed_loop, not with process poisson",
        ),
        (open_loop("process: poisson, rate_per_s: 4, users: 2"), "users goes with process closed_loop, not with process poisson"),
        (open_loop("process: poisson"), "process poisson needs rate_per_s"),
        (open_loop("process: gamma, rate_per_s: 4"), "process gamma needs burstiness"),
        (open_loop("process: ramp, rate_per_s: 4, ramp_s: 60"), "process ramp needs end_rate_per_s"),
        (open_loop("process: ramp, rate_per_s: 4, end_rate_per_s: 4, ramp_s: 60"), "end_rate_per_s must differ from rate_per_s"),
        (open_loop("process: diurnal, rate_per_s: 4"), "process diurnal needs peak_rate_per_s"),
        (
            open_loop("process: diurnal, rate_per_s: 4, peak_rate_per_s: 9"),
            "peak_rate_per_s must be above rate_per_s, the mean, and at most twice as much (got 9)",
        ),
        (open_loop("process: closed_loop"), "process closed_loop needs users"),
        ("arrivals: {process: trace, rate_per_s: 4, rate_scale: 2}\n" + PROFILE, "rate_per_s and rate_scale exclude each other"),
        (open_loop("process: trace"), "arrivals.process trace needs requests.trace"),
        (open_loop("process: poisson, rate_per_s: 4") + PROFILE, "requests and lengths exclude each other"),
        ("arrivals: {process: poisson, rate_per_s: 4}\nnum_requests: 5", "one of requests and lengths must be given"),
        ("arrivals: {process: poisson, rate_per_s: 4}\n" + LENGTHS, "lengths needs num_requests"),
        ("arrivals: {process: closed_loop, users: 4}\n" + PROFILE, "arrivals.process closed_loop needs num_requests"),
        (open_loop("process: possion, rate_per_s: 4"), "s.yaml:1: arrivals.process: must be one of"),
        (open_loop("process: poisson, rate_per_s: 0"), "s.yaml:1: arrivals.rate_per_s: must be at least 1e-06 (got 0)"),
        (open_loop("process: poisson, rate_per_s: .nan"), "s.yaml:1: arrivals.rate_per_s"),
        (open_loop("process: poisson, rate_per_s: 4", 0), "s.yaml:3: num_requests: must be at least 1 (got 0)"),
        (
            open_loop("process: poisson, rate_per_s: 4").replace("512", "0"),
            "s.yaml:2: lengths.prompt: must be at least 1 (got 0)",
        ),
        (
            open_loop("process: poisson, rate_per_s: 4").replace("512", "many"),
            "s.yaml:2: lengths.prompt: must be a whole number (got 'many')",
        ),
        (
            open_loop("process: poisson, rate_per_s: 4").replace("512", "{distribution: normal, mean: 3}"),
            "s.yaml:2: lengths.prompt: must be number or lognormal or uniform",
        ),
        (
            open_loop("process: poisson, rate_per_s: 4").replace("512", "{distribution: uniform, low: 3, hihg: 4}"),
            "s.yaml:2: lengths.prompt.hihg: unknown key",
        ),
        (
            open_loop("process: poisson, rate_per_s: 4").replace("512", "{distribution: uniform, low: 3, high: 3}"),
            "high must be above low (got high 3, low 3)",
        ),
        (
            open_loop("process: poisson, rate_per_s: 4").replace("512", "{distribution: lognormal, median: 3, p90: 3}"),
            "p90 must be above median (got p90 3, median 3)",
        ),
        (
            "arrivals: {process: trace}\nnum_requests: 20\nsessions: {turns: 3, think_time_s: 1}\n" + PROFILE,
            "sessions goes with lengths",
        ),
        (IN_SESSIONS.replace(", think_time_s: 7", ""), "sessions.think_time_s: must be given"),
        (IN_SESSIONS.replace("turns: 4", "turns: 0"), "sessions.turns: must be at least 1 (got 0)"),
        (
            SHARED.replace("shared_prefix_tokens: 100", "shared_prefix_tokens: 0"),
            "shared_prefix_tokens: must be at least 1 (got 0)",
        ),
    ],
)
def test_a_bad_combination_is_refused_by_name(text: str, expected: str) -> None:
    assert expected in message(text)


def test_all_faults_of_the_arrivals_are_reported_at_once() -> None:
    text = message(open_loop("process: gamma, users: 3, think_time_s: 2"))
    for part in ("needs rate_per_s", "needs burstiness", "users goes with", "think_time_s goes with"):
        assert part in text


# --------------------------------------------------------------------------------------------------------- profiles


@pytest.mark.parametrize("name", profile_ids())
def test_a_profile_samples_its_own_quantiles(name: str) -> None:
    profile = load_workload_profile(name)
    prompts, outputs = profile.sample_lengths(100_000, np.random.default_rng(2))
    for sampled, quantiles in ((prompts, profile.prompt_tokens), (outputs, profile.output_tokens)):
        assert sampled.min() >= 1
        assert sampled.max() <= quantiles[-1]
        for level, quantile in zip(profile.quantile_levels, quantiles, strict=True):
            assert np.mean(sampled < quantile) - 0.006 <= level <= np.mean(sampled <= quantile) + 0.006, level


def test_the_rate_curve_starts_over_and_ticks_gather_arrivals() -> None:
    base = load_workload_profile("azure_conv_2023")
    arrivals = {"rate_per_s": 10.0, "window_s": 5.0, "relative_rates": (0.0, 2.0)}
    profile = base.model_copy(update={"arrivals": base.arrivals.model_validate(arrivals)})
    sampled = profile.sample_arrivals(2000, np.random.default_rng(1)) + 5
    assert ((sampled % 10 > 4.5) | (sampled % 10 < 0.5)).all()
    assert sampled[-1] == pytest.approx(200, rel=0.1)
    ticked = base.model_copy(update={"arrivals": base.arrivals.model_validate({**arrivals, "tick_s": 2.5})})
    assert set(np.unique(ticked.sample_arrivals(2000, np.random.default_rng(1)) % 2.5)) == {0.0}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"quantile_levels": (0.0, 0.5, 0.5, 1.0)}, "quantile_levels must rise from 0 to 1"),
        ({"prompt_tokens": (5, 4)}, "prompt_tokens must hold one value for each of quantile_levels and never fall"),
        ({"output_share_by_prompt": ((1.0, 2.0),)}, "output_share_by_prompt must be square"),
        ({"output_share_by_prompt": ((0.0,),)}, "output_share_by_prompt must be square, with a share above 0"),
        ({"arrivals": {"rate_per_s": 1.0, "window_s": 1.0, "relative_rates": (0.0,)}}, "a relative rate and a gap above 0"),
    ],
)
def test_an_inconsistent_profile_is_refused(change: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        WorkloadProfile.model_validate({**load_workload_profile("azure_conv_2023").model_dump(), **change})


# ---------------------------------------------------------------------------------- service level, usual lengths


def test_a_service_level_lists_its_limits() -> None:
    level: ServiceLevel = check(ServiceLevel, parse_yaml("{ttft_p99_s: 1.0, tpot_p50_s: 0.05, e2e_p90_s: 30}", "s.yaml"))
    assert level.limits() == (("ttft", 99.0, 1.0), ("tpot", 50.0, 0.05), ("e2e", 90.0, 30.0))


@pytest.mark.parametrize("text", ["{}", "{ttft_p99_s: 0}", "{tpot_p99_s: -1}", "{ttft_p98_s: 1}"])
def test_an_empty_or_impossible_service_level_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        check(ServiceLevel, parse_yaml(text, "s.yaml"))


def test_usual_lengths_are_found_by_any_spelling() -> None:
    assert usual_lengths("MATH-500") is usual_lengths("math500") is usual_lengths("Math 500") is not None
    assert usual_lengths("never heard of") is None
    assert usual_lengths("") is None


def test_every_dataset_of_the_prediction_cases_has_usual_lengths() -> None:
    if not CASES.is_file():
        pytest.skip("prediction_cases.csv is not here")
    with CASES.open(newline="", encoding="utf-8") as file:
        names = {row["dataset"] for row in csv.DictReader(file)} - {""}
    assert {name for name in names if usual_lengths(name) is None} == set()
