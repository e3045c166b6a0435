"""Prompts computed on engines of their own: nothing is lost on the way, both engines agree, and times are what the link says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from simulator.draft_tree import Tree
from simulator.questions.capacity import capacity
from simulator.reports import files
from simulator.scenario import scenario_of
from simulator.serving import Engine, KVTransfer, Prefill, RouterName, ServingResult, serve, serve_on_replicas, summarise
from simulator.serving.replica import Replica
from simulator.serving.router import CHOICES, least_outstanding
from simulator.serving_engine import KVTransferKind
from simulator.simulation import Server, simulate
from simulator.simulation.saturation import saturation_of
from simulator.spec import Document, SpecError
from simulator.workload import Request
from tests.test_laws import NAMED, STEP_S, AffinePricer, IndependentPath, Scenario, drawn, roomy
from tests.test_routers import run as behind_a_router

KINDS: tuple[KVTransferKind, ...] = ("after_prompt", "by_chunk", "by_layer")
ROUTERS: tuple[RouterName, ...] = ("round_robin", "least_outstanding", "least_kv", "prefix_aware")
SLOW = KVTransfer("after_prompt", token_s=STEP_S / 8, latency_s=STEP_S / 3, layers=4)


def run(
    scenario: Scenario,
    transfer: KVTransfer = SLOW,
    prefill: int = 2,
    decode: int = 2,
    router: RouterName = "round_robin",
    readable: bool = False,
    context_token_s: float = 1e-5,
) -> ServingResult:
    pricer, rules = AffinePricer(context_token_s=context_token_s), scenario.rules()
    apart = replace(rules, host_blocks=0, admission="whole_prompt" if rules.admission == "whole_request" else rules.admission)
    return serve_on_replicas(
        scenario.requests(),
        [Engine(rules, pricer, scenario.drafts) for _ in range(decode)],
        lambda request: IndependentPath(request, scenario.seed, scenario.acceptance_rate, scenario.proposal_rate),
        router=router,
        prefill=Prefill([Engine(apart, pricer, lambda _: 0)] * prefill, transfer, router),
        users=scenario.users or None,
        think_time_s=scenario.think_time_s,
        time_out_s=scenario.time_out_s or None,
        readable=readable,
    )


def told(result: ServingResult) -> tuple[Any, ...]:
    """Everything that a run says, to the last bit."""
    replica = [None if numbers is None else numbers.tolist() for numbers in (result.replica_of_request, result.replica_of_step)]
    return repr(list(result.records)), list(result.steps), replica, result.transfers


def variety(seed: int) -> tuple[KVTransfer, int, int, RouterName]:
    """(transfer, engines that compute prompts, engines that decode, router)."""
    rng = np.random.default_rng([seed, *b"transfer"])
    transfer = KVTransfer(
        KINDS[seed % 3], float(rng.choice([0.0, STEP_S / 64, STEP_S, 10 * STEP_S])), float(rng.choice([0.0, STEP_S])),
        float(rng.choice([0.0, STEP_S, 0.01])), int(rng.choice([1, 32])), bool(rng.integers(2)),
    )  # fmt: skip
    return transfer, int(rng.integers(1, 4)), int(rng.integers(1, 4)), ROUTERS[int(rng.integers(4))]


@pytest.mark.parametrize("seed", range(300))
def test_both_engines_agree_to_the_last_bit_and_nothing_is_lost(seed: int) -> None:
    scenario, (transfer, prefill, decode, router) = (drawn, roomy)[seed % 2](seed), variety(seed)
    if router == "prefix_aware":
        scenario = replace(scenario, prefix_caching=True)
    fast, readable = (run(scenario, transfer, prefill, decode, router, each) for each in (False, True))
    shown = f"{scenario}, {transfer}, {prefill} + {decode}, {router}"
    assert told(fast) == told(readable), shown
    conserved(scenario, fast, transfer)


def conserved(scenario: Scenario, result: ServingResult, transfer: KVTransfer) -> None:
    """Requests, tokens and caches; `serve_on_replicas` itself fails where blocks are held in the end."""
    assert [record.request_id for record in result.records] == [request.request_id for request in scenario.requests()]
    steps, places = result.steps, result.replica_of_step
    assert places is not None
    assert result.transfers is not None
    computes = places >= result.replicas - result.prefill_replicas
    assert steps.column("decode_sequences")[computes].sum() == 0
    emitted = sum(sum(record.emission_tokens) for record in result.records)
    gone = sum(record.cancelled_s is not None for record in result.records)
    preempted = sum(record.preemptions for record in result.records)
    assert steps.column("preempted").sum() <= preempted if gone else steps.column("preempted").sum() == preempted
    assert scenario.host_blocks or not any(record.swaps for record in result.records)
    # A first token that was made with its prompt is lost with the client on the way.
    assert 0 <= steps.column("emitted").sum() - emitted <= (gone if transfer.makes_first_token else 0)
    came = dict(zip(result.transfers.request_id, result.transfers.tokens, strict=True))
    assert len(came) == len(result.transfers)
    for record in result.records:
        assert [record.finish_s is not None, bool(record.rejected), record.cancelled_s is not None].count(True) == 1
        if record.finish_s is not None:
            assert sum(record.emission_tokens) == record.output_tokens
            assert (record.itl_s > 0).all()
            assert 0 < came[record.request_id] <= record.prompt_tokens
            assert scenario.prefix_caching or came[record.request_id] == record.prompt_tokens
    landed, computed = result.transfers.column("landed_s"), result.transfers.column("computed_s")
    assert (landed >= computed + transfer.latency_s - 1e-12).all()


# --------------------------------------------------------------------------------------------------------- closed forms

LONE = Scenario(num_requests=1, longest_prompt=400, longest_output=60, max_model_len=1000, total_blocks=500, gap_s=0.5)


def chunks_s(prompt: int, budget: int) -> list[tuple[int, float]]:
    """(tokens, seconds) of the steps that compute a prompt alone."""
    tokens = [min(budget, prompt - before) for before in range(0, prompt, budget)]
    return [(new, STEP_S + new * STEP_S / 16) for new in tokens]


@pytest.mark.parametrize("makes_first_token", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_a_lone_request_takes_its_prompt_the_way_and_its_rounds(seed: int, kind: KVTransferKind, makes_first_token: bool) -> None:
    scenario = replace(LONE, seed=seed, num_speculative_tokens=0)
    transfer = KVTransfer(kind, token_s=STEP_S / 4, sequence_s=STEP_S / 2, latency_s=STEP_S / 8, layers=8)
    transfer = replace(transfer, makes_first_token=makes_first_token)
    record = run(scenario, transfer, 1, 1, context_token_s=0.0).records[0]
    steps = chunks_s(record.prompt_tokens, scenario.max_num_batched_tokens)
    end_s, link_free_s = 0.0, 0.0
    for index, (new, step_s) in enumerate(steps):
        begin_s, end_s = end_s, end_s + step_s
        sent_s = new * transfer.token_s + (transfer.sequence_s if index == len(steps) - 1 else 0.0)
        if kind == "by_chunk":
            link_free_s = max(end_s, link_free_s) + sent_s
        elif kind == "by_layer":
            link_free_s = max(max(begin_s, link_free_s) + sent_s, end_s + sent_s / 8)
    if kind == "after_prompt":
        link_free_s = end_s + record.prompt_tokens * transfer.token_s + transfer.sequence_s
    again_s = 0.0 if makes_first_token else STEP_S + STEP_S / 16  # the last token of the prompt
    ttft_s = link_free_s + transfer.latency_s + again_s
    assert record.ttft_s == pytest.approx(ttft_s, rel=1e-12)
    assert record.e2e_latency_s == pytest.approx(ttft_s + (record.output_tokens - 1) * (STEP_S + STEP_S / 8), rel=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_a_way_that_takes_no_time_leaves_one_engine_that_never_stops_for_prompts(seed: int) -> None:
    """With nothing in common between requests on the way, a lone request is served as by one engine that does both."""
    scenario = replace(LONE, seed=seed)
    nothing = KVTransfer("after_prompt", 0.0, makes_first_token=True)
    apart = run(scenario, nothing, 1, 1).records[0]
    together = serve(
        scenario.requests(), scenario.rules(), AffinePricer(context_token_s=1e-5),
        lambda request: IndependentPath(request, scenario.seed, scenario.acceptance_rate), scenario.drafts,
    ).records[0]  # fmt: skip
    assert repr(apart) == repr(together)


BUSY = Scenario(
    num_requests=150, gap_s=0.06, longest_prompt=200, longest_output=40, max_model_len=1000, total_blocks=2000, max_num_seqs=64,
    max_num_batched_tokens=64, num_speculative_tokens=2,
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_a_slower_link_never_brings_an_answer_sooner(seed: int, kind: KVTransferKind) -> None:
    """But for the step in progress: blocks are kept, and what has come is looked at, between steps, which fall otherwise."""
    scenario = replace(BUSY, seed=seed)
    links = [(0.0, 0.0), (STEP_S / 100, 0.0), (STEP_S / 100, 2 * STEP_S), (STEP_S / 20, 2 * STEP_S), (STEP_S / 10, 2 * STEP_S)]
    found = [run(scenario, KVTransfer(kind, token_s, latency_s=latency_s, layers=4), 1, 1) for token_s, latency_s in links]
    step_s = max(result.steps.column("seconds").max() for result in found)
    for fast, slow in pairwise(found):
        assert slow.records.ttft_s.mean() > fast.records.ttft_s.mean()
        assert slow.records.e2e_latency_s.mean() > fast.records.e2e_latency_s.mean() - 0.1 * step_s
        if kind == "after_prompt":
            assert (came_s(slow) >= came_s(fast) - step_s).all()


def came_s(result: ServingResult) -> Any:
    """When each cache came, by request."""
    assert result.transfers is not None
    return result.transfers.column("landed_s")[np.argsort(result.transfers.column("request_id"))]


@pytest.mark.parametrize("makes_first_token", [False, True])
def test_decoding_is_never_held_up_by_a_prompt(makes_first_token: bool) -> None:
    """Steps of an engine that decodes take in no prompt, or only its last token again; long prompts elsewhere stretch gaps."""
    transfer = replace(SLOW, makes_first_token=makes_first_token, token_s=0.0)
    scenario = replace(BUSY, longest_prompt=400, max_num_batched_tokens=512, num_speculative_tokens=0)
    apart = run(scenario, transfer, 1, 1)
    assert apart.replica_of_step is not None
    decodes = apart.replica_of_step == 0
    prefill = apart.steps.column("prefill_tokens")[decodes]
    assert (prefill == (0 if makes_first_token else apart.steps.column("prompts_finished")[decodes])).all()
    together = serve(
        scenario.requests(), scenario.rules(), AffinePricer(context_token_s=1e-5),
        lambda request: IndependentPath(request, scenario.seed, scenario.acceptance_rate), scenario.drafts,
    )  # fmt: skip
    longest = [max(record.itl_s.max(initial=0.0) for record in result.records) for result in (apart, together)]
    assert longest[0] < 0.4 * longest[1]
    assert np.nanmean(apart.records.tpot_s) < np.nanmean(together.records.tpot_s)


def test_sending_while_computing_hides_the_way() -> None:
    scenario = replace(LONE, num_requests=40, max_num_batched_tokens=64, gap_s=1.0)
    ttft_s = {
        kind: run(scenario, KVTransfer(kind, STEP_S / 17, layers=32), 1, 1).records.ttft_s.mean() for kind in KINDS
    }  # the link is as fast as the engine
    assert ttft_s["by_layer"] < ttft_s["by_chunk"] < ttft_s["after_prompt"]


def test_blocks_are_kept_for_a_cache_before_it_moves_and_until_it_has_come() -> None:
    """One engine decodes with room for one request: the second prompt is computed meanwhile, and waits where it is."""
    scenario = replace(BUSY, num_requests=12, longest_prompt=100, longest_output=50, total_blocks=40, gap_s=0.0)
    result = run(scenario, replace(SLOW, token_s=0.0), 1, 1)
    assert result.transfers is not None
    waited = result.transfers.column("begin_s") - result.transfers.column("computed_s")
    assert waited.max() > 10 * STEP_S
    assert result.replica_of_step is not None
    for place in (0, 1):
        assert result.steps.column("used_blocks")[result.replica_of_step == place].max() <= 40


def sent_on(requests: Sequence[Request], transfer: KVTransfer, blocks: int = 40, **more: Any) -> ServingResult:
    """These requests, their prompts computed on two engines of their own; blocks of four tokens where they are decoded."""
    rules = replace(Scenario().rules(), max_model_len=1000, max_num_batched_tokens=512)
    results = []
    for readable in (False, True):
        prefill = Prefill([Engine(rules, AffinePricer(), lambda _: 0)] * 2, transfer, more.get("router", "least_outstanding"))
        decoding = replace(rules, total_blocks=blocks, max_num_batched_tokens=16)
        engines = [Engine(decoding, AffinePricer(), lambda _: 0)]
        time_out_s = more.get("time_out_s")
        paths = partial(IndependentPath, seed=1, acceptance_rate=0.5)
        results.append(serve_on_replicas(requests, engines, paths, prefill=prefill, time_out_s=time_out_s, readable=readable))
    assert told(results[0]) == told(results[1])
    return results[0]


def test_what_loses_its_blocks_to_a_cache_on_the_way_starts_again_at_once() -> None:
    """The answer outgrows what the cache to come leaves of the pool: chunks of it are computed again and again, as an engine that
    only looks for room for a chunk does, and not left until that cache has come."""
    requests = [Request(0, 0.0, 8, 100), Request(1, 0.0, 100, 4)]
    result = sent_on(requests, KVTransfer("after_prompt", token_s=4 * STEP_S), blocks=35)
    assert result.transfers is not None
    assert result.replica_of_step is not None
    came_s = max(result.transfers.landed_s)
    steps = [step for step, place in zip(result.steps, result.replica_of_step, strict=True) if place == 0]
    assert steps[0].start_s < came_s / 10
    assert all(after.start_s == step.start_s + step.seconds for step, after in pairwise(steps) if after.start_s < came_s)
    assert result.records[0].preemptions > 3


def prefill_engines(result: ServingResult) -> list[int]:
    """Which engine computed each prompt, in the order of time."""
    assert result.replica_of_step is not None
    chunks = result.steps.column("prefill_sequences") > 0
    return [int(place) - 1 for place in result.replica_of_step[chunks] if place > 0]


def test_routers_see_nothing_of_who_gave_up_and_of_caches_that_have_gone() -> None:
    """One by one, each comes when the one before is given up with its cache on the way, or has been answered."""
    late = KVTransfer("after_prompt", token_s=0.0, latency_s=10.0, makes_first_token=True)
    given_up = sent_on([Request(i, 2.0 * i, 8, 2) for i in range(3)], late, time_out_s=1.0)
    assert [record.cancelled_s for record in given_up.records] == [1.0, 3.0, 5.0]
    answered = sent_on([Request(i, 2.0 * i, 8, 2) for i in range(3)], replace(late, latency_s=0.0), router="least_kv")
    assert prefill_engines(given_up) == prefill_engines(answered) == [0, 0, 0]


def test_routers_count_who_is_here_and_has_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted anew, sequence by sequence, whenever a request arrives."""
    most_here = most_given_up = 0

    def choose(replicas: Sequence[Replica], request: Request) -> int:
        nonlocal most_here, most_given_up
        for replica in replicas:
            at = replica.scheduler
            here = [*at.running, *at.waiting, *at.offered, *at.in_transit.values(), *at.landed]
            given_up = sum(sequence.cancelled_s is not None for sequence in here)
            assert replica.outstanding == sum(sequence.cancelled_s is None and not sequence.ended for sequence in here)
            most_here, most_given_up = max(most_here, replica.outstanding), max(most_given_up, given_up)
        return least_outstanding(replicas, request)

    monkeypatch.setitem(CHOICES, "least_outstanding", choose)
    for seed in range(60):
        scenario = replace((drawn, roomy)[seed % 2](seed), num_requests=40, time_out_s=(0.0, 0.3, 1.5)[seed % 3])
        for readable in (False, True):
            behind_a_router(scenario, "least_outstanding", readable=readable)
            run(scenario, variety(seed)[0], router="least_outstanding", readable=readable)
    assert most_here > 10
    assert most_given_up > 5


