"""A whole scenario: pairing of random streams, closed forms at batch 1, gains on real traffic, and every key binds."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import yaml

from simulator import theory
from simulator.cost.step_scale import StepScale, upkeep_high
from simulator.plots.traffic import latency_figure
from simulator.reports.summary import run_summary
from simulator.reports.variants import run_table
from simulator.scenario import Scenario, scenario_of
from simulator.serving import ServingResult, serve, summarise
from simulator.simulation import Server, SimulationResult, simulate, speculative_servers
from simulator.spec import SpecError, parse_yaml

TRACES = Path(__file__).parents[2] / "shared" / "traces"
BASE = {
    "hardware": "h100_sxm",
    "engine": "vllm",
    "target": {"model": "meta-llama/Llama-3.1-8B-Instruct"},
    "speculation": {"method": "eagle3", "drafter": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 3},
    "acceptance": {"acceptance_rate": 0.7},
    "workload": {
        "arrivals": {"process": "poisson", "rate_per_s": 8.0},
        "lengths": {"prompt": 400, "output": 60},
        "num_requests": 120,
    },
    "seed": 5,
}


def scenario(**changes) -> Scenario:
    """BASE with sections replaced; None drops one."""
    data = {key: value for key, value in {**BASE, **changes}.items() if value is not None}
    return scenario_of(parse_yaml(yaml.safe_dump(data, sort_keys=False), "s.yaml"))


def workload(process: str = "poisson", requests: int = 120, prompt: object = 400, output: object = 60, **arrivals) -> dict:
    return {
        "arrivals": {"process": process, **arrivals},
        "lengths": {"prompt": prompt, "output": output},
        "num_requests": requests,
    }


def fingerprint(result: SimulationResult) -> str:
    """Every request's times without and with speculation."""
    variants = (result.plain, *(comparison.variant for comparison in result.comparisons))
    return times([variant.result for variant in variants])


def times(results: Sequence[ServingResult]) -> str:
    """Every request's times in each run."""
    return json.dumps([[(r.request_id, r.first_token_s, r.finish_s, r.accepted) for r in result.records] for result in results])


def test_same_seed_same_bytes_and_another_seed_differs():
    first, again, other = (fingerprint(simulate(scenario(seed=seed))) for seed in (5, 5, 6))
    assert first == again != other


def test_both_runs_serve_the_same_requests_with_the_same_acceptance_at_any_gamma():
    result = simulate(scenario(speculation={**BASE["speculation"], "num_speculative_tokens": [1, 3]}))
    plain, one, three = result.plain, *(comparison.variant for comparison in result.comparisons)
    for left, middle, right in zip(plain.result.records, one.result.records, three.result.records, strict=True):
        assert left.arrival_s == middle.arrival_s == right.arrival_s
        assert left.output_tokens == middle.output_tokens
        # A longer draft can only accept more from the same position onwards: never more rounds for the same tokens.
        assert right.rounds <= middle.rounds <= left.rounds


def test_batch_one_is_the_closed_form():
    """One user: TPOT gain = τ/R to within sampling, τ = (1-α^(γ+1))/(1-α) (Leviathan et al. 2023)."""
    closed = workload("closed_loop", users=1, requests=40, prompt=64, output=400)
    result = simulate(scenario(workload=closed))
    comparison = result.comparisons[0]
    tau = theory.mean_acceptance_length(0.7, 3)
    assert comparison.batch == 1
    assert comparison.mean_acceptance_length == pytest.approx(tau, rel=0.02)
    # The first token comes from the prefill, and the last round is cut: both fade with the length of the output.
    assert comparison.tpot.value == pytest.approx(tau / comparison.round.r, rel=0.03)
    assert comparison.tpot.low < tau / comparison.round.r < comparison.tpot.high
    record = result.plain.result.records[0]
    step_s = result.plain.deployment.pricer().plain(1, 64 + 200).seconds
    assert record.tpot_s == pytest.approx(step_s, rel=0.01)


def test_self_drafting_by_certain_acceptance_emits_gamma_plus_one_tokens_a_round():
    comparison = simulate(
        scenario(acceptance={"acceptance_rate": 1.0}, workload=workload("closed_loop", users=1, requests=5, output=401))
    ).comparisons[0]
    assert comparison.mean_acceptance_length == 4.0
    assert all(record.rounds == 100 for record in comparison.variant.result.records)


def test_never_accepted_drafts_lose_by_exactly_r():
    comparison = simulate(
        scenario(acceptance={"acceptance_rate": 0.0}, workload=workload("closed_loop", users=1, requests=30, output=150))
    ).comparisons[0]
    assert comparison.mean_acceptance_length == 1.0
    assert comparison.tpot.value == pytest.approx(1 / comparison.round.r, rel=0.01)
    assert comparison.verdict == "lose"


def test_gains_come_with_an_interval_that_holds_them_and_a_verdict_that_follows():
    comparison = simulate(scenario()).comparisons[0]
    for gain in (comparison.gain, comparison.tpot, comparison.e2e, comparison.capacity):
        assert gain.low < gain.value < gain.high
    assert comparison.verdict == ("win" if comparison.gain.low > 1 else "lose" if comparison.gain.high < 1 else "close")
    assert len(comparison.causes) >= 2


def test_a_large_batch_turns_a_win_into_a_loss():
    """Saturated decoding is bound by arithmetic: rows of rejected drafts are paid in full."""
    few = simulate(
        scenario(
            acceptance={"acceptance_rate": 0.3}, workload=workload("closed_loop", users=1, requests=6, prompt=16, output=200)
        )
    )
    many = simulate(
        scenario(
            acceptance={"acceptance_rate": 0.3}, workload=workload("closed_loop", users=256, requests=512, prompt=16, output=200)
        )
    )
    assert few.comparisons[0].gain.value > 1.05
    assert many.comparisons[0].gain.value < 0.9


def test_a_service_level_judges_goodput():
    level = {"e2e_p99_s": 0.6}
    spread = workload(requests=480, rate_per_s=8.0, output={"distribution": "uniform", "low": 20, "high": 160})
    comparison = simulate(scenario(service_level=level, workload=spread)).comparisons[0]
    assert comparison.metric == "goodput"
    assert comparison.gain.value == pytest.approx(comparison.goodput, rel=0.1)
    assert comparison.goodput > 1.1


