"""Preempted sequences whose blocks wait on the host, and clients who give up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.hardware import find_hardware
from simulator.reports.run_page import run_page
from simulator.reports.summary import run_summary
from simulator.reports.timeline import variant_events
from simulator.reports.variants import run_table
from simulator.serving import BatchingRules, RequestRecord, ServingResult, no_lookahead, paired_ratio, serve, summarise
from simulator.serving.metrics import is_good
from simulator.simulation import Server, batching_rules, simulate
from simulator.workload import Request, ServiceLevel
from tests.test_queueing import Rates
from tests.test_scenario import message, scenario
from tests.test_serving import Accepts, Constant

RULES = BatchingRules(
    max_num_seqs=8, max_num_batched_tokens=64, max_model_len=200, total_blocks=6, block_tokens=4, lookahead_slots=no_lookahead
)
SWAPPING = replace(RULES, host_blocks=100, host_block_s=0.125)


def run(requests: Sequence[Request], rules: BatchingRules, **more: Any) -> ServingResult:
    results = [
        serve(requests, rules, Constant(), lambda _: Accepts(), lambda _: 0, readable=readable, **more)
        for readable in (False, True)
    ]
    assert repr(results[0].records) == repr(results[1].records)
    assert list(results[0].steps) == list(results[1].steps)
    return results[1]


# ------------------------------------------------------------------------------------------------------------------ swap


TWO = [Request(0, 0.0, 8, 8), Request(1, 0.0, 8, 8)]  # 15 tokens each in the end: four blocks each of six


def test_a_swapped_sequence_goes_on_where_it_was_and_pays_for_both_ways() -> None:
    """Both hold three blocks when the first needs a fourth: the younger leaves with its 12 tokens, and comes back when that ends."""
    swapped, recomputed = run(TWO, SWAPPING), run(TWO, RULES)
    first, second = swapped.records
    assert (second.preemptions, second.swaps, first.preemptions) == (1, 1, 0)
    assert [step.prefill_tokens for step in swapped.steps if step.prefill_tokens] == [16]
    assert [step.prefill_tokens for step in recomputed.steps if step.prefill_tokens] == [16, 8 + 5]
    moves = swapped.steps.term("swap")
    assert moves[moves > 0].tolist() == [3 * 0.125] * 2
    assert swapped.term_seconds["swap"] == 2 * 3 * 0.125
    # Eight steps of the first with one way, three more of the second with the other.
    assert first.finish_s == 8 + 0.375
    assert second.finish_s == 8 + 0.375 + 3 + 0.375
    assert list(second.emission_tokens) == [1] * 8


def test_steps_with_a_sequence_on_the_host_are_planned_one_by_one_and_counted() -> None:
    apart, swapped = (
        serve(TWO, rules, Rates(0.01), lambda _: Accepts(), lambda _: 0) for rules in (replace(RULES, total_blocks=8), SWAPPING)
    )
    assert (apart.statistics.plain_steps, apart.statistics.wakes) == (0, 3)
    # The step that preempts was booked, that in which the other comes back is not.
    assert swapped.statistics.plain_steps == sum(step.waiting == 1 for step in swapped.steps) > 0


def test_a_full_host_takes_no_more_and_the_rest_is_computed_again() -> None:
    requests = [Request(i, 0.0, 8, 12) for i in range(6)]
    small = replace(SWAPPING, total_blocks=16, host_blocks=4)
    result = run(requests, small)
    swaps, preemptions = (int(result.records.column(name).sum()) for name in ("swaps", "preemptions"))
    assert 0 < swaps < preemptions
    assert result.steps.column("prefill_tokens").sum() > 6 * 8
    summary = summarise(result)
    assert (summary.swaps, summary.preemptions) == (swaps, preemptions)


def test_a_swap_moves_each_devices_part_of_a_block_over_its_own_host_link() -> None:
    def rules(**limits: Any) -> BatchingRules:
        asked = scenario(limits=str(limits).replace("'", ""))
        return batching_rules(asked, asked.deployment.plain(), 0)

    kv_bytes = 2 * 32 * 8 * 128 * 2  # K and V of 32 layers, 8 heads of 128, two bytes
    swapping = rules(preemption="swap")
    assert swapping.host_block_s == pytest.approx(16 * kv_bytes / 50e9)
    assert swapping.host_blocks == 4 * 2**30 // (16 * kv_bytes)
    assert rules(preemption="swap", swap_space_bytes=1e9).host_blocks == int(1e9 // (16 * kv_bytes))
    assert (rules().host_blocks, rules().host_block_s) == (0, 0.0)
    assert "swap_space_bytes goes with preemption swap" in message(limits="{swap_space_bytes: 1e9}")
    assert "preemption: must be one of recompute, swap" in message(limits="{preemption: swop}")


@pytest.mark.parametrize(
    ("device", "bytes_per_s"),
    [("h100_sxm", 50e9), ("rtx_5090", 50e9), ("a100_sxm_80gb", 25e9), ("v100_sxm2_32gb", 12.5e9), ("gb200", 3.6e11)],
)
def test_host_links_are_those_of_a_devices_generation(device: str, bytes_per_s: float) -> None:
    link = find_hardware(device).host_link
    assert (link.value, link.source) == (bytes_per_s, "assumed")


def test_swapping_beats_recomputing_over_a_fast_link_and_not_over_a_slow_one() -> None:
    """Long prompts on a device with little memory: what is swapped is not computed again."""

    def mean_latency_s(limits: str, link: float) -> float:
        asked = scenario(
            hardware=f"{{base: h100_sxm, memory_bytes: 24.5e9, host_link_bandwidth_bytes_per_s: {link}}}", limits=limits,
            workload="{arrivals: {process: closed_loop, users: 24}, lengths: {prompt: 1500, output: 200}, num_requests: 72}",
        )  # fmt: skip
        server = Server.of(asked, None)
        summary = summarise(server.run(_requests(server)))
        assert summary.preemptions > 5
        assert summary.e2e_latency_s is not None
        return summary.e2e_latency_s.mean

    recomputed = mean_latency_s("{preemption: recompute}", 50e9)
    assert mean_latency_s("{preemption: swap}", 400e9) < recomputed < mean_latency_s("{preemption: swap}", 1e9)


def _requests(server: Server) -> tuple[Request, ...]:

    return server.scenario.requests()


# -------------------------------------------------------------------------------------------------------------- patience

QUEUE = replace(RULES, max_num_seqs=1, total_blocks=50)


def test_who_gives_up_in_the_queue_is_never_begun_and_who_gives_up_in_service_frees_blocks() -> None:
    """One slot, answers of ten steps, patience of twelve: the second is begun at ten and given up at twelve, the third at once."""
    requests = [Request(i, 0.0, 8, 10) for i in range(3)]
    result = run(requests, QUEUE, time_out_s=12.5)
    first, second, third = result.records
    assert (first.finish_s, first.cancelled_s) == (10.0, None)
    assert (second.first_scheduled_s, second.first_token_s, second.cancelled_s, second.finish_s) == (10.0, 11.0, 12.5, None)
    assert list(second.emission_tokens) == [1, 1, 1]  # the step in progress is carried out
    assert (third.first_scheduled_s, third.cancelled_s) == (None, 12.5)
    assert result.steps[len(result.steps) - 1].start_s == 12.0  # and nothing is served after it
    used = {step.start_s: step.used_blocks for step in run([*requests, Request(3, 13.0, 8, 2)], QUEUE, time_out_s=12.5).steps}
    assert used[13.0] == 2


def test_an_answer_that_is_whole_at_the_last_instant_is_too_late() -> None:
    assert run([Request(0, 0.0, 8, 10)], QUEUE, time_out_s=10.0).records[0].cancelled_s == 10.0
    assert run([Request(0, 0.0, 8, 10)], QUEUE, time_out_s=10.5).records[0].finish_s == 10.0


def test_a_user_of_a_closed_loop_goes_on_after_giving_up() -> None:
    requests = [Request(i, 0.0, 8, 20 if i == 0 else 4) for i in range(3)]
    arrivals = [record.arrival_s for record in run(requests, QUEUE, users=1, time_out_s=6.5).records]
    assert arrivals == [0.0, 6.5, 7.0 + 4]  # its next request waits for the step in progress


def test_who_arrives_goes_before_who_comes_because_another_gives_up_then() -> None:
    """The second turn is sent as the first is given up, at the instant at which another request arrives."""
    turns = [Request(0, 0.0, 8, 50), Request(1, 0.0, 8, 1, follows=0)]
    records = run([*turns, Request(2, 6.5, 8, 1)], QUEUE, time_out_s=6.5).records
    assert [record.arrival_s for record in records] == [0.0, 6.5, 6.5]
    assert [record.first_scheduled_s for record in records[1:]] == [8.0, 7.0]


def test_patience_must_be_above_nothing() -> None:
    with pytest.raises(ValueError, match="time_out_s must be above 0"):
        run([Request(0, 0.0, 8, 2)], RULES, time_out_s=0.0)
    assert "workload.time_out_s: must be at least 0.001" in message(
        workload="{arrivals: {process: poisson, rate_per_s: 4}, lengths: {prompt: 300, output: 100}, num_requests: 50, time_out_s: 0}"
    )


def test_given_up_requests_are_counted_apart_and_missed_by_goodput() -> None:
    rng = np.random.default_rng([4, *b"arrivals"])
    arrival_s = np.cumsum(rng.exponential(6.0, 400))
    requests = [Request(i, float(arrival_s[i]), 8, 5) for i in range(400)]
    level = ServiceLevel(e2e_p99_s=1e6)
    patient, impatient = run(requests, QUEUE), run(requests, QUEUE, time_out_s=15.0)
    summary = summarise(impatient, level)
    gone = [record for record in impatient.records if record.cancelled_s is not None]
    assert summary.cancelled == len(gone) > 20
    assert summary.finished == 400 - len(gone)
    assert summary.rejected == {}
    assert summary.good_fraction == pytest.approx(1 - len(gone) / 400, abs=0.03)
    assert summarise(patient, level).good_fraction == 1.0
    assert f"{len(gone):,} requests were given up by the client" in summary.note
    compared = paired_ratio(
        impatient.records, patient.records, lambda records: is_good(records, level).astype(float), warm_up_fraction=0.0
    )
    assert (compared.requests, compared.ratio) == (400, pytest.approx(1 - len(gone) / 400))


OVERLOADED = (
    "{arrivals: {process: poisson, rate_per_s: 40}, lengths: {prompt: 800, output: 300}, num_requests: 200, time_out_s: 4}"
)


def test_a_run_tells_who_gave_up_in_its_table_its_data_and_its_timeline() -> None:
    result = simulate(scenario(workload=OVERLOADED, limits="{max_num_seqs: 16}", service_level="{ttft_p99_s: 1}"))
    gone = result.plain.summary.cancelled
    assert gone > result.comparisons[0].variant.summary.cancelled
    _, rows = run_table(result)
    assert next(row for row in rows if row[0] == "given up by clients")[1] == f"{gone:,}"
    assert run_summary(result)["variants"][0]["cancelled"] == gone
    assert any("requests given up by clients" in cause for cause in result.comparisons[0].causes)
    events = list(variant_events(result.plain, 1))
    shown = [event for event in events if event["ph"] == "b" and str(event["name"]).endswith(", given up")]
    ended = {event["id"]: event["ts"] for event in events if event["ph"] == "e" and str(event["name"]).endswith(", given up")}
    assert len(shown) == gone
    by_id: dict[int, RequestRecord] = {record.request_id: record for record in result.plain.result.records}
    assert all(ended[event["id"]] == 1e6 * (by_id[event["id"]].cancelled_s or 0.0) for event in shown)


def test_a_run_in_which_all_give_up_says_so() -> None:
    with pytest.raises(ValueError, match="must hold requests that can be served: 200 given up by their clients"):
        simulate(scenario(workload=OVERLOADED.replace("time_out_s: 4", "time_out_s: 0.001")))


def test_a_report_says_what_requests_share_and_how_long_clients_wait() -> None:
    workload = OVERLOADED.replace("time_out_s: 4", "shared_prefix_tokens: 400, time_out_s: 40")
    page = run_page(simulate(scenario(workload=workload, limits="{preemption: swap}")))
    text = str(page)
    for part in (
        "All prompts begin with the same 400 tokens, and the prefix cache keeps them.", "Clients give up after 40 s.",
        "Preempted sequences move to 4.29 GB of each device's host memory.",
    ):  # fmt: skip
        assert part in text