def test_the_fast_engine_takes_many_rounds_at_once_where_prompts_are_computed_elsewhere() -> None:
    for first in (False, True):
        result = run(replace(BUSY, gap_s=3.0, longest_output=400), replace(SLOW, makes_first_token=first))
        assert result.statistics.wakes < result.statistics.steps / 3
        assert result.statistics.plain_steps == 0


@pytest.mark.parametrize("kind", KINDS)
def test_engines_share_the_work_and_each_router_moves_it(kind: KVTransferKind) -> None:
    scenario = replace(BUSY, texts=3, shared_tokens=100, longest_prompt=180, prefix_caching=True, gap_s=0.03)
    shown = {router: told(run(scenario, replace(SLOW, kind=kind, token_s=STEP_S / 100), 2, 2, router)) for router in ROUTERS}
    assert len({repr(each) for each in shown.values()}) == len(ROUTERS)


def test_links_are_shared_first_come_first_served() -> None:
    """Three engines that compute prompts feed one that decodes over its one link: caches come no faster than it takes them."""
    scenario = replace(BUSY, num_requests=60, gap_s=0.0)
    result = run(scenario, KVTransfer("after_prompt", STEP_S / 4), 3, 1)
    assert result.transfers is not None
    landed, tokens = result.transfers.column("landed_s"), result.transfers.column("tokens")
    assert (np.diff(landed) >= tokens[1:] * STEP_S / 4 - 1e-9).all()


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("kind", KINDS)
def test_both_engines_agree_where_something_is_scarce(name: str, kind: KVTransferKind) -> None:
    transfer = replace(SLOW, kind=kind, makes_first_token=kind == "by_chunk")
    fast, readable = (run(NAMED[name], transfer, readable=each) for each in (False, True))
    assert told(fast) == told(readable)
    conserved(NAMED[name], fast, transfer)


