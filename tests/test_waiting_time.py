"""The law of waits against Erlang, Pollaczek and Khinchine and plain recursion; and what weighting by it does to a sample."""

from __future__ import annotations

import math

import numpy as np
import pytest

from simulator.questions.plain_queue import DRAWN, PlainQueue
from simulator.questions.sample import Sample, mean_of
from simulator.serving import RequestRecord, RequestRecords
from simulator.theory import increasing_root, mg1_mean_wait_s
from simulator.waiting_time import waiting_time, waits, waits_in_line
from tests.test_capacity import md1_waits_within


@pytest.mark.parametrize("load", [0.05, 0.3, 0.7, 0.9])
def test_services_of_one_length_wait_as_erlang_says(load):
    asked = np.array([0.0, 0.4, 0.9, 1.6, 3.3, 6.2])
    found = waiting_time(np.array([0.037]), 0.037 / load, 1.0).within(0.037 * asked)
    longer = 1 - np.array([md1_waits_within(services, load) for services in asked])
    assert 1 - found == pytest.approx(longer, rel=2e-3, abs=1e-9)


@pytest.mark.parametrize("load", [0.5, 0.9, 0.97, 0.99])
def test_the_mean_wait_is_that_of_pollaczek_and_khinchine(load):
    service_s = np.random.default_rng([5, *b"services"]).lognormal(-1.0, 0.8, 3000)
    law = waiting_time(service_s, service_s.mean() / load, 1.0)
    mean_s = np.diff(law.up_to, prepend=0.0) @ np.arange(len(law.up_to)) * law.step_s
    assert mean_s == pytest.approx(mg1_mean_wait_s(load / service_s.mean(), service_s.mean(), (service_s**2).mean()), rel=1e-3)


@pytest.mark.parametrize(("variation", "load"), [(0.2, 0.8), (6.0, 0.6)])
def test_exponential_services_wait_as_gamma_gaps_let_them(variation, load):
    """GI/M/1: P(W > x) = σ exp(-(1 - σ) x) of mean services, σ the gaps' transform at 1 - σ (Kendall 1953)."""
    service_s = -np.log((np.arange(20_000) + 0.5) / 20_000)
    scale = variation / load
    sigma = increasing_root(lambda s: s - (1 + scale * (1 - s)) ** (-1 / variation), 0.0, 1 - 1e-9)
    asked = np.array([0.0, 0.5, 2.0, 5.0])
    found = waiting_time(service_s, 1 / load, variation).within(asked)
    assert 1 - found == pytest.approx(sigma * np.exp(-(1 - sigma) * asked), rel=5e-3)


def test_slots_that_take_turns_wait_as_served_one_by_one():
    rng = np.random.default_rng([5, *b"turns"])
    arrival_s, service_s = np.cumsum(rng.exponential(size=200_000)), rng.uniform(1.5, 3.5, 200_000)
    found = waits(arrival_s, service_s, 3)
    free_s = [0.0, 0.0, 0.0]
    for index in range(1000):
        began_s = max(arrival_s[index], free_s[index % 3])
        assert found[index] == pytest.approx(began_s - arrival_s[index], abs=1e-9)
        free_s[index % 3] = began_s + service_s[index]
    law = waiting_time(service_s[:20_000], 1.0, 1.0, 3)
    for wait_s in (0.0, 1.0, 4.0):
        assert law.within(np.array([wait_s]))[0] == pytest.approx((found <= wait_s).mean(), abs=0.01)


def test_a_queue_that_never_settles_has_no_law():
    with pytest.raises(ValueError, match="load above 0 and below 1"):
        waiting_time(np.array([1.0]), 1.0, 1.0)


# -------------------------------------------------------------------------------------------------------------- sample

LOAD, LONG = 0.8, 8.0
LENGTHS = {"prompts": np.full(DRAWN, 10), "outputs": np.full(DRAWN, 2)}
QUEUE = PlainQueue(1, 1, 1.0, **LENGTHS)