def test_a_service_level_that_nobody_meets_is_said():
    comparison = simulate(scenario(service_level={"e2e_p99_s": 0.001})).comparisons[0]
    assert "no request of either run meets" in comparison.metric
    assert comparison.verdict == "close"


def test_a_service_level_met_only_with_speculation_is_a_win_whatever_latency_does():
    comparison = simulate(scenario(service_level={"tpot_p99_s": 0.0055}, workload=workload(rate_per_s=3.0))).comparisons[0]
    assert "rises from none" in comparison.metric
    assert comparison.verdict == "win"


def test_acceptance_left_open_runs_both_ends_of_a_sourced_band():
    result = simulate(scenario(acceptance=None))
    labels = [comparison.variant.label for comparison in result.comparisons]
    assert len(labels) == 2
    assert ("low end" in labels[0], "high end" in labels[1]) == (True, True)
    assert result.comparisons[0].gain.value < result.comparisons[1].gain.value
    assert any("acceptance is left open" in warning for warning in result.warnings)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"engine": "sglang"},
        {"hardware": "a100_sxm_80gb", "workload": workload("closed_loop", users=12, think_time_s=0.1)},
        {
            "speculation": {"method": "ngram", "num_speculative_tokens": 3},
            "acceptance": {"acceptance_rate": 0.5, "proposal_rate": 0.4},
        },
        {
            "speculation": {
                **{k: v for k, v in BASE["speculation"].items() if k != "num_speculative_tokens"},
                "tree": "steps=5,topk=4,draft_tokens=8",
            },
            "acceptance": {"mean_acceptance_length": 2.5},
        },
        {"parallel": {"data_parallel_size": 3}},
        {"parallel": {"data_parallel_size": 3}, "workload": workload("closed_loop", users=8, think_time_s=0.05)},
    ],
)
def test_the_readable_engine_says_the_same_and_takes_an_event_a_step(changes):
    fast, readable = (simulate(scenario(**changes), readable=readable) for readable in (False, True))
    assert fingerprint(fast) == fingerprint(readable)
    for one, other in zip(fast.comparisons, readable.comparisons, strict=True):
        assert (one.gain, one.capacity, one.tpot) == (other.gain, other.capacity, other.tpot)
    statistics = fast.plain.result.statistics
    assert statistics.wakes < statistics.steps == readable.plain.result.statistics.wakes


@pytest.mark.parametrize(
    "changes",
    [
        {"parallel": {"pipeline_parallel_size": 2}},
        {
            "target": {"model": "openai/gpt-oss-20b"}, "speculation": {"method": "ngram", "num_speculative_tokens": 3},
            "parallel": {"data_parallel_size": 2},
        },
    ],
)  # fmt: skip
def test_rounds_whose_sums_do_not_tell_their_price_are_priced_one_by_one(changes):
    """The fullest microbatch or rank sets the pace: the fast engine says that it lists the sequences, and agrees."""
    fast, readable = (simulate(scenario(**changes), readable=readable) for readable in (False, True))
    assert fingerprint(fast) == fingerprint(readable)
    statistics = fast.plain.result.statistics
    decoding = (readable.plain.result.steps.column("decode_sequences") > 0).sum()
    assert statistics.priced_singly == decoding > 0


@pytest.mark.parametrize("router", ["round_robin", "least_kv"])
def test_what_a_run_is_done_with_goes_without_a_search_for_cycles(router):
    """Requests, their acceptance, replicas and their timelines: all but a handful of objects of the clock itself."""
    asked = scenario(workload=workload(rate_per_s=20.0, requests=300), parallel={"data_parallel_size": 2, "router": router})
    server = next(server for _, server in speculative_servers(asked, []))
    server.pricer.price([(1, 0)], (), 0)
    gc.collect()
    gc.disable()
    try:
        result = server.run(asked.requests())
        assert gc.collect() < 50
    finally:
        gc.enable()
    assert len(result.records) == 300


def test_a_server_goes_with_the_last_who_knows_it():
    """And with it its prices and the acceptance of its requests."""
    asked = scenario()
    server = next(server for _, server in speculative_servers(asked, []))
    server.run(asked.requests())
    known = [weakref.ref(each) for each in (server, server.pricer, server.paths)]
    gc.disable()
    try:
        del server
        assert [each() for each in known] == [None, None, None]
    finally:
        gc.enable()


def test_replicas_together_are_what_each_did():
    """Steps by start, records by request, bursts and gaps of each in place."""
    result = simulate(scenario(parallel={"data_parallel_size": 3}, speculation=None, acceptance=None))
    whole = result.plain.result
    server = Server.of(result.scenario)
    parts = [serve(result.requests[index::3], server.rules, server.pricer, server.path, server.drafts) for index in range(3)]
    records = sorted((record for part in parts for record in part.records), key=lambda record: record.request_id)
    assert list(map(repr, whole.records)) == list(map(repr, records))
    steps = sorted((step for part in parts for step in part.steps), key=lambda step: step.start_s)
    assert list(whole.steps) == steps
    for name in whole.steps.term_names:
        assert whole.term_seconds[name] == pytest.approx(sum(part.term_seconds[name] for part in parts))
    gaps_s, times = whole.records.gaps_s()
    assert sorted(np.repeat(gaps_s, times)) == pytest.approx(sorted(gap for record in records for gap in record.itl_s))
    assert whole.statistics.steps == len(whole.steps) == sum(part.statistics.steps for part in parts)


def test_without_speculation_there_is_only_the_plain_run():
    result = simulate(scenario(speculation=None, acceptance=None))
    assert result.comparisons == ()
    assert result.best is None
    assert result.plain.summary.finished == 120


def test_requests_that_can_never_be_served_are_counted_and_none_left_is_said():
    mixed = simulate(
        scenario(
            limits={"max_model_len": 500},
            workload=workload(rate_per_s=8.0, prompt={"distribution": "uniform", "low": 10, "high": 900}),
        )
    )
    assert sum(mixed.plain.summary.rejected.values()) + mixed.plain.summary.finished == 120
    assert mixed.plain.summary.rejected
    with pytest.raises(SpecError, match="requests that can be served"):
        simulate(scenario(limits={"max_model_len": 100}))