# -------------------------------------------------------------------------------------------------------------- scenarios

APART: dict[str, Any] = {
    "hardware": "h100_sxm",
    "engine": "vllm",
    "target": {"model": "meta-llama/Llama-3.1-8B-Instruct"},
    "speculation": {
        "method": "eagle3", "drafter": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 3,
    },
    "acceptance": {"acceptance_rate": 0.7},
    "workload": {
        "arrivals": {"process": "poisson", "rate_per_s": 10.0},
        "lengths": {"prompt": {"distribution": "uniform", "low": 500, "high": 3500}, "output": 60},
        "num_requests": 120,
    },
    "parallel": {"disaggregated_prefill": {}},
}  # fmt: skip


def asked(prefill: dict[str, Any] | None = None, **more: Any) -> Any:
    parallel = {**more.pop("parallel", {}), "disaggregated_prefill": prefill or {}}
    return scenario_of(Document("apart", {**APART, **more, "parallel": parallel}, {}))


def served(scenario: Any, drafts: int = 0) -> ServingResult:
    return Server.of(scenario, Tree.chain(drafts) if drafts else None).run(scenario.requests())


def test_a_cache_is_that_of_target_and_drafter_over_the_link_of_the_slower_end() -> None:
    """Llama 3.1 8B: 2 × 8 heads × 128 numbers × 32 layers × 2 bytes a token, EAGLE-3 one layer more, on H100 nodes with 400 Gb/s for
    each device; four devices a side send a quarter each, and with one at the other end that one sets the pace."""
    stated = {"link": {"bandwidth_bytes_per_s": 1e10, "latency_s": 1e-3}}
    assert Server.of(asked(stated)).prefill.transfer.token_s == 131072 / 1e10
    assert Server.of(asked(stated), Tree.chain(3)).prefill.transfer.token_s == 33 * 4096 / 1e10
    wide = asked({**stated, "tensor_parallel_size": 4}, parallel={"tensor_parallel_size": 4})
    assert Server.of(wide).prefill.transfer.token_s == 131072 / 4 / 1e10
    assert Server.of(asked({**stated, "tensor_parallel_size": 4})).prefill.transfer.token_s == 131072 / 1e10
    slow = asked({"hardware": "l40s"})
    assert Server.of(slow).prefill.transfer.token_s > Server.of(asked()).prefill.transfer.token_s