def one_by_one(seed: int, requests: int = 600) -> RequestRecords:
    """Requests of one length served one at a time, at Poisson arrivals."""
    rng = np.random.default_rng([seed, *b"md1"])
    arrival_s = np.cumsum(rng.exponential(1 / LOAD, requests))
    begin_s = arrival_s + waits(arrival_s, np.ones(requests))
    rounds = rng.integers(1, 3, requests)  # of nothing that matters to the wait
    return RequestRecords.of(
        RequestRecord(i, a, 10, 2, first_scheduled_s=b, first_token_s=b + 0.5, finish_s=b + 1.0, rounds=int(r))
        for i, (a, b, r) in enumerate(zip(arrival_s.tolist(), begin_s.tolist(), rounds.tolist(), strict=True))
    )


def weighted_and_not(seed: int) -> tuple[Sample, Sample]:
    runs = tuple(one_by_one(4 * seed + index) for index in range(4))
    measured = tuple(run[60:] for run in runs)
    return Sample(measured, QUEUE.strata(runs, [540] * 4, LOAD)), Sample(measured)


def test_intervals_of_weighted_shares_hold_the_closed_form_as_often_as_they_say_and_are_narrow():
    """As far as such waits were seen at all: where they were not, the sample knows how much it has not seen."""
    true = 1 - md1_waits_within(LONG, LOAD)
    weighted, not_weighted = [], []
    for seed in range(30):
        known, unknown = weighted_and_not(seed)
        if 2 * known.strata["ttft"].longest <= true:
            weighted.append(known.share("ttft", lambda run: run.queueing_s > LONG)[:2])
        else:
            assert max(run.queueing_s.max() for run in known.runs) < LONG + 2
        not_weighted.append(unknown.share("ttft", lambda run: run.queueing_s > LONG)[:2])
    weighted, not_weighted = np.array(weighted), np.array(not_weighted)
    assert len(weighted) >= 20
    assert np.std(weighted[:, 0]) < 0.1 * np.std(not_weighted[:, 0])
    assert weighted[:, 0].mean() == pytest.approx(true, rel=0.01)
    assert (np.abs(weighted[:, 0] - true) < 1.3 * weighted[:, 1]).mean() >= 0.75
    assert weighted[:, 1].mean() < 0.25 * not_weighted[:, 1].mean()


def test_what_has_nothing_to_do_with_the_wait_is_neither_moved_nor_said_to_be_surer():
    found = np.array(
        [
            [sample.share("ttft", lambda run: run.column("rounds") > 1)[:2] for sample in weighted_and_not(seed)]
            for seed in range(100, 115)
        ]
    )
    assert found[:, 0, 0].mean() == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(15 * 4 * 540))
    assert found[:, 0, 1].mean() == pytest.approx(found[:, 1, 1].mean(), rel=0.2)


def test_longer_waits_are_never_more_frequent():
    weighted, _ = weighted_and_not(7)
    limits = np.linspace(0.0, 30.0, 61)
    shares = [weighted.share("ttft", lambda run, limit=limit: run.queueing_s > limit)[0] for limit in limits]
    assert shares == sorted(shares, reverse=True)
    assert weighted.share("ttft", lambda run: run.queueing_s >= 0)[0] == pytest.approx(1.0)


def test_percentiles_are_weighted_too():
    weighted, _ = weighted_and_not(3)
    p95 = weighted.distribution("ttft", lambda run: run.queueing_s).p95
    assert 1 - md1_waits_within(p95, LOAD) == pytest.approx(0.05, abs=0.004)


def test_nothing_is_weighted_where_a_queue_would_not_settle_or_a_slot_serves_too_few():
    runs = [one_by_one(1)]
    assert QUEUE.strata(runs, [540], 1.1) == {}
    assert PlainQueue(1, 80, 1.0, **LENGTHS).strata(runs, [540], LOAD) == {}