def test_off_above_a_batch_costs_only_the_drafts_upkeep():
    off = {**BASE["speculation"], "by_batch": [[1, 1, 3]]}
    del off["num_speculative_tokens"]
    busy = workload("closed_loop", users=32, requests=96, output=100)
    comparison = simulate(scenario(speculation=off, workload=busy)).comparisons[0]
    assert 0.85 < comparison.output_tokens < 1.02
    assert comparison.variant.summary.acceptance.drafted < 200


# ------------------------------------------------------------------------------------------------------ every key binds

LONG = workload("closed_loop", users=24, requests=48, prompt={"distribution": "uniform", "low": 500, "high": 1500}, output=150)
TIGHT = {"hardware": {"base": "h100_sxm", "memory_bytes": 24.5e9}, "workload": LONG}
SMALL_DRAFT = {"method": "draft_model", "drafter": "meta-llama/Llama-3.2-1B-Instruct", "num_speculative_tokens": 3}
LAYER_SKIP = {"method": "layer_skip", "draft_layers": 8, "num_speculative_tokens": 3}
SPARSE_KV = {"method": "sparse_kv", "num_speculative_tokens": 3}
NGRAM = {"speculation": {"method": "ngram", "num_speculative_tokens": 3}}
MOE = {
    "hardware": "h200_sxm",
    "target": {"model": "Qwen/Qwen3-30B-A3B"},
    "speculation": {"method": "eagle3", "num_speculative_tokens": 3},
}
GROUPED = {
    "hardware": "h200_sxm",
    "target": {"model": "deepseek-ai/DeepSeek-V3", "weights": "fp8"},
    "parallel": {"tensor_parallel_size": 8},
    "speculation": {"method": "mtp", "num_speculative_tokens": 2},
}
SPREAD = {
    "hardware": "h200_sxm",
    "target": {"model": "Qwen/Qwen3-30B-A3B"},
    "parallel": {"data_parallel_size": 4, "expert_parallel": True, "nodes": 2},
    "speculation": {"method": "eagle3", "num_speculative_tokens": 3},
}
SHARING = {**LONG, "shared_prefix_tokens": 400}
SESSIONS = {**workload(rate_per_s=8.0), "sessions": {"turns": 3, "think_time_s": 0.5}}
IMPATIENT = workload(rate_per_s=8.0, output={"distribution": "uniform", "low": 10, "high": 300})
PAIR = {"hardware": "a30", "parallel": {"tensor_parallel_size": 2}}
SWAPPING = {**TIGHT, "limits": {"preemption": "swap"}}
APART = {"hardware": "rtx_4090", "link_latency_s": 0.0002}
ELSEWHERE = {"speculation": {**SMALL_DRAFT, "draft_device": APART}}
HYBRID = {
    "hardware": "h200_sxm",
    "target": {"model": "Qwen/Qwen3.5-9B"},
    "speculation": {"method": "mtp", "num_speculative_tokens": 2},
}
WALKED = {
    "hardware": "rtx_4090",
    "target": {"model": "Qwen/Qwen3-4B"},
    "speculation": {"method": "eagle3", "num_speculative_tokens": 3},
}

# At the longest walk that the device states, k of these matrices is past what matters.
# More units than there are blocks.
LARGE_TILES = {"hardware": {"base": "h100_sxm", "gemm_tile_rows": 256.0, "compute_units": 1000}}
LONG_WALKS = {"base": "h100_sxm", "gemm_walk_longest_s": 5e-5}


def apart(**prefill):
    """Prompts computed on an instance of their own."""
    return {"parallel": {"disaggregated_prefill": prefill}, "workload": LONG}