def test_the_answer_is_made_where_the_engine_makes_it() -> None:
    for engine, kind, first in (("vllm", "after_prompt", False), ("sglang", "by_chunk", True), ("trtllm", "after_prompt", True)):
        transfer = Server.of(asked(engine=engine)).prefill.transfer
        assert (transfer.kind, transfer.makes_first_token) == (kind, first)


def test_speculation_shortens_the_answer_and_not_the_prompt() -> None:
    """Where prompts are computed apart, the time to the first token hardly knows of speculation: of the draft's own prompt alone."""
    scenario = asked()
    plain, drafted = summarise(served(scenario)), summarise(served(scenario, 3))
    for before, after, least, most in ((plain.ttft_s, drafted.ttft_s, 0.99, 1.3), (plain.tpot_s, drafted.tpot_s, 0.3, 0.6)):
        assert before is not None
        assert after is not None
        assert least < after.mean / before.mean < most
    assert drafted.load.prefill_share < 0.02
    assert drafted.prefill_load is not None
    assert drafted.prefill_load.prefill_share == pytest.approx(1.0)
    assert drafted.prefill_load.mean_decode_sequences == 0


def test_records_of_a_run_tell_when_each_cache_came(tmp_path: Path) -> None:
    few = {**APART["workload"], "num_requests": 20}
    result = simulate(asked(workload=few))
    files._write_records(tmp_path / "records.parquet", result)
    table = pyarrow.parquet.read_table(tmp_path / "records.parquet").to_pydict()
    assert len(table["kv_landed_s"]) == 40
    for first, computed, landed, token in zip(
        *(table[name] for name in ("first_scheduled_s", "prompt_computed_s", "kv_landed_s", "first_token_s")), strict=True
    ):
        assert first < computed < landed < token