def test_the_error_of_services_that_lengths_do_not_tell_counts():
    """How long they are is known from the same requests."""
    runs = [one_by_one(seed) for seed in (1, 2)]
    varied = [
        RequestRecords.of(
            RequestRecord(
                r.request_id, r.arrival_s, 10, 2, first_scheduled_s=r.first_scheduled_s, first_token_s=r.first_token_s,
                finish_s=r.first_scheduled_s + (0.4 + 1.2 * (r.rounds > 1)), rounds=r.rounds,
            )
            for r in run
        )
        for run in runs
    ]  # fmt: skip
    same, differ = (QUEUE.strata(each, [540, 540], LOAD)["ttft"] for each in (runs, varied))
    assert same.without == ()
    assert len({weights.tobytes() for weights in differ.without}) == len(differ.without) > 1


def test_one_line_for_several_servers_waits_as_erlang_says():
    """M/M/c: a request waits with Erlang's probability (1917), and then exponentially."""
    servers, load = 5, 0.8
    rng = np.random.default_rng([5, *b"line"])
    found = waits_in_line(np.cumsum(rng.exponential(size=300_000)), rng.exponential(servers * load, 300_000), servers)
    offered = servers * load
    full = offered**servers / math.factorial(servers) / (1 - load)
    waiting = full / (sum(offered**k / math.factorial(k) for k in range(servers)) + full)
    for services in (0.0, 0.5, 1.0):
        longer = waiting * math.exp(-services * servers * (1 - load))
        assert (found > services * offered).mean() == pytest.approx(longer, rel=0.06)


def test_requests_for_several_slots_are_weighted_to_the_law_of_their_line_and_of_their_lengths():
    """Answers of two lengths, of which a run happens to hold too many long ones: shares are those of the workload."""
    slots, load = 4, 0.8
    rng = np.random.default_rng([6, *b"slots"])
    outputs = np.where(np.arange(DRAWN) % 2, 10, 40)
    queue = PlainQueue(1, slots, 1.0, np.full(DRAWN, 10), outputs[rng.permutation(DRAWN)], alone=False)
    rate_per_s = load * slots / 25.0
    weighted, plain = [], []
    for _ in range(12):
        runs = []
        for _ in range(2):
            arrival_s, long = np.cumsum(rng.exponential(1 / rate_per_s, 700)), rng.random(700) < 0.55
            service_s = np.where(long, 40.0, 10.0)
            begin_s = arrival_s + waits_in_line(arrival_s, service_s, slots)
            rows = zip(arrival_s.tolist(), begin_s.tolist(), service_s.tolist(), strict=True)
            runs.append(
                RequestRecords.of(
                    RequestRecord(
                        i, a, 10, int(s), first_scheduled_s=b, first_token_s=b + 1, finish_s=b + s, rounds=int(s) - 1
                    )
                    for i, (a, b, s) in enumerate(rows)
                )
            )  # fmt: skip
        measured = tuple(run[70:] for run in runs)
        strata = queue.strata(runs, [630] * 2, rate_per_s)
        weighted.append(Sample(measured, strata).share("e2e", lambda run: run.e2e_latency_s > 50)[0])
        plain.append(Sample(measured).share("e2e", lambda run: run.e2e_latency_s > 50)[0])
    arrival_s, service_s = np.cumsum(rng.exponential(1 / rate_per_s, 400_000)), rng.choice([10.0, 40.0], 400_000)
    true = float((waits_in_line(arrival_s, service_s, slots) + service_s > 50)[1000:].mean())
    assert np.mean(weighted) == pytest.approx(true, rel=0.04)
    assert np.std(weighted) < 0.4 * np.std(plain)
    assert np.mean(plain) > 1.15 * true


def test_a_mean_of_runs_is_as_sure_as_their_batches_are_alike():
    independent = [np.random.default_rng([index, *b"even"]).random(1000) for index in range(4)]
    mean, error = mean_of(independent)
    assert mean == pytest.approx(0.5, abs=4 * error)
    assert error == pytest.approx(math.sqrt(1 / 12 / 4000), rel=0.7)