BINDING = {
    "hardware": ({}, {"hardware": "h200_sxm"}),
    "hardware.memory_bytes": (TIGHT, {"hardware": {"base": "h100_sxm", "memory_bytes": 60e9}}),
    "hardware.memory_bandwidth_bytes_per_s": ({}, {"hardware": {"base": "h100_sxm", "memory_bandwidth_bytes_per_s": 2e12}}),
    "hardware.compute_units": ({"workload": LONG}, {"hardware": {"base": "h100_sxm", "compute_units": 40}}),
    "hardware.memory_bandwidth_fraction": ({}, {"hardware": {"base": "h100_sxm", "memory_bandwidth_fraction": 0.5}}),
    "hardware.flops_fraction": ({}, {"hardware": {"base": "h100_sxm", "flops_fraction": 0.3}}),
    "hardware.gemm_overhead_s": ({}, {"hardware": {"base": "h100_sxm", "gemm_overhead_s": 1e-5}}),
    "hardware.gemm_smoothness": ({}, {"hardware": {"base": "h100_sxm", "gemm_smoothness": 2.0}}),
    "hardware.gemm_tile_rows": ({}, {"hardware": {"base": "h100_sxm", "gemm_tile_rows": 256.0}}),
    "hardware.gemm_least_tile_rows": (LARGE_TILES, {**LARGE_TILES, "hardware": {**LARGE_TILES["hardware"], "gemm_least_tile_rows": 16.0}}),
    "hardware.gemm_fill_k": ({}, {"hardware": {"base": "h100_sxm", "gemm_fill_k": 4096.0}}),
    "hardware.gemm_wave_power": ({}, {"hardware": {"base": "h100_sxm", "gemm_wave_power": 1.0}}),
    "hardware.gemm_walk_s_per_k": ({"hardware": LONG_WALKS}, {"hardware": {**LONG_WALKS, "gemm_walk_s_per_k": 1e-8}}),
    "hardware.gemm_walk_longest_s": ({}, {"hardware": {"base": "h100_sxm", "gemm_walk_longest_s": 5e-5}}),
    "hardware.attention_overhead_s": ({}, {"hardware": {"base": "h100_sxm", "attention_overhead_s": 3e-5}}),
    "hardware.attention_bandwidth_fraction": ({}, {"hardware": {"base": "h100_sxm", "attention_bandwidth_fraction": 0.4}}),
    "hardware.attention_flops_fraction": ({}, {"hardware": {"base": "h100_sxm", "attention_flops_fraction": 0.01}}),
    "hardware.attention_wave_s": ({"workload": LONG}, {"hardware": {"base": "h100_sxm", "attention_wave_s": 1e-5}}),
    "hardware.walk_overhead_s": (WALKED, {**WALKED, "hardware": {"base": "rtx_4090", "walk_overhead_s": 2e-5}}),
    "hardware.walk_s_per_token": (WALKED, {**WALKED, "hardware": {"base": "rtx_4090", "walk_s_per_token": 1e-6}}),
    "hardware.walk_fixed_s": (WALKED, {**WALKED, "hardware": {"base": "rtx_4090", "walk_fixed_s": 5e-5}}),
    "hardware.walk_row_s_per_token": (WALKED, {**WALKED, "hardware": {"base": "rtx_4090", "walk_row_s_per_token": 1e-6}}),
    "hardware.walk_copy_s_per_byte": (WALKED, {**WALKED, "hardware": {"base": "rtx_4090", "walk_copy_s_per_byte": 1e-10}}),
    "hardware.walk_copy_free_bytes": ({**WALKED, "hardware": {"base": "rtx_4090", "walk_copy_s_per_byte": 1e-10}}, {**WALKED, "hardware": {"base": "rtx_4090", "walk_copy_s_per_byte": 1e-10, "walk_copy_free_bytes": 1e6}}),
    "hardware.elementwise_overhead_s": ({}, {"hardware": {"base": "h100_sxm", "elementwise_overhead_s": 1e-5}}),
    "hardware.host_time_factor": ({}, {"hardware": {"base": "h100_sxm", "host_time_factor": 3.0}}),
    "hardware.sampling_bandwidth_fraction": ({}, {"hardware": {"base": "h100_sxm", "sampling_bandwidth_fraction": 0.1}}),
    "hardware.replay_gap_s": ({}, {"hardware": {"base": "h100_sxm", "replay_gap_s": 1e-5}}),
    "engine": ({}, {"engine": "sglang"}),
    "parallel.tensor_parallel_size": ({}, {"parallel": {"tensor_parallel_size": 2}}),
    "parallel.draft_tensor_parallel_size": ({"parallel": {"tensor_parallel_size": 4}}, {"parallel": {"tensor_parallel_size": 4, "draft_tensor_parallel_size": 1}}),
    "parallel.pipeline_parallel_size": ({}, {"parallel": {"pipeline_parallel_size": 2}}),
    "parallel.data_parallel_size": ({"workload": workload("closed_loop", users=6)}, {"parallel": {"data_parallel_size": 2}, "workload": workload("closed_loop", users=6)}),
    "parallel.router": ({"parallel": {"data_parallel_size": 2}, "workload": LONG}, {"parallel": {"data_parallel_size": 2, "router": "least_outstanding"}, "workload": LONG}),
    "parallel.further_replicas": ({}, {"parallel": {"further_replicas": ({"hardware": "l40s"},)}}),
    "parallel.disaggregated_prefill": ({}, apart()),
    "parallel.disaggregated_prefill.instances": (apart(), apart(instances=2)),
    "parallel.disaggregated_prefill.hardware": (apart(), apart(hardware="l40s")),
    "parallel.disaggregated_prefill.tensor_parallel_size": (apart(), apart(tensor_parallel_size=4)),
    "parallel.disaggregated_prefill.max_num_batched_tokens": (apart(), apart(max_num_batched_tokens=256)),
    "parallel.disaggregated_prefill.router": (apart(instances=2), apart(instances=2, router="least_outstanding")),
    "parallel.disaggregated_prefill.link": (apart(), apart(link="intra_node")),
    "parallel.disaggregated_prefill.link.bandwidth_bytes_per_s": (apart(link={"bandwidth_bytes_per_s": 1e10}), apart(link={"bandwidth_bytes_per_s": 1e9})),
    "parallel.disaggregated_prefill.link.latency_s": (apart(link={"bandwidth_bytes_per_s": 1e10}), apart(link={"bandwidth_bytes_per_s": 1e10, "latency_s": 0.01})),
    "parallel.disaggregated_prefill.kv_transfer": (apart(), apart(kv_transfer="by_layer")),
    "parallel.expert_parallel": (SPREAD, {**SPREAD, "parallel": {"data_parallel_size": 4, "nodes": 2}}),
    "parallel.nodes": ({"parallel": {"tensor_parallel_size": 4}}, {"parallel": {"tensor_parallel_size": 4, "nodes": 2}}),
    "hardware.inter_node_bandwidth_bytes_per_s": (SPREAD, {**SPREAD, "hardware": {"base": "h200_sxm", "inter_node_bandwidth_bytes_per_s": 1e9}}),
    "hardware.inter_node_latency_s": ({"parallel": {"tensor_parallel_size": 4, "nodes": 2}}, {"parallel": {"tensor_parallel_size": 4, "nodes": 2}, "hardware": {"base": "h100_sxm", "inter_node_latency_s": 1e-4}}),
    "hardware.all_to_all_latency_s": (SPREAD, {**SPREAD, "hardware": {"base": "h200_sxm", "all_to_all_latency_s": 1e-4}}),
    "speculation.draft_device": ({"speculation": SMALL_DRAFT}, ELSEWHERE),
    "speculation.draft_device.hardware": (ELSEWHERE, {"speculation": {**SMALL_DRAFT, "draft_device": {**APART, "hardware": "l4"}}}),
    "speculation.draft_device.tensor_parallel_size": (ELSEWHERE, {"speculation": {**SMALL_DRAFT, "draft_device": {**APART, "tensor_parallel_size": 2}}}),
    "speculation.draft_device.link_latency_s": (ELSEWHERE, {"speculation": {**SMALL_DRAFT, "draft_device": {**APART, "link_latency_s": 0.01}}}),
    "speculation.draft_device.overlap": (ELSEWHERE, {"speculation": {**SMALL_DRAFT, "draft_device": {**APART, "overlap": True}}}),
    "target.model": ({"speculation": {"method": "ngram", "num_speculative_tokens": 3}}, {"target": {"model": "Qwen/Qwen3-8B"}}),
    "target.weights": ({}, {"target": {**BASE["target"], "weights": "fp8"}}),
    "target.kv_cache": ({"workload": LONG}, {"target": {**BASE["target"], "kv_cache": "fp8"}}),
    "speculation.method": ({}, {"speculation": {"method": "ngram", "num_speculative_tokens": 3}}),
    "speculation.drafter": ({"speculation": SMALL_DRAFT}, {"speculation": {**SMALL_DRAFT, "drafter": "meta-llama/Llama-3.2-3B-Instruct"}}),
    "speculation.drafter_weights": ({"speculation": SMALL_DRAFT}, {"speculation": {**SMALL_DRAFT, "drafter_weights": "fp8"}}),
    "speculation.num_speculative_tokens": ({}, {"speculation": {**BASE["speculation"], "num_speculative_tokens": 2}}),
    "speculation.by_batch": ({}, {"speculation": {"method": "eagle3", "drafter": BASE["speculation"]["drafter"], "by_batch": [[1, 2, 3]]}}),
    "acceptance.acceptance_rate": ({}, {"acceptance": {"acceptance_rate": 0.6}}),
    "acceptance.profile": ({}, {"acceptance": {"profile": "llama31_8b_eagle3_mtbench"}}),
    "acceptance.domain": ({**HYBRID, "acceptance": {"profile": "qwen3_8_27b_mtp_domains"}}, {**HYBRID, "acceptance": {"profile": "qwen3_8_27b_mtp_domains", "domain": "code"}}),
    "acceptance.conditional_acceptance_rates": ({}, {"acceptance": {"conditional_acceptance_rates": [0.9, 0.5, 0.4]}}),
    "acceptance.acceptance_rates_per_position": ({}, {"acceptance": {"acceptance_rates_per_position": [0.9, 0.5, 0.4]}}),
    "acceptance.mean_acceptance_length": ({}, {"acceptance": {"mean_acceptance_length": 2.0}}),
    "acceptance.proposal_rate": (NGRAM, {"acceptance": {"acceptance_rate": 0.7, "proposal_rate": 0.5}}),
    "acceptance.structured_output": ({}, {"acceptance": {"acceptance_rate": 0.7, "structured_output": {"forced_share": 0.4, "grammar_aware_drafter": False}}}),
    "acceptance.request_spread": ({}, {"acceptance": {"acceptance_rate": 0.7, "request_spread": 0.15}}),
    "workload.arrivals.process": ({}, {"workload": workload("constant", rate_per_s=8.0)}),
    "workload.arrivals.rate_per_s": ({}, {"workload": workload(rate_per_s=9.0)}),
    "workload.arrivals.burstiness": ({"workload": workload("gamma", rate_per_s=8.0, burstiness=1.0)}, {"workload": workload("gamma", rate_per_s=8.0, burstiness=4.0)}),
    "workload.arrivals.users": ({"workload": workload("closed_loop", users=2)}, {"workload": workload("closed_loop", users=4)}),
    "workload.arrivals.think_time_s": ({"workload": workload("closed_loop", users=2)}, {"workload": workload("closed_loop", users=2, think_time_s=0.5)}),
    "workload.num_requests": ({}, {"workload": workload(rate_per_s=8.0, requests=121)}),
    "workload.lengths": ({}, {"workload": workload(rate_per_s=8.0, output=61)}),
    "limits.max_num_seqs": ({"workload": LONG}, {"limits": {"max_num_seqs": 4}}),
    "limits.max_num_batched_tokens": ({"workload": LONG}, {"limits": {"max_num_batched_tokens": 256}}),
    "limits.gpu_memory_utilization": (TIGHT, {"limits": {"gpu_memory_utilization": 0.96}}),
    "limits.max_model_len": ({"workload": LONG}, {"limits": {"max_model_len": 1200}}),
    "seed": ({}, {"seed": 6}),
    "workload.shared_prefix_tokens": ({"workload": LONG}, {"workload": SHARING}),
    "workload.sessions": ({}, {"workload": SESSIONS}),
    "workload.sessions.turns": ({"workload": SESSIONS}, {"workload": {**SESSIONS, "sessions": {"turns": 4, "think_time_s": 0.5}}}),
    "workload.sessions.think_time_s": ({"workload": SESSIONS}, {"workload": {**SESSIONS, "sessions": {"turns": 3, "think_time_s": 0.7}}}),
    "workload.time_out_s": ({"workload": IMPATIENT}, {"workload": {**IMPATIENT, "time_out_s": 0.6}}),
    "limits.prefix_caching": ({"workload": SHARING}, {"workload": SHARING, "limits": {"prefix_caching": False}}),
    "limits.preemption": (TIGHT, SWAPPING),
    "limits.swap_space_bytes": (SWAPPING, {**TIGHT, "limits": {"preemption": "swap", "swap_space_bytes": 1e8}}),
    "hardware.host_link_bandwidth_bytes_per_s": (SWAPPING, {**SWAPPING, "hardware": {**TIGHT["hardware"], "host_link_bandwidth_bytes_per_s": 1e9}}),
    "hardware.link_bandwidth_bytes_per_s": (PAIR, {**PAIR, "hardware": {"base": "a30", "link_bandwidth_bytes_per_s": 1e9}}),
    "hardware.link_topology": (PAIR, {**PAIR, "hardware": {"base": "a30", "link_topology": "pcie"}}),
    "hardware.peer_to_peer": (
        {**PAIR, "hardware": {"base": "a30", "link_topology": "pcie"}},
        {**PAIR, "hardware": {"base": "a30", "link_topology": "pcie", "peer_to_peer": False}},
    ),
    "speculation.draft_layers": ({"speculation": LAYER_SKIP}, {"speculation": {**LAYER_SKIP, "draft_layers": 16}}),
    "speculation.draft_kv_tokens": ({"speculation": SPARSE_KV, "workload": LONG}, {"speculation": {**SPARSE_KV, "draft_kv_tokens": 64}, "workload": LONG}),
    "hardware.expert_bandwidth_fraction": (MOE, {**MOE, "hardware": {"base": "h200_sxm", "expert_bandwidth_fraction": 0.5}}),
    "hardware.expert_overhead_s": (MOE, {**MOE, "hardware": {"base": "h200_sxm", "expert_overhead_s": 1e-4}}),
    "hardware.expert_row_correlation": (MOE, {**MOE, "hardware": {"base": "h200_sxm", "expert_row_correlation": 0.1}}),
    "hardware.grouped_routing_correlation": (GROUPED, {**GROUPED, "hardware": {"base": "h200_sxm", "grouped_routing_correlation": 0.3}}),
    "hardware.state_overhead_s": (HYBRID, {**HYBRID, "hardware": {"base": "h200_sxm", "state_overhead_s": 2e-4}}),
    "hardware.state_row_s": (HYBRID, {**HYBRID, "hardware": {"base": "h200_sxm", "state_row_s": 5e-5}}),
}  # fmt: skip