def test_the_slower_side_sets_what_a_saturated_deployment_finishes() -> None:
    rates = {n: saturation_of(Server.of(asked({"instances": n})), asked().requests()) for n in (1, 2, 16)}
    assert rates[1].per_s < rates[2].per_s < rates[16].per_s
    assert rates[2].per_s == pytest.approx(2 * rates[1].per_s, rel=0.1)
    assert (rates[1].prefill_share, rates[16].prefill_share < 0.1) == (1.0, True)
    alone = Server.of(asked({"instances": 16})).rules
    assert rates[16].per_s < alone.max_num_seqs / (60 * 0.005)


def test_capacity_counts_the_devices_of_both_sides_and_needs_the_level_of_both() -> None:
    level = {"service_level": {"ttft_p99_s": 1.0, "tpot_p99_s": 0.02}, "speculation": None, "acceptance": None}
    few = {**APART["workload"], "num_requests": 60}
    found = [
        capacity(asked({"instances": n, "tensor_parallel_size": 2}, workload=few, **level), repetitions=1).plain for n in (1, 2)
    ]
    assert [row.devices for row in found] == [3, 5]
    priced = asked({"hardware": "l40s"}, workload=few, planning={"price_per_gpu_hour": 2.0}, **level)
    said = capacity(priced, repetitions=1).warnings
    assert any("price_per_gpu_hour is taken for every device" in text for text in said)
    assert 1.3 < (found[1].rate_per_s or 0) / (found[0].rate_per_s or 1) <= 2.2
    assert all(row.analytic is not None and 0.5 < row.analytic.rate_per_s / (row.rate_per_s or 1) < 2 for row in found)


