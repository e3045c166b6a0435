"""Several replicas behind a router: the engines agree, nothing is lost, and choosing by load is as much better as theory says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from simulator.acceptance import AcceptancePath
from simulator.draft_tree import Tree
from simulator.questions.capacity import capacity
from simulator.questions.comparison import compare
from simulator.questions.server_check import check_server
from simulator.questions.server_fit import fit_engine
from simulator.questions.steady_load import steady_batch
from simulator.scenario import scenario_of
from simulator.serving import BatchingRules, Engine, RequestRecord, RouterName, ServingResult, serve, serve_on_replicas
from simulator.serving.router import MOST_REQUESTS_APART, in_turn
from simulator.simulation import Server, paths, saturation_of
from simulator.spec import Document, SpecError
from simulator.workload import Request, requests_of
from tests.test_laws import NAMED, AffinePricer, Cost, IndependentPath, Scenario, drawn, roomy

ROUTERS: tuple[RouterName, ...] = ("round_robin", "least_outstanding", "least_kv", "prefix_aware")


def run(
    scenario: Scenario, router: RouterName, replicas: int = 3, readable: bool = False, context_token_s: float = 1e-5
) -> ServingResult:
    pricer = AffinePricer(context_token_s=context_token_s)
    engines = [Engine(scenario.rules(), pricer, scenario.drafts) for _ in range(replicas)]
    return serve_on_replicas(
        scenario.requests(),
        engines,
        lambda request: IndependentPath(request, scenario.seed, scenario.acceptance_rate, scenario.proposal_rate),
        router=router,
        users=scenario.users or None,
        think_time_s=scenario.think_time_s,
        time_out_s=scenario.time_out_s or None,
        readable=readable,
    )


def told(result: ServingResult) -> tuple[Any, ...]:
    """Everything that a run says, to the last bit."""
    replica = [None if numbers is None else numbers.tolist() for numbers in (result.replica_of_request, result.replica_of_step)]
    return repr(list(result.records)), list(result.steps), replica


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("name", NAMED)
def test_both_engines_route_alike_to_the_last_bit(name: str, router: RouterName) -> None:
    scenario = replace(NAMED[name], num_requests=60)
    fast, readable = run(scenario, router), run(scenario, router, readable=True)
    assert told(fast) == told(readable)


@pytest.mark.parametrize("seed", range(75))
def test_both_engines_route_alike_in_random_scenarios(seed: int) -> None:
    router = ROUTERS[1 + seed % 3]
    scenario = replace((drawn, roomy)[seed % 2](seed), num_requests=40)
    if router == "prefix_aware":
        scenario = replace(scenario, prefix_caching=True, texts=3, shared_tokens=30)
    fast, readable = run(scenario, router), run(scenario, router, readable=True)
    assert told(fast) == told(readable), f"{router}: {scenario}"


@pytest.mark.parametrize("seed", range(60))
def test_both_engines_route_alike_where_steps_of_several_replicas_end_together(seed: int) -> None:
    """Sums of step times are exact here, and users send at once what follows an answer: it must find all replicas after their
    steps, whichever event was scheduled first."""
    rng = np.random.default_rng([seed, *b"together"])
    scenario = replace(
        (drawn, roomy)[seed % 2](seed), num_requests=60, on_grid=True, num_speculative_tokens=0, turns=int(rng.integers(1, 4)),
        users=int(rng.choice([0, 5, 12])), think_time_s=0.0, turn_think_s=0.0, longest_prompt=8, total_blocks=1000,
        max_num_seqs=int(rng.choice([2, 4])), max_model_len=1000,
    )  # fmt: skip
    router = ROUTERS[1 + seed % 2]
    fast, readable = (run(scenario, router, 3, engine, 0.0) for engine in (False, True))
    assert told(fast) == told(readable), f"{router}: {scenario}"


@pytest.mark.parametrize("seed", range(30))
def test_both_engines_see_the_same_prefixes_while_long_answers_crowd_them_out(seed: int) -> None:
    rng = np.random.default_rng([seed, *b"crowded"])
    scenario = Scenario(
        seed, num_requests=80, longest_prompt=40, longest_output=120, gap_s=float(rng.choice([0.1, 0.3, 0.6])), texts=6,
        shared_tokens=32, prefix_caching=True, max_model_len=1000, max_num_batched_tokens=512,
        total_blocks=int(rng.integers(50, 120)),
    )  # fmt: skip
    fast, readable = run(scenario, "prefix_aware"), run(scenario, "prefix_aware", readable=True)
    assert told(fast) == told(readable)
    assert fast.statistics.wakes < fast.statistics.steps


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("router", ROUTERS)
def test_every_request_is_served_once_by_one_replica(seed: int, router: RouterName) -> None:
    scenario = drawn(1000 + seed)
    result = run(scenario, router)
    asked = {request.request_id: request for request in scenario.requests()}
    assert [record.request_id for record in result.records] == sorted(asked)
    emitted = sum(sum(record.emission_tokens) for record in result.records)
    assert emitted == result.steps.column("emitted").sum()
    for record in result.records:
        if record.finish_s is not None:
            assert sum(record.emission_tokens) == asked[record.request_id].output_tokens
    start_s, seconds = result.steps.column("start_s"), result.steps.column("seconds")
    assert result.replica_of_step is not None
    for replica in range(3):
        own = result.replica_of_step == replica
        assert (start_s[own][1:] >= (start_s[own] + seconds[own])[:-1]).all()


@pytest.mark.parametrize("name", NAMED)
def test_dealing_in_turn_is_what_replicas_alone_do(name: str) -> None:
    """The same as one of them after the other by itself, users of a closed loop and turns of sessions included, and no more work:
    no replica is woken for what another one gets."""
    scenario, replicas = replace(NAMED[name], num_requests=50), 3
    result = run(scenario, "round_robin", replicas)
    alone: list[RequestRecord] = []
    steps = wakes = 0
    for index, theirs in enumerate(in_turn(scenario.requests(), replicas)):
        users = scenario.users // replicas + (index < scenario.users % replicas) if scenario.users else None
        part = serve(
            theirs,
            scenario.rules(),
            AffinePricer(context_token_s=1e-5),
            lambda request: IndependentPath(request, scenario.seed, scenario.acceptance_rate, scenario.proposal_rate),
            scenario.drafts,
            users=users,
            think_time_s=scenario.think_time_s,
            time_out_s=scenario.time_out_s or None,
        )
        alone += part.records
        steps += len(part.steps)
        wakes += part.statistics.wakes
    assert repr(list(result.records)) == repr(sorted(alone, key=lambda record: record.request_id))
    assert len(result.steps) == steps
    assert result.statistics.wakes == wakes


# -------------------------------------------------------------------------------------------------------- queueing theory


@dataclass
class PerToken:
    """A step takes as long as its prompt tokens, or nothing to speak of."""

    token_s: float

    def price(self, decode: Sequence[tuple[int, int]], prefill: Sequence[tuple[int, int]], prompts_finished: int) -> Cost:
        seconds = self.token_s * sum(new for new, _ in prefill)
        return Cost(seconds, (("prefill", seconds),))


class NoDrafts:
    def accepted(self, position: int, drafted: int) -> int:
        return 0

    def proposed(self, position: int, num_speculative_tokens: int) -> int:
        return 0


ONE_AT_A_TIME = BatchingRules(
    max_num_seqs=1, max_num_batched_tokens=1 << 20, max_model_len=1 << 21, total_blocks=1 << 17, chunked_prefill=False
)


def queue(
    arrival_s: np.ndarray, service_s: np.ndarray, replicas: int, router: RouterName, token_s: float = 1e-4
) -> ServingResult:
    """First come first served, one at a time on each replica, for the given times, rounded to `token_s`."""
    tokens = np.maximum(np.rint(service_s / token_s), 1).astype(int).tolist()
    requests = [Request(i, float(time_s), tokens[i], 1) for i, time_s in enumerate(arrival_s)]
    engines = [Engine(ONE_AT_A_TIME, PerToken(token_s), lambda _: 0)] * replicas
    return serve_on_replicas(requests, engines, lambda _: NoDrafts(), router=router)


def mean_wait(result: ServingResult, first: int = 0) -> float:
    return float(result.records.queueing_s[first:].mean())


def waits_in_one_queue(arrival_s: np.ndarray, service_s: np.ndarray, servers: int) -> np.ndarray:
    """First come first served, each by the server that is free first (Kiefer and Wolfowitz 1955)."""
    free_s, waits = [0.0] * servers, []
    for now_s, needs_s in zip(arrival_s.tolist(), service_s.tolist(), strict=True):
        first = free_s.index(min(free_s))
        waits.append(max(free_s[first] - now_s, 0.0))
        free_s[first] = now_s + waits[-1] + needs_s
    return np.array(waits)


@pytest.mark.parametrize("seed", range(20))
def test_with_equal_service_taking_turns_is_one_queue_for_all_and_nothing_waits_less(seed: int) -> None:
    """Servers of equal deterministic service become free in turn, so round robin is M/D/n itself, which no router beats: counting
    requests cannot tell a service just begun from one about to end."""
    rng = np.random.default_rng([seed, *b"streams"])
    replicas, load = int(rng.integers(2, 6)), float(rng.uniform(0.5, 0.98))
    arrival_s, service_s = np.cumsum(rng.exponential(1.0 / (replicas * load), 400)), np.ones(400)
    turns = queue(arrival_s, service_s, replicas, "round_robin", 1.0)
    assert turns.records.queueing_s == pytest.approx(waits_in_one_queue(arrival_s, service_s, replicas), abs=1e-9)
    assert mean_wait(queue(arrival_s, service_s, replicas, "least_outstanding", 1.0)) >= mean_wait(turns) - 1e-12


@pytest.mark.parametrize("seed", range(5))
def test_with_unequal_service_looking_is_better_than_taking_turns(seed: int) -> None:
    rng = np.random.default_rng([seed, *b"unequal"])
    arrival_s, service_s = np.cumsum(rng.exponential(1 / 3.2, 6000)), rng.exponential(1.0, 6000)
    shortest, turns = (mean_wait(queue(arrival_s, service_s, 4, router)) for router in ("least_outstanding", "round_robin"))
    assert waits_in_one_queue(arrival_s, service_s, 4).mean() < shortest < turns


def test_the_shortest_queue_waits_less_than_a_random_split_and_longer_than_one_queue_for_all() -> None:
    """M/M/2 at load 0.8: between the split into two M/M/1, ρ/(1-ρ) = 4 service times, and M/M/2 with one queue,
    ρ²/(1-ρ²) = 1.78 (Erlang's C). Joining the shortest of two is near the latter: heavy-traffic theory puts it within a
    service time of it."""
    rng, count = np.random.default_rng([1, *b"shortest"]), 40_000
    arrival_s, service_s = np.cumsum(rng.exponential(1 / 1.6, count)), rng.exponential(1.0, count)
    wait = mean_wait(queue(arrival_s, service_s, 2, "least_outstanding", 1e-4), 1000)
    assert 1.78 < wait < 1.78 + 1.0
    assert wait < 0.75 * 4.0


# -------------------------------------------------------------------------------------------------------- what they choose


class Constant:
    def price(self, decode: Any, prefill: Any, prompts_finished: int) -> Cost:
        return Cost(1.0, (("step", 1.0),))


ROOMY = BatchingRules(
    max_num_seqs=256, max_num_batched_tokens=4096, max_model_len=4096, total_blocks=1000, block_tokens=8, prefix_caching=True
)


def placed(
    requests: Sequence[Request], router: RouterName, replicas: int = 2, engine: Callable[[], Engine] | None = None
) -> list[int]:
    engines = [engine() if engine else Engine(ROOMY, Constant(), lambda _: 0) for _ in range(replicas)]
    result = serve_on_replicas(requests, engines, lambda _: NoDrafts(), router=router)
    assert result.replica_of_request is not None
    return result.replica_of_request.tolist()


def test_least_outstanding_counts_requests_and_least_kv_counts_blocks() -> None:
    """A long prompt and two short ones: fewer requests are where the long one is, fewer blocks where the short ones are."""
    requests = [Request(0, 0.0, 800, 50), Request(1, 0.5, 8, 50), Request(2, 2.5, 8, 50), Request(3, 4.5, 8, 50)]
    assert placed(requests, "least_outstanding") == [0, 1, 0, 1]
    assert placed(requests, "least_kv") == [0, 1, 1, 1]
    assert placed(requests, "round_robin") == [0, 1, 0, 1]


def test_a_prompt_goes_where_its_beginning_is_unless_load_is_lopsided() -> None:
    text = ((7, 300),)
    begin = [Request(0, 0.0, 100, 5), Request(1, 0.5, 80, 200, text)]
    assert placed([*begin, Request(2, 20.0, 80, 5, text)], "prefix_aware") == [0, 1, 1]
    assert placed([*begin, Request(2, 20.0, 80, 5, text)], "least_outstanding") == [0, 1, 0]
    assert placed([*begin, Request(2, 20.0, 80, 5, ((7, 16), (8, 300)))], "prefix_aware")[2] == 0  # too little of it is there
    many = [Request(2 + i, 20.0, 80, 5, text) for i in range(MOST_REQUESTS_APART + 2)]
    assert placed([*begin, *many], "prefix_aware") == [0, *[1] * (MOST_REQUESTS_APART + 1), 0, 1]


# -------------------------------------------------------------------------------------------------------------- scenarios

PARALLEL = {
    "hardware": "h100_sxm",
    "engine": "vllm",
    "target": {"model": "meta-llama/Llama-3.1-8B-Instruct"},
    "workload": {
        "arrivals": {"process": "poisson", "rate_per_s": 40.0},
        "lengths": {"prompt": {"distribution": "uniform", "low": 50, "high": 900}, "output": 20},
        "num_requests": 60,
        "shared_prefix_tokens": 400,
    },
    "parallel": {"data_parallel_size": 3},
    "limits": {"prefix_caching": True},
}


def parallel(router: str | None = None, **more: Any) -> Any:
    data = {**PARALLEL, **more}
    if router is not None:
        data["parallel"] = {**data["parallel"], "router": router}
    return scenario_of(Document("routers", data, {}))


def test_each_router_moves_the_result_and_round_robin_is_the_default() -> None:
    shown = {}
    for router in (None, *ROUTERS):
        result = Server.of(parallel(router)).run(parallel().requests())
        shown[router] = repr(list(result.records))
    assert shown.pop(None) == shown["round_robin"]
    assert len(set(shown.values())) == len(ROUTERS)


@pytest.mark.parametrize(
    ("router", "more", "must"),
    [
        ("least_kv", {"parallel": {}}, "must be left out: there is one replica"),
        (
            "least_kv",
            {"target": {"model": "openai/gpt-oss-20b"}, "parallel": {"data_parallel_size": 2}},
            "as the ranks of openai/gpt-oss-20b step together",
        ),
        ("prefix_aware", {"limits": {"prefix_caching": False}}, "no replica keeps prefixes"),
        ("least_work", {}, "least_kv"),
    ],
)
def test_a_router_without_anything_to_choose_by_is_refused(router: str, more: dict[str, Any], must: str) -> None:
    with pytest.raises(SpecError, match=must):
        parallel(router, **more)


def test_prefix_aware_routing_finds_more_of_what_was_said() -> None:
    """Of three replicas that know three system prompts, each needs to compute one, not all."""
    scenario = replace(NAMED["shared prefix"], num_requests=60, texts=3, gap_s=0.1)
    cached = {router: int(run(scenario, router).records.column("cached_tokens").sum()) for router in ROUTERS}
    assert cached["prefix_aware"] > max(cached["least_outstanding"], cached["round_robin"])


# -------------------------------------------------------------------------------------------------- several kinds of devices

MIXED = {"parallel": {"further_replicas": ({"hardware": "l40s", "count": 2},)}}


def served(scenario: Any) -> ServingResult:
    return Server.of(scenario).run(scenario.requests())


def test_no_more_acceptance_paths_are_made_ahead_for_several_replicas_than_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made for requests in the order in which replicas take them, so that memory does not grow with the load."""
    monkeypatch.setattr(paths, "KEPT", 0)
    ahead: list[int] = []
    found = paths.Paths.of

    def of(self: paths.Paths, request: Request) -> AcceptancePath:
        path = found(self, request)
        ahead.append(len(self._ahead))
        return path

    monkeypatch.setattr(paths.Paths, "of", of)
    workload = {**PARALLEL["workload"], "num_requests": 300}
    drafting = {"method": "eagle3", "drafter": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 2}
    scenario = parallel(workload=workload, speculation=drafting, acceptance={"acceptance_rate": 0.7})
    Server.of(scenario, Tree.chain(2)).run(scenario.requests())
    assert len(ahead) == 300
    assert 0 < max(ahead) < paths.TOGETHER


def test_replicas_on_other_devices_serve_as_they_would_alone() -> None:
    """Dealt in turn over one H100 and two L40S, each does what it does on its own."""
    scenario, result = parallel(**MIXED), served(parallel(**MIXED))
    requests = scenario.requests()
    alone: list[RequestRecord] = []
    for hardware, theirs in zip(("h100_sxm", "l40s", "l40s"), in_turn(requests, 3), strict=True):
        alone += Server.of(parallel(hardware=hardware, parallel={})).run(tuple(theirs)).records
    assert repr(list(result.records)) == repr(sorted(alone, key=lambda record: record.request_id))
    assert scenario.devices == "NVIDIA H100 SXM and 2 × NVIDIA L40S"


def test_a_router_that_looks_sends_the_slow_devices_less() -> None:
    mixed = {**MIXED["parallel"], "router": "least_outstanding"}
    turns, looking = served(parallel(**MIXED)), served(parallel(parallel=mixed))
    assert turns.replica_of_request is not None
    assert looking.replica_of_request is not None
    assert (looking.replica_of_request == 0).sum() > (turns.replica_of_request == 0).sum() == 20
    assert looking.records.e2e_latency_s.mean() < turns.records.e2e_latency_s.mean()


def test_every_key_of_further_replicas_binds() -> None:
    kinds = [("l40s", 1), ("l40s", 2), ("a100_sxm_80gb", 1)]
    changes = [{"parallel": {"further_replicas": ({"hardware": name, "count": count},)}} for name, count in kinds]
    assert len({repr(list(served(parallel(**change)).records)) for change in ({"parallel": {}}, *changes)}) == 4


def test_a_saturated_deployment_of_two_kinds_is_both_of_them_full() -> None:
    requests = requests_of(parallel().file.workload, 0)
    both = saturation_of(Server.of(parallel(**MIXED)), requests).per_s
    fast, slow = (saturation_of(Server.of(parallel(hardware=name, parallel={})), requests).per_s for name in ("h100_sxm", "l40s"))
    assert both == pytest.approx(fast + 2 * slow)
    assert slow < fast


def test_devices_that_cannot_hold_a_replica_are_refused() -> None:
    small = {"further_replicas": ({"hardware": "h200_sxm"}, {"hardware": "rtx_4090"})}
    with pytest.raises(SpecError, match=r"must hold a replica of .*70B.* \(got '.*4090'\)"):
        parallel(target={"model": "meta-llama/Llama-3.1-70B-Instruct", "weights": "fp8"}, hardware="h200_sxm", parallel=small)
    with pytest.raises(SpecError, match="did you mean l40"):
        parallel(parallel={"further_replicas": ({"hardware": "l40z"},)})


def test_measured_runs_are_of_one_kind_of_device() -> None:
    for key, stated in (("further_replicas", MIXED["parallel"]["further_replicas"]), ("disaggregated_prefill", {})):
        asked = parallel(parallel={key: stated})
        for question in (lambda: check_server([], asked), lambda: fit_engine([], asked)):  # noqa: B023
            with pytest.raises(SpecError, match=f"{key}: must be left out: .* holds measured runs of one engine"):
                question()


LEVEL = {"service_level": {"tpot_p99_s": 0.05}}


def test_capacity_of_several_kinds_is_between_that_of_each() -> None:
    """One H100 and two L40S, by load, carry more than the H100 and less than three of it; devices and power are counted by kind.
    The level leaves the slower ones room: where it does not, they may hold all back to less than the H100 carries alone."""
    mixed, level = {**MIXED["parallel"], "router": "least_outstanding"}, {"service_level": {"tpot_p99_s": 0.1}}
    asked = {"both": parallel(parallel=mixed, **level), "one": parallel(parallel={}, **level)}
    asked["three"] = parallel(parallel={"data_parallel_size": 3, "router": "least_outstanding"}, **level)
    found = {name: capacity(each, repetitions=1).plain for name, each in asked.items()}
    rates = {name: row.rate_per_s or 0.0 for name, row in found.items()}
    means = {name: row.analytic.rate_per_s for name, row in found.items() if row.analytic is not None}
    for each in (rates, means):
        assert each["one"] < each["both"] < each["three"]
    assert [found[name].devices for name in asked] == [3, 1, 3]
    energy = {name: row.fleet.energy_per_token_j for name, row in found.items() if row.fleet is not None}
    assert all(energy.values())


def test_alternatives_are_compared_on_several_kinds_of_devices() -> None:
    drafting = {"speculation": {"method": "ngram", "num_speculative_tokens": 2}, "acceptance": {"acceptance_rate": 0.6}}
    few = {**PARALLEL["workload"], "num_requests": 30}
    found = {
        name: compare(parallel(parallel=each, workload=few, **drafting), "quantize", ["own", "fp8"])
        for name, each in (("mixed", MIXED["parallel"]), ("alone", {}))
    }
    for answer in found.values():
        assert [row.problem for row in answer.rows] == ["", ""]
        wide, narrow = answer.rows
        assert wide.plain_tpot_s is not None
        assert narrow.plain_tpot_s is not None
        assert narrow.plain_tpot_s < wide.plain_tpot_s
    assert found["mixed"].base_tpot_s != found["alone"].base_tpot_s


def test_the_steady_batch_is_that_of_the_devices_that_are_priced() -> None:
    """Of three replicas each takes a third of the load, whatever the other two run on."""
    alike, mixed = (steady_batch(parallel(parallel=each)) for each in ({"data_parallel_size": 3}, MIXED["parallel"]))
    assert 3 * mixed == alike