# Which way a change moves the mean end-to-end latency with speculation, where the domain fixes it.
SLOWER = (
    "hardware.memory_bandwidth_bytes_per_s", "hardware.compute_units", "hardware.memory_bandwidth_fraction", "hardware.flops_fraction",
    "hardware.gemm_overhead_s", "hardware.gemm_smoothness", "hardware.gemm_tile_rows", "hardware.gemm_fill_k",
    "hardware.gemm_wave_power",
    "hardware.gemm_walk_s_per_k", "hardware.gemm_walk_longest_s", "hardware.attention_overhead_s",
    "hardware.attention_bandwidth_fraction", "hardware.attention_flops_fraction", "hardware.attention_wave_s",
    "hardware.walk_overhead_s", "hardware.walk_s_per_token", "hardware.walk_row_s_per_token", "hardware.walk_fixed_s",
    "hardware.walk_copy_s_per_byte", "hardware.elementwise_overhead_s", "hardware.sampling_bandwidth_fraction",
    "hardware.host_time_factor", "hardware.replay_gap_s",
    "speculation.drafter", "acceptance.acceptance_rate", "acceptance.mean_acceptance_length", "acceptance.proposal_rate",
    "workload.arrivals.rate_per_s", "workload.arrivals.users", "workload.lengths", "limits.max_num_seqs", "speculation.draft_layers",
    "hardware.expert_bandwidth_fraction", "hardware.expert_overhead_s", "hardware.state_overhead_s", "hardware.state_row_s",
    "acceptance.structured_output", "limits.prefix_caching", "hardware.host_link_bandwidth_bytes_per_s",
    "hardware.link_bandwidth_bytes_per_s", "hardware.peer_to_peer",
    "parallel.disaggregated_prefill.hardware", "parallel.disaggregated_prefill.link.bandwidth_bytes_per_s",
    "parallel.disaggregated_prefill.link.latency_s", "parallel.disaggregated_prefill.max_num_batched_tokens",
)  # fmt: skip
FASTER = (
    "hardware", "hardware.memory_bytes", "parallel.tensor_parallel_size", "target.weights", "target.kv_cache",
    "speculation.drafter_weights", "limits.gpu_memory_utilization", "speculation.draft_kv_tokens", "hardware.expert_row_correlation",
    "hardware.grouped_routing_correlation", "hardware.walk_copy_free_bytes", "workload.shared_prefix_tokens",
    "parallel.disaggregated_prefill.instances", "parallel.disaggregated_prefill.tensor_parallel_size",
    "parallel.disaggregated_prefill.link", "parallel.disaggregated_prefill.kv_transfer",
)  # fmt: skip