@pytest.mark.parametrize(
    ("prefill", "more", "must"),
    [
        ({}, {"engine": "llamacpp"}, "disaggregated_prefill: must be left out: llama.cpp.* has no instances that only compute"),
        ({"router": "least_outstanding"}, {}, "router: must be left out: there is one instance"),
        ({"instances": 2, "router": "prefix_aware"}, {}, "router: must be another router: no instance keeps prefixes"),
        ({"tensor_parallel_size": 5}, {}, "must divide the 32 attention heads"),
        ({"hardware": "l40z"}, {}, "did you mean l40"),
        ({"hardware": "t4", "tensor_parallel_size": 1}, {}, "must hold meta-llama/Llama-3.1-8B and a KV cache"),
        ({"link": "usb"}, {}, "link.*must be one of"),
        ({"link": {"bandwidth_bytes_per_s": 0}}, {}, "bandwidth_bytes_per_s"),
        ({"kv_transfer": "by_token"}, {}, "kv_transfer"),
    ],
)
def test_what_cannot_be_or_would_change_nothing_is_refused(prefill: dict[str, Any], more: dict[str, Any], must: str) -> None:
    with pytest.raises(SpecError, match=must):
        asked(prefill, **more)


def test_each_rank_that_decodes_has_a_link_of_its_own() -> None:
    """Three engines that compute prompts, and one whose four ranks take in a cache each at a time: the way is no longer what holds
    up the others."""
    scenario = replace(BUSY, num_requests=60, gap_s=0.0)
    one, four = (run(scenario, KVTransfer("after_prompt", STEP_S / 4, decode_links=links), 3, 1) for links in (1, 4))
    assert came_s(four).max() < 0.6 * came_s(one).max()
    spread = asked(
        {"tensor_parallel_size": 8}, hardware="h200_sxm", target={"model": "openai/gpt-oss-120b"}, speculation=None, acceptance=None,
        parallel={"data_parallel_size": 4, "tensor_parallel_size": 2},
    )  # fmt: skip
    assert Server.of(spread).prefill.transfer.decode_links == 4


