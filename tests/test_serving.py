"""The parts of the serving engine one by one: blocks, plans, arrivals, the loop, and what the records mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import simpy
from simpy.events import NORMAL

from simulator.cost.alike import AlikeRounds
from simulator.cost.tape import Tape
from simulator.serving import (
    BatchingRules,
    Distribution,
    EngineStatistics,
    RequestRecord,
    RequestRecords,
    ServingResult,
    StepRecord,
    StepRecords,
    no_lookahead,
    paired_ratio,
    serve,
    summarise,
    unmet_limits,
)
from simulator.serving.arrivals import OpenLoop
from simulator.serving.booked_replica import BookedReplica
from simulator.serving.clock import Clock
from simulator.serving.kv_cache import KVCache
from simulator.serving.plan import StepPlan
from simulator.serving.record import Floats
from simulator.serving.replica import Replica
from simulator.serving.scheduler import Scheduler
from simulator.serving.sequence import SequenceState
from simulator.workload import Request, ServiceLevel

RULES = BatchingRules(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=200, total_blocks=50, lookahead_slots=no_lookahead)


class Cost(NamedTuple):
    seconds: float
    terms: tuple[tuple[str, float], ...]


class Constant:
    """Every step takes the same time: half of it prefill where there is a prompt. Fails rather than price a run without end."""

    def __init__(self, seconds: float = 1.0):
        self.seconds = seconds
        self.steps_left = 100_000

    def price(self, _: Sequence[tuple[int, int]], prefill: Sequence[tuple[int, int]], __: int) -> Cost:
        self.steps_left -= 1
        assert self.steps_left > 0, "the run makes no progress"
        prompt_s = self.seconds / 2 if prefill else 0.0
        return Cost(self.seconds, (("prefill_layers", prompt_s), ("host", self.seconds - prompt_s)))


class Accepts:
    """Accepts `accepted` drafts of every round, and proposes at most `longest`, from any position."""

    def __init__(self, accepted: int = 0, longest: int = 99):
        self.count, self.longest = accepted, longest

    def accepted(self, _: int, drafted: int) -> int:
        return min(self.count, drafted)

    def proposed(self, _: int, num_speculative_tokens: int) -> int:
        return min(self.longest, num_speculative_tokens)


def run(
    requests: Sequence[Request], rules: BatchingRules = RULES, drafts: int = 0, accepted: int = 0, **closed: Any
) -> ServingResult:
    return serve(requests, rules, Constant(), lambda _: Accepts(accepted), lambda _: drafts, **closed)


def decoding(request_id: int, prompt_tokens: int = 16, emitted: int = 1, longest: int = 99) -> SequenceState:
    """A sequence that has finished its prompt."""
    request = Request(request_id, 0.0, prompt_tokens, 100)
    sequence = SequenceState(request, 0.0, Accepts(longest=longest), RULES.max_model_len)
    sequence.emitted, sequence.computed = emitted, prompt_tokens + emitted - 1
    return sequence


def scheduler_with(
    rules: BatchingRules, drafts: int, running: Sequence[SequenceState] = (), waiting: Sequence[int] = ()
) -> Scheduler:
    """A scheduler with these sequences running and prompts of these lengths waiting."""
    scheduler = Scheduler(rules, lambda _: drafts)
    for sequence in running:
        assert scheduler.kv.grow(sequence.request_id, sequence.computed)
        sequence.kv_tokens = scheduler.kv.held_blocks[sequence.request_id] * rules.block_tokens
        scheduler.running.append(sequence)
    for index, prompt_tokens in enumerate(waiting):
        scheduler.waiting.append(SequenceState(Request(100 + index, 0.0, prompt_tokens, 10), 0.0, Accepts(), rules.max_model_len))
    return scheduler


def planned(scheduler: Scheduler) -> StepPlan:
    plan = scheduler.plan()
    assert plan is not None
    return plan


# ---------------------------------------------------------------------------------------------------------------- blocks


def test_blocks_are_given_whole_or_not_at_all() -> None:
    cache = KVCache(total_blocks=4, block_tokens=16)
    assert cache.grow(1, 33)
    assert (cache.free_blocks, cache.held_blocks[1], cache.room_tokens(2)) == (1, 3, 16)
    assert not cache.grow(2, 17)
    assert not cache.grow(2, 16, keep_free=1)
    assert cache.grow(1, 20)  # shrinks nothing
    cache.check()
    cache.release(1)
    assert (cache.used_blocks, cache.held_blocks) == (0, {})


def test_lost_blocks_are_noticed() -> None:
    cache = KVCache(total_blocks=4, block_tokens=16)
    cache.grow(1, 16)
    cache.free_blocks += 1
    with pytest.raises(RuntimeError, match="not conserved"):
        cache.check()


# ------------------------------------------------------------------------------------------------------------------ plan


def test_each_decoding_sequence_takes_its_drafts_and_one_of_the_budget() -> None:
    plan = planned(scheduler_with(RULES, 3, [decoding(0), decoding(1, emitted=5)], waiting=[200]))
    assert plan.decode == [(16, 3), (20, 3)]
    assert plan.prefill == [(64 - 2 * 4, 0)]
    assert (plan.prompts_finished, plan.running, plan.waiting) == (0, 3, 0)


def test_drafts_are_cut_to_budget_proposal_and_model_length() -> None:
    tight = replace(RULES, max_num_batched_tokens=6)
    assert planned(scheduler_with(tight, 3, [decoding(0), decoding(1), decoding(2)])).decode == [(16, 3), (16, 1)]
    assert planned(scheduler_with(RULES, 3, [decoding(0, longest=2), decoding(1, longest=0)])).decode == [(16, 2), (16, 0)]
    near_end = decoding(0, prompt_tokens=100, emitted=98)  # 200 tokens at most: one draft and the bonus are left
    assert planned(scheduler_with(RULES, 3, [near_end])).decode == [(197, 1)]


def test_policy_is_asked_with_the_running_sequences() -> None:
    scheduler = scheduler_with(RULES, 0, [decoding(0), decoding(1)], waiting=[10])
    scheduler.num_speculative_tokens = lambda running: running
    assert planned(scheduler).decode == [(16, 2), (16, 2)]
    assert planned(scheduler).num_speculative_tokens == 3


def test_lookahead_slots_reserve_blocks() -> None:
    with_slots = replace(RULES, lookahead_slots=lambda drafts: 5 * drafts)
    assert planned(scheduler_with(RULES, 3, [decoding(0, prompt_tokens=12)])).used_blocks == 1
    assert planned(scheduler_with(with_slots, 3, [decoding(0, prompt_tokens=12)])).used_blocks == 2
    assert planned(scheduler_with(RULES, 3, waiting=[16])).used_blocks == 1
    assert planned(scheduler_with(with_slots, 3, waiting=[16])).used_blocks == 2


def test_prompts_get_their_own_step_when_they_go_first() -> None:
    first = replace(RULES, prefill_first=True)
    scheduler = scheduler_with(first, 3, [decoding(0)], waiting=[40, 40])
    plan = planned(scheduler)
    assert (plan.decode, plan.prefill) == ([], [(40, 0), (24, 0)])


def test_whole_prompts_wait_for_the_budget() -> None:
    whole = replace(RULES, chunked_prefill=False)
    plan = planned(scheduler_with(whole, 0, [decoding(0)], waiting=[40, 40]))
    assert (plan.decode, plan.prefill, plan.waiting) == ([(16, 0)], [(40, 0)], 1)


def test_watermark_keeps_blocks_free_unless_nothing_runs() -> None:
    marked = replace(RULES, total_blocks=6, watermark_blocks=3)
    assert planned(scheduler_with(marked, 0, [decoding(0)], waiting=[20])).prefill == []
    assert planned(scheduler_with(replace(marked, watermark_blocks=2), 0, [decoding(0)], waiting=[20])).prefill == [(20, 0)]
    assert planned(scheduler_with(marked, 0, waiting=[64])).prefill == [(64, 0)]


def test_youngest_is_preempted_and_recomputes_what_it_emitted() -> None:
    running = [decoding(0, prompt_tokens=31, emitted=2), decoding(1, emitted=1)]
    scheduler = scheduler_with(replace(RULES, total_blocks=3), 0, running, waiting=[10])
    plan = planned(scheduler)
    assert (plan.decode, plan.preempted, plan.waiting) == ([(32, 0)], 1, 2)
    preempted = scheduler.waiting[0]  # before those that came later
    assert (preempted.request_id, preempted.prefill_tokens, preempted.computed, preempted.emitted) == (1, 17, 0, 1)


def test_a_lone_sequence_gives_up_lookahead_then_drafts() -> None:
    scarce = replace(RULES, total_blocks=2, lookahead_slots=lambda drafts: drafts)
    assert planned(scheduler_with(scarce, 5, [decoding(0, prompt_tokens=24)])).decode == [(24, 5)]
    assert planned(scheduler_with(scarce, 5, [decoding(0, prompt_tokens=29)])).decode == [(29, 2)]


@pytest.mark.parametrize(
    ("changes", "prompt_tokens", "output_tokens", "reason"),
    [
        ({}, 150, 50, ""),
        ({}, 150, 51, "longer than max_model_len"),
        ({"total_blocks": 4}, 60, 5, ""),
        ({"total_blocks": 4}, 60, 6, "larger than the KV cache"),
        ({"chunked_prefill": False}, 60, 5, ""),
        ({"chunked_prefill": False}, 60, 6, "longer than max_num_batched_tokens without chunked prefill"),
    ],
)
def test_what_never_fits_is_rejected_with_its_reason(
    changes: dict[str, Any], prompt_tokens: int, output_tokens: int, reason: str
) -> None:
    requests = [Request(0, 0.0, prompt_tokens, output_tokens), Request(1, 0.0, 8, 2)]
    result = run(requests, replace(RULES, **changes), drafts=7)
    assert [record.rejected for record in result.records] == [reason, ""]
    assert summarise(result).rejected == ({reason: 1} if reason else {})


@pytest.mark.parametrize("name", ["max_num_seqs", "max_num_batched_tokens", "max_model_len", "total_blocks", "block_tokens"])
def test_limits_below_one_are_refused(name: str) -> None:
    limits: dict[str, Any] = {name: 0}
    with pytest.raises(ValueError, match=f"{name} must be at least 1"):
        replace(RULES, **limits)


# ------------------------------------------------------------------------------------------------------------------ loop


def test_last_round_is_cut_at_the_output_length() -> None:
    record = run([Request(0, 0.0, 10, 7)], drafts=3, accepted=3).records[0]
    assert list(record.emission_tokens) == [1, 4, 2]
    assert list(record.emission_s) == [1.0, 2.0, 3.0]
    assert (record.rounds, record.drafted, record.accepted) == (2, 6, 6)


def test_an_arrival_at_the_end_of_a_step_joins_the_next() -> None:
    requests = [Request(0, 0.0, 8, 3), Request(1, 1.0, 8, 1), Request(2, 1.5, 8, 1)]
    assert [record.first_scheduled_s for record in run(requests).records] == [0.0, 1.0, 2.0]


class Counting(Clock):
    timeouts = alarms = 0

    def timeout(self, delay: float = 0, value: object = None) -> simpy.Timeout:
        self.timeouts += 1
        return simpy.Timeout(self, delay, value)

    def at(self, time_s: float, act: Callable[[simpy.Event], None], order: int = NORMAL, foreseen: bool = False) -> simpy.Event:
        self.alarms += order == NORMAL
        return super().at(time_s, act, order, foreseen)


def test_one_timeout_per_step() -> None:
    env = Counting(initial_time=0.0)
    replica = Replica(env, RULES, Constant(), lambda _: Accepts(), lambda _: 0)
    OpenLoop(env, [Request(0, 0.0, 10, 5), Request(1, 20.0, 10, 5)], replica.submit)
    env.run()
    assert env.timeouts == len(replica.steps) == 10


def test_the_fast_engine_sets_no_alarm_for_rounds_in_which_only_foreseen_requests_arrive() -> None:
    """One for each time that it was idle: the second request arrives while the first is served, the third long after."""
    env = Counting(initial_time=0.0)
    replica = BookedReplica(env, RULES, Constant(), lambda _: Accepts(), lambda _: 0)
    loop = OpenLoop(env, [Request(0, 0.0, 10, 9), Request(1, 3.5, 10, 9), Request(2, 50.0, 10, 9)], replica.submit)
    replica.next_arrival_s = loop.next_arrival_s
    env.run()
    assert [record.arrival_s for record in replica.records] == [0.0, 3.5, 50.0]
    assert [record.first_scheduled_s for record in replica.records] == [0.0, 4.0, 50.0]
    assert (env.alarms, env.timeouts) == (2, 0)


def test_a_clock_is_moved_on_over_foreseen_arrivals_but_nothing_else() -> None:
    env = Clock(initial_time=0.0)
    happened: list[tuple[str, float]] = []
    for name, time_s in (("foreseen", 1.0), ("surprise", 2.0)):
        env.at(time_s, lambda _, name=name: happened.append((name, env.now)), foreseen=name == "foreseen")  # type: ignore[misc]
    assert env.moved_on(1.5)
    assert not env.moved_on(2.0)
    assert (happened, env.now) == ([("foreseen", 1.0)], 1.5)


def test_the_fast_engine_wakes_for_what_happens_not_for_every_round() -> None:
    """Alone: it starts, its prompt is done, its 49 rounds are done. An arrival ends the round in progress, then joins a step."""

    class Sums(Constant):
        def alike(self, *_: int) -> AlikeRounds:
            return AlikeRounds(Tape((1.0, 1.0, 1.0)), [("host", 1.0)], 0.0, lambda *_: [])

    def statistics(*requests: Request) -> EngineStatistics:
        return serve(requests, RULES, Sums(), lambda _: Accepts(), lambda _: 0).statistics

    assert statistics(Request(0, 0.0, 10, 50)) == EngineStatistics(wakes=3, steps=50)
    assert statistics(Request(0, 0.0, 10, 50), Request(1, 9.5, 10, 20)) == EngineStatistics(wakes=6, steps=50)
    many = [Request(i, 3.7 * i, 10, 40) for i in range(500)]
    assert statistics(*many).wakes <= 3 * len(many) < statistics(*many).steps


def test_closed_loop_sends_the_next_request_after_the_think_time() -> None:
    requests = [Request(index, 0.0, 8, 2) for index in range(5)]
    assert [record.arrival_s for record in run(requests, users=2, think_time_s=0.5).records] == [0.0, 0.0, 2.5, 2.5, 5.0]
    assert [record.arrival_s for record in run(requests, users=1).records] == [0.0, 2.0, 4.0, 6.0, 8.0]


@pytest.mark.parametrize("think_time_s", [0.0, 0.5])
def test_closed_loop_goes_on_after_a_rejection(think_time_s: float) -> None:
    requests = [Request(index, 0.0, 8 if index == 3000 else 500, 2) for index in range(3001)]
    result = run(requests, users=2, think_time_s=think_time_s)
    assert summarise(result).finished == 1
    assert result.records[3000].arrival_s == 1500 * think_time_s


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_a_step_must_take_time(seconds: float) -> None:
    with pytest.raises(ValueError, match="positive, finite time"):
        serve([Request(0, 0.0, 8, 2)], RULES, Constant(seconds), lambda _: Accepts(), lambda _: 0)


@pytest.mark.parametrize("closed", [{"users": 0}, {"users": 1, "think_time_s": -1.0}])
def test_a_closed_loop_needs_users(closed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must have users at least 1"):
        run([Request(0, 0.0, 8, 2)], **closed)


@pytest.mark.parametrize("accepted", [-1, 4])
def test_a_path_accepts_no_more_than_was_drafted(accepted: int) -> None:
    class Wrong(Accepts):
        def accepted(self, _: int, __: int) -> int:
            return accepted

    with pytest.raises(ValueError, match=f"must accept 0 to 3 of 3 drafts \\(got {accepted}\\)"):
        serve([Request(0, 0.0, 8, 9)], RULES, Constant(), lambda _: Wrong(), lambda _: 3)


def test_a_request_needs_tokens() -> None:
    with pytest.raises(ValueError, match="request 0 must have prompt and output tokens"):
        run([Request(0, 0.0, 8, 0)])


def test_request_ids_must_differ() -> None:
    with pytest.raises(ValueError, match="request ids must differ"):
        run([Request(0, 0.0, 8, 1), Request(0, 1.0, 8, 1)])


# --------------------------------------------------------------------------------------------------------------- records


def test_terms_that_come_and_go_stay_with_their_steps() -> None:
    steps = StepRecords()
    step = StepRecord(0.0, 1.0, *range(13))
    for terms in [("host", 1.0)], [("draft", 2.0), ("draft", 3.0)], [("host", 4.0)], []:
        steps.append(step, terms)
    assert (steps.term("host").tolist(), steps.term("draft").tolist()) == ([1.0, 0.0, 4.0, 0.0], [0.0, 5.0, 0.0, 0.0])
    assert steps.term_seconds() == {"host": 5.0, "draft": 5.0}
    assert list(steps) == [step] * 4 == [steps[index] for index in range(4)]


# --------------------------------------------------------------------------------------------------------------- metrics


def poisson(count: int, rate_per_s: float, seed: int = 3) -> list[Request]:
    rng = np.random.default_rng([seed, *b"requests"])
    arrival_s = np.cumsum(rng.exponential(1 / rate_per_s, count))
    return [Request(i, float(arrival_s[i]), int(rng.integers(1, 50)), int(rng.integers(1, 30))) for i in range(count)]


def test_latencies_are_those_of_the_field() -> None:
    summary = summarise(run([Request(0, 0.0, 10, 7), Request(1, 100.0, 10, 1)], drafts=3, accepted=3))
    assert summary.tpot_s == Distribution(1, 2 / 6, *[2 / 6] * 4)  # one-token outputs have none
    assert summary.itl_s == Distribution(2, *[1.0] * 5)  # bursts of four and two tokens, a second each
    assert summary.ttft_s == Distribution(2, *[1.0] * 5)
    assert summary.e2e_latency_s is not None
    assert (summary.e2e_latency_s.mean, summary.e2e_latency_s.p50) == (2.0, 2.0)


def test_warm_up_and_drain_are_left_out_and_said() -> None:
    result = run(poisson(400, 0.3))
    summary = summarise(result)
    start_s, end_s = result.records[40].arrival_s, result.records[-1].arrival_s
    assert summary.measured == 360
    assert summary.window_s == pytest.approx(end_s - start_s)
    inside = [record for record in result.records if start_s < (record.finish_s or 0.0) <= end_s]
    assert summary.requests_per_s == pytest.approx(len(inside) / summary.window_s)
    bursts = [burst for record in result.records for burst in zip(record.emission_s, record.emission_tokens, strict=True)]
    emitted = sum(tokens for time_s, tokens in bursts if start_s < time_s <= end_s)
    assert summary.output_tokens_per_s == pytest.approx(emitted / summary.window_s)
    assert "first 10 % of the requests" in summary.note


def test_a_burst_is_measured_whole() -> None:
    result = run([Request(index, 0.0, 10, 10) for index in range(50)])
    summary = summarise(result)
    assert (summary.measured, summary.window_s) == (50, max(record.finish_s or 0.0 for record in result.records))
    assert summary.output_tokens_per_s == pytest.approx(500 / summary.window_s)
    assert summary.load.busy_fraction == pytest.approx(1.0)
    assert "Nothing is left out" in summary.note


def test_load_obeys_littles_law_in_steady_state() -> None:
    """Mean number running, over all time, is the completion rate times the mean time from first scheduling to the end."""
    result = run(poisson(4000, 0.3))
    summary = summarise(result)
    assert summary.e2e_latency_s is not None
    assert summary.queueing_s is not None
    assert summary.load.mean_running is not None
    in_service_s = summary.e2e_latency_s.mean - summary.queueing_s.mean
    running = summary.load.mean_running * summary.load.busy_fraction
    assert running == pytest.approx(summary.requests_per_s * in_service_s, rel=0.02)


def test_busy_time_is_shared_out_among_the_terms() -> None:
    load = summarise(run(poisson(400, 0.05))).load
    assert math.fsum(load.busy_share.values()) == pytest.approx(1.0)
    assert load.prefill_share == load.busy_share["prefill_layers"]
    assert 0 < load.busy_fraction < 1
    assert 0 < load.prefill_share < 0.5


def test_mean_context_is_per_decoding_sequence() -> None:
    load = summarise(run([Request(0, 0.0, 10, 3), Request(1, 0.0, 30, 3)])).load
    assert load.mean_context_tokens == pytest.approx((10 + 11 + 30 + 31) / 4)
    assert load.mean_decode_sequences == pytest.approx(4 / 3)
    assert (load.mean_used_blocks, load.peak_used_blocks) == (3.0, 3)


def test_acceptance_is_counted_as_engines_do() -> None:
    def path(request: Request) -> Accepts:
        return Accepts(accepted=2) if request.request_id else Accepts(longest=0)

    requests = [Request(index, 0.0, 10, 31) for index in range(2)]
    counts = summarise(serve(requests, RULES, Constant(), path, lambda _: 3)).acceptance
    assert (counts.rounds, counts.draft_rounds, counts.drafted, counts.accepted) == (40, 10, 30, 20)
    assert counts.mean_acceptance_length == pytest.approx(60 / 40)
    assert counts.mean_acceptance_length_with_drafts == pytest.approx(3.0)  # vLLM: 1 + accepted / drafts
    assert counts.draft_acceptance_rate == pytest.approx(2 / 3)


def test_goodput_counts_requests_that_meet_every_limit() -> None:
    result = run(poisson(1000, 0.5))
    tight, loose = ServiceLevel(ttft_p99_s=3.0, e2e_p50_s=20.0), ServiceLevel(ttft_p99_s=1e6)
    summary = summarise(result, tight)
    good = [r for r in result.records if (r.ttft_s or 0.0) <= 3.0 and (r.e2e_latency_s or 0.0) <= 20.0]
    done = [r for r in good if result.records[100].arrival_s < (r.finish_s or 0.0) <= result.records[-1].arrival_s]
    assert summary.goodput_per_s == pytest.approx(len(done) / summary.window_s)
    assert 0 < (summary.good_fraction or 0.0) < 1
    everything = summarise(result, loose)
    assert (everything.goodput_per_s, everything.good_fraction) == (everything.requests_per_s, 1.0)
    assert summarise(result).goodput_per_s is None


def test_unmet_limits_name_what_was_reached() -> None:
    summary = summarise(run(poisson(300, 0.5)))
    assert summary.e2e_latency_s is not None
    assert unmet_limits(summary, ServiceLevel(e2e_p90_s=1.5, tpot_p99_s=9.0)) == {"e2e_p90_s": (summary.e2e_latency_s.p90, 1.5)}


def test_nothing_served_is_a_summary_too() -> None:
    summary = summarise(run([Request(0, 0.0, 500, 1)]), ServiceLevel(ttft_p99_s=1.0))
    assert (summary.finished, summary.ttft_s, summary.output_tokens_per_s, summary.goodput_per_s) == (0, None, 0.0, 0.0)
    assert (summary.load.mean_running, summary.acceptance.mean_acceptance_length) == (None, None)
    assert summarise(run([])).requests == 0


# ------------------------------------------------------------------------------------------------------ paired comparison


def records_with(latencies_s: Iterable[float]) -> list[RequestRecord]:
    return [RequestRecord(i, float(i), 1, 1, float(i), i + value, i + value) for i, value in enumerate(latencies_s)]


def e2e(records: RequestRecords) -> Floats:
    return records.e2e_latency_s


def test_times_between_bursts_are_counted_without_writing_them_out() -> None:
    result = run(poisson(300, 0.3), drafts=3, accepted=1)
    served = result.records.served_by_arrival()
    seconds, times = served[30:].gaps_s()
    written_out = np.concatenate([record.itl_s for record in served[30:]])
    assert np.repeat(np.sort(seconds), times[np.argsort(seconds)]) == pytest.approx(np.sort(written_out))
    counted, listed = Distribution.of_repeated(seconds, times), Distribution.of(written_out)
    assert counted is not None
    assert listed is not None
    assert astuple(counted) == pytest.approx(astuple(listed))


def test_a_constant_factor_between_runs_is_found_exactly() -> None:
    latencies = np.random.default_rng([1, *b"latencies"]).exponential(1.0, 300)
    compared = paired_ratio(records_with(latencies), records_with(2 * latencies), e2e, warm_up_fraction=0.1)
    assert compared.requests == 270
    assert (compared.ratio, compared.low, compared.high) == pytest.approx((0.5, 0.5, 0.5))


@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_interval_of_the_ratio_covers_the_truth_four_times_in_five(correlation: float) -> None:
    """Also when neighbours are alike, as requests in one queue are."""
    rng = np.random.default_rng([7, *b"coverage"])

    def latencies(mean_s: float) -> list[RequestRecord]:
        values = rng.exponential(mean_s, 500)
        for index in range(1, len(values)):
            values[index] = correlation * values[index - 1] + (1 - correlation) * values[index]
        return records_with(values)

    covered = 0
    for _ in range(300):
        compared = paired_ratio(latencies(3.0), latencies(2.0), e2e, warm_up_fraction=0.0)
        covered += compared.low <= 1.5 <= compared.high
    assert abs(covered / 300 - 0.8) < 4 * math.sqrt(0.8 * 0.2 / 300)


def test_in_a_closed_loop_latency_tells_the_ratio_of_request_rates() -> None:
    requests, think_time_s = poisson(1500, 1.0), 0.5
    plain = run(requests, users=6, think_time_s=think_time_s)
    speculative = run(requests, drafts=3, accepted=1, users=6, think_time_s=think_time_s)
    compared = paired_ratio(plain.records, speculative.records, lambda records: records.e2e_latency_s + think_time_s)
    assert summarise(speculative).requests_per_s / summarise(plain).requests_per_s == pytest.approx(compared.ratio, rel=0.02)
    assert compared.low < compared.ratio < compared.high


def test_only_requests_with_a_value_in_both_runs_are_paired() -> None:
    a, b = records_with([1.0, 2.0, 3.0]), records_with([1.0, 1.0, 1.0])
    b[1] = RequestRecord(1, 1.0, 1, 1, rejected="longer than max_model_len")
    compared = paired_ratio(a, b, e2e, warm_up_fraction=0.0)
    assert (compared.ratio, compared.requests) == (2.0, 2)
    with pytest.raises(ValueError, match="no positive value in both runs"):
        paired_ratio(a, b, lambda records: records.tpot_s)


def test_fewer_than_two_pairs_say_nothing_about_the_interval() -> None:
    compared = paired_ratio(records_with([2.0]), records_with([1.0]), e2e)
    assert (compared.ratio, compared.low, compared.high) == (2.0, 0.0, math.inf)


def test_reserving_the_whole_prompt_stops_long_prompts_from_evicting_each_other() -> None:
    """Prompts of many chunks, all at once, in a pool of a few of them: admitted by the first chunk they thrash."""
    requests = [Request(i, 0.0, 90, 60) for i in range(30)]
    preempted = {}
    for admission in ("first_chunk", "whole_prompt", "whole_request"):
        rules = BatchingRules(
            max_num_seqs=64, max_num_batched_tokens=40, max_model_len=200, total_blocks=50, block_tokens=8, admission=admission
        )
        result = serve(requests, rules, Constant(), lambda _: Accepts(), lambda _: 0)
        preempted[admission] = sum(record.preemptions for record in result.records)
    assert preempted["first_chunk"] > 5 * preempted["whole_prompt"]
    assert preempted["whole_request"] == 0