def runs_of(asked: Scenario) -> tuple[ServingResult, ...]:
    """Those of `simulate` whose records it answers with, without those that say how sure the answer is."""
    servers = [Server.of(asked), *(server for _, server in speculative_servers(asked, []))]
    return tuple(server.run(asked.requests()) for server in servers)


def times_of(asked: Scenario) -> str:
    return times(runs_of(asked))


@cache
def served(sections: str) -> tuple[ServingResult, ...]:
    """The runs of `BASE` with these sections."""
    return runs_of(scenario(**yaml.safe_load(sections)))


def test_the_runs_that_keys_are_judged_by_are_those_of_the_answer():
    assert times_of(scenario()) == fingerprint(simulate(scenario()))


def mean_latency_s(results: Sequence[ServingResult]) -> float:
    """Of the first way of drafting."""
    latency = summarise(results[1]).e2e_latency_s
    assert latency is not None
    return latency.mean


@pytest.mark.parametrize("key", BINDING)
def test_every_key_moves_the_result_and_the_way_it_must(key):
    base, change = BINDING[key]
    before, after = (served(yaml.safe_dump(sections)) for sections in (base, {**base, **change}))
    assert times(before) != times(after)
    if key in SLOWER:
        assert mean_latency_s(after) > mean_latency_s(before)
    if key in FASTER:
        assert mean_latency_s(after) < mean_latency_s(before)


def test_every_sign_is_of_a_key_that_binds():
    assert {*SLOWER, *FASTER} <= BINDING.keys()
    assert not set(SLOWER) & set(FASTER)


def test_heterogeneous_vocabulary_and_service_level_bind_too():
    mapped = {"method": "draft_model", "drafter": "Qwen/Qwen2.5-0.5B", "num_speculative_tokens": 3}
    with pytest.raises(SpecError, match="tokenizer"):
        scenario(speculation=mapped)
    assert scenario(speculation={**mapped, "heterogeneous_vocabulary": True}).gammas == (3,)
    loose, tight = (
        simulate(scenario(service_level={"ttft_p99_s": limit})).plain.summary.goodput_per_s for limit in (10.0, 0.012)
    )
    assert loose > tight


# ---------------------------------------------------------------------------------------------------------- real traffic


@pytest.mark.parametrize(
    "trace", ["AzureLLMInferenceTrace_conv.csv", "AzureLLMInferenceTrace_code.csv", "mooncake_synthetic_trace.jsonl"]
)
def test_real_traces_run_as_workloads_by_path_and_no_request_is_lost(trace):
    path = TRACES / trace
    if not path.exists():
        pytest.skip("request traces lie outside the project")
    counts = {
        "AzureLLMInferenceTrace_conv.csv": 19366,
        "AzureLLMInferenceTrace_code.csv": 8819,
        "mooncake_synthetic_trace.jsonl": 3993,
    }
    loaded = scenario(
        workload={"arrivals": {"process": "trace", "rate_scale": 0.5}, "requests": {"trace": str(path)}},
        speculation=None,
        acceptance=None,
    )
    assert len(loaded.source) == counts[trace]
    first = scenario(
        workload={"arrivals": {"process": "trace"}, "requests": {"trace": str(path)}, "num_requests": 150},
        speculation=None,
        acceptance=None,
    )
    summary = simulate(first).plain.summary
    assert summary.finished + sum(summary.rejected.values()) == 150


def test_rate_scale_moves_the_result():
    source = {"requests": {"trace": "azure_conv_2023"}, "num_requests": 60}
    runs = [
        simulate(scenario(workload={"arrivals": {"process": "trace", "rate_scale": scale}, **source})) for scale in (1.0, 3.0)
    ]
    assert fingerprint(runs[0]) != fingerprint(runs[1])