def test_what_prompts_cost_together_ends_with_how_many_wait() -> None:
    """A budget of tokens that no step fills changes no price: prompts side by side do not attend to each other."""
    text = {
        "hardware": "h100_sxm", "engine": "vllm", "target": {"model": "meta-llama/Llama-3.1-8B-Instruct"},
        "workload": {"arrivals": {"process": "constant", "rate_per_s": 4}, "lengths": {"prompt": 300, "output": 20}, "num_requests": 10},
    }  # fmt: skip
    pricer = Server.of(scenario_of(Document("s.yaml", text, {}))).pricer
    some, plenty, most = (pricer.prefill_s_each(300, budget, 64) for budget in (1_000, 100_000, 2**31 - 1))
    assert pricer.prefill_s(300, 1_000) > some > plenty == most
    assert pricer.prefill_s_each(300, 100, 64) == pricer.prefill_s(300, 100)


@pytest.mark.parametrize("key", ["max_num_batched_tokens", "max_model_len", "max_num_seqs"])
def test_limits_that_no_engine_can_keep_are_refused(key: str) -> None:
    text = {
        "hardware": "h100_sxm", "engine": "vllm", "target": {"model": "meta-llama/Llama-3.1-8B-Instruct"},
        "workload": {"arrivals": {"process": "constant", "rate_per_s": 4}, "lengths": {"prompt": 300, "output": 20}, "num_requests": 10},
        "limits": {key: 2**31},
    }  # fmt: skip
    with pytest.raises(SpecError, match=f"limits.{key}"):
        scenario_of(Document("s.yaml", text, {}))