def test_short_outputs_after_long_prompts_leave_little_to_gain_in_capacity():
    """Azure code traffic (median output 13 tokens): tokens come faster at low load, the replica serves hardly more requests."""
    trace = {"requests": {"trace": "azure_code_2023"}, "num_requests": 300}
    acceptance = {"profile": "llama31_8b_eagle3_mtbench"}
    low = simulate(scenario(acceptance=acceptance, workload={"arrivals": {"process": "poisson", "rate_per_s": 1.0}, **trace}))
    rate = 0.8 * low.plain.saturation.per_s
    busy = simulate(
        scenario(acceptance=acceptance, workload={"arrivals": {"process": "poisson", "rate_per_s": rate}, **trace})
    ).comparisons[0]
    assert low.comparisons[0].tpot.value > 1.8
    assert 0.9 < busy.capacity.value < 1.12
    assert busy.e2e.value < busy.tpot.value
    assert low.plain.saturation.prefill_share > 0.7
    assert any("prefill" in cause for cause in busy.causes)


def test_capacity_agrees_with_overload_where_requests_are_equally_long():
    """Requests of one length that start together end together: measured from such a start, capacity had the wrong sign."""
    equal = workload(requests=1500, prompt=1000, output=200, rate_per_s=60.0)
    comparison = simulate(scenario(workload=equal)).comparisons[0]
    assert comparison.output_tokens > 1.03
    assert comparison.capacity.high > 1.03
    assert comparison.capacity.value > 1.0


def test_a_handful_of_requests_decides_nothing():
    comparison = simulate(scenario(workload=workload(requests=6, rate_per_s=8.0))).comparisons[0]
    assert comparison.gain.value > 1.5
    assert comparison.verdict == "close"


def test_open_acceptance_of_ngram_keeps_the_rounds_without_a_proposal():
    result = simulate(scenario(speculation={"method": "ngram", "num_speculative_tokens": 5}, acceptance=None))
    low = result.comparisons[0].variant.summary.acceptance
    assert low.draft_rounds < low.rounds


def test_the_best_gamma_of_open_acceptance_is_judged_by_its_worse_end():
    result = simulate(scenario(speculation={**BASE["speculation"], "num_speculative_tokens": [1, 2, 6]}, acceptance=None))
    worst: dict[int, float] = {}
    for comparison in result.comparisons:
        gamma = comparison.variant.gamma
        worst[gamma] = min(worst.get(gamma, 99.0), comparison.gain.value)
    assert worst[result.best.variant.gamma] >= 0.97 * max(worst.values())


def test_what_reading_a_trace_had_to_change_is_said(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n5,10,5\n0,20,6\n1,0,4\n")
    loaded = scenario(workload={"arrivals": {"process": "trace"}, "requests": {"trace": str(path)}})
    assert len(loaded.source) == 2
    assert len(loaded.warnings) >= 2


def test_the_interval_of_a_run_without_chance_is_that_of_r():
    """One user, drafts never accepted, equal requests: requests bring no doubt, so only R's is left."""
    never = scenario(acceptance={"acceptance_rate": 0.0}, workload=workload("closed_loop", users=1, requests=30, output=150))
    comparison = simulate(never).comparisons[0]
    assert comparison.tpot.low == pytest.approx(1 / comparison.r.high, rel=0.02)
    assert comparison.tpot.high == pytest.approx(1 / comparison.r.low, rel=0.02)


def test_thinking_users_see_less_of_a_gain_in_tokens_per_second():
    busy, thinking = (
        simulate(scenario(workload=workload("closed_loop", users=2, requests=60, think_time_s=think))).comparisons[0].gain.value
        for think in (0.0, 5.0)
    )
    assert busy > 1.5
    assert 1 < thinking < 1.1


def test_only_drafters_with_a_cache_keep_slots_ahead():
    from simulator.simulation import batching_rules

    head, lookup = scenario(), scenario(speculation={"method": "ngram", "num_speculative_tokens": 3})
    assert [batching_rules(s, s.deployment, 3).lookahead_slots(3) for s in (head, lookup)] == [3, 0]
    assert batching_rules(head, head.deployment, 3).lookahead_slots(0) == 0


def test_a_lone_mean_acceptance_length_holds_at_the_largest_gamma_and_the_others_follow():
    loaded = scenario(
        acceptance={"mean_acceptance_length": 2.8}, speculation={**BASE["speculation"], "num_speculative_tokens": [1, 3]}
    )
    assert loaded.acceptance(3).law.mean_acceptance_length(3) == pytest.approx(2.8)
    assert 1 < loaded.acceptance(1).law.mean_acceptance_length(1) < 2


def test_a_one_token_answer_meets_any_limit_on_time_per_token():
    short = scenario(service_level={"tpot_p99_s": 1e-6}, workload=workload(requests=60, output=1, rate_per_s=8.0))
    assert simulate(short).plain.summary.good_fraction == 1.0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("policy", [{"kind": "fixed"}, {"kind": "off_above", "batch": 4}])
def test_where_nothing_is_decoded_what_has_no_value_is_blank_and_nothing_warns(policy, tmp_path):
    load = workload(requests=30, output=1, rate_per_s=8.0)
    result = simulate(scenario(workload=load, speculation={**BASE["speculation"], "policy": policy}))
    variant = result.comparisons[0].variant
    assert (variant.off_share, variant.graph_share, variant.summary.tpot_s) == (None, None, None)
    assert json.loads(json.dumps(run_summary(result), allow_nan=False))["variants"][1]["off_share"] is None
    assert "steps without drafts" not in str(run_table(result))
    latency_figure(result).savefig(tmp_path / "latency.svg")


def test_a_scaled_round_leaves_prompts_as_they_are():
    """The doubt of R is of decoding: prefills, the draft's included, take the same time however wide it is."""
    pricer = scenario().deployment.pricer()
    scaled = replace(pricer, scale=StepScale(1.5))
    base, more = pricer.price([(500, 3)] * 4, [(256, 0)], 1), scaled.price([(500, 3)] * 4, [(256, 0)], 1)
    assert [name for name, _ in base.terms] == [name for name, _ in more.terms]
    names = {name for name, _ in base.terms}
    assert {"prefill", "prefill_draft", "layers", "draft_first_pass"} <= names
    for (name, before), (_, after) in zip(base.terms, more.terms, strict=True):
        assert after == pytest.approx(before if name.startswith("prefill") else 1.5 * before)
    assert more.seconds == pytest.approx(sum(seconds for _, seconds in more.terms))
    contexts = (2000, 2000, 500)
    assert scaled.alike(4, 3).one(*contexts)[0] == pytest.approx(1.5 * pricer.alike(4, 3).one(*contexts)[0])


def test_a_scaled_round_leaves_steps_without_drafts_as_they_are():
    """Nobody drafts: a plain step and the upkeep of the drafter's cache, which has a doubt of its own; in both ways to price."""
    pricer = scenario().deployment.pricer()
    plain_s, contexts = scenario().deployment.plain().pricer().price([(500, 0)] * 4, (), 0).seconds, (2000, 2000, 500)
    upkeep_s = dict(pricer.price([(500, 0)] * 4, (), 0).terms)["draft_cache_upkeep"]
    for scale in (StepScale(1.5), StepScale(1.5, 4.0), StepScale(1.0, 4.0)):
        scaled = replace(pricer, scale=scale)
        expected = pytest.approx(plain_s + scale.upkeep * upkeep_s)
        assert scaled.price([(500, 0)] * 4, (), 0).seconds == expected
        assert scaled.alike(4, 0).one(*contexts)[0] == expected
        assert scaled.price([(500, 3)] + [(500, 0)] * 3, (), 0).seconds == pytest.approx(
            scale.round * pricer.price([(500, 3)] + [(500, 0)] * 3, (), 0).seconds
        )


@pytest.mark.parametrize("policy", [{"kind": "off_above", "batch": 1}, {"kind": "acceptance_window", "window": 10, "least": 4.0}])
def test_a_policy_that_rests_has_no_doubt_of_rounds(policy):
    """What never drafts costs what it keeps warm, and is unsure of that alone: of the engine, the method and R nothing is asked.
    A policy that tries, and gives up, keeps the doubt of what it tried."""
    spec = {**BASE["speculation"], "policy": policy}
    # Of this method no run of the engine was measured, so that R is doubted widely.
    load = workload("closed_loop", users=2, requests=30, output=150)
    asked = {"acceptance": {"acceptance_rate": 0.0}, "workload": load, "engine": "trtllm"}
    always, rests = (simulate(scenario(**asked, **more)).comparisons[0] for more in ({}, {"speculation": spec}))
    upkeep = 1 / rests.gain.value - 1
    assert always.gain.high / always.gain.low > 1.3
    if policy["kind"] == "off_above":
        assert 0 < upkeep < 0.05
        for estimate in (rests.gain, rests.tpot):
            assert estimate.high == pytest.approx(estimate.value, rel=1e-6)
            assert estimate.low == pytest.approx(1 / (1 + upkeep * upkeep_high()), rel=0.01)
        full = always.variant.saturation
        assert 0.5 < full.drafting_share == pytest.approx(1 - full.prefill_share)
        assert rests.variant.saturation.drafting_share == 0  # what of its doubt is R's
    else:
        assert rests.variant.off_share > 0.5
        assert always.gain.high / always.gain.low > rests.gain.high / rests.gain.low > 1.0


# ------------------------------------------------------------------------------------------------- what a verdict is about


def test_a_closed_loop_is_judged_by_each_users_rate_and_a_short_one_is_told():
    """Every user starts at once, so that a short run is mostly its start and drain: its tokens per second are not the steady ones."""
    short, long = (simulate(scenario(workload=workload("closed_loop", users=8, requests=requests))) for requests in (16, 40))
    assert short.comparisons[0].metric == "output rate per user"
    told = [any("fewer than 5 for each of 8 users" in warning for warning in result.warnings) for result in (short, long)]
    assert told == [True, False]


def test_a_schedule_by_batch_is_reported_at_the_gamma_of_the_mean_batch():
    speculation = {key: value for key, value in BASE["speculation"].items() if key != "num_speculative_tokens"}
    busy = workload("closed_loop", users=16, requests=96, output=120)

    def compared(*schedule):
        return simulate(scenario(speculation={**speculation, "by_batch": [*schedule]}, workload=busy)).comparisons[0]

    two = compared([1, 4, 5], [5, 64, 2])
    alone = simulate(scenario(speculation={**speculation, "num_speculative_tokens": 2}, workload=busy)).comparisons[0]
    assert two.batch > 4
    assert two.round.num_speculative_tokens == 2
    assert two.r.value == pytest.approx(alone.r.value, rel=0.02)
    assert "γ = 2, which the policy drafts" in two.remark
    off = compared([1, 4, 5])
    assert off.round.num_speculative_tokens == 5
    assert "drafts nothing at the mean batch" in off.remark


def test_the_capacity_run_reports_its_progress():
    seen: dict[str, list[tuple[int, int]]] = {}
    short = workload(requests=4, prompt=50, output=3, rate_per_s=1.0)
    simulate(
        scenario(workload=short, limits={"max_num_seqs": 8}),
        lambda label, done, total: seen.setdefault(label, []).append((done, total)),
    )
    capacity = [steps for label, steps in seen.items() if label.startswith("capacity")]
    assert len(capacity) == 2
    for steps in capacity:
        assert [done for done, _ in steps] == list(range(1, steps[-1][1] + 1))


def test_states_for_every_draft_leave_a_hybrid_room_for_fewer_sequences() -> None:
    asked = scenario(
        target={"model": "Qwen/Qwen3-Next-80B-A3B-Instruct", "weights": "fp8"},
        parallel={"tensor_parallel_size": 2},
        speculation={"method": "mtp", "num_speculative_tokens": 3},
        workload=workload("constant", requests=1200, output=40, rate_per_s=10_000.0),
        limits={"max_num_seqs": 1200},
    )
    plain, drafting = Server.of(asked), Server.of(asked, asked.shapes[0])
    assert 3.5 < drafting.rules.state_blocks / plain.rules.state_blocks <= 4  # the module's own cache makes blocks larger
    running = [int(server.run(asked.requests()).steps.column("running").max()) for server in (plain, drafting)]
    assert running[1] < 0.7 * running[0]
    least = drafting.rules.total_blocks // drafting.rules.held_tokens(440) * drafting.rules.block_tokens
    assert running[1] == pytest.approx(least, rel=0.1)
