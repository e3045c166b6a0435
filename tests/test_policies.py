"""Policies that choose γ while a server runs: both engines agree, each does what it says, and the clever ones pay off."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import yaml

from simulator import explain, theory
from simulator.draft_policy import AcceptanceWindow, GoodputOptimal
from simulator.scenario import scenario_of
from simulator.serving import serve
from simulator.serving.policies import DraftPolicy, GoodputPolicy, WindowPolicy, pooled_acceptance_rate
from simulator.simulation import Server, SimulationResult, simulate
from simulator.spec import SpecError, parse_yaml
from simulator.speculation import Speculation
from tests.test_laws import AffinePricer, IndependentPath
from tests.test_laws import Scenario as Load
from tests.test_simulation import BASE, scenario, times_of, workload

POLICIES = {
    "by_batch": {"kind": "by_batch", "table": [[1, 3, 3], [4, 8, 1]], "switch_s": 0.002},
    "off_above": {"kind": "off_above", "batch": 3, "switch_s": 0.001},
    "by_context": {"kind": "by_context", "table": [[0, 440, 3], [441, 100000, 1]], "look_every": 3},
    "acceptance_window": {"kind": "acceptance_window", "window": 60, "least": 2.6, "retry_rounds": 40, "look_every": 7},
    "goodput_optimal": {"kind": "goodput_optimal", "half_life": 100, "look_every": 5, "retry_rounds": 30, "switch_s": 0.0005},
}


def with_policy(policy: dict | list, **changes):
    """BASE under a policy; `speculation` may be changed too."""
    given = {**BASE["speculation"], **changes.pop("speculation", {}), "policy": policy}
    stated = policy if isinstance(policy, list) else [policy]
    if all("table" in each for each in stated):
        given.pop("num_speculative_tokens", None)
    return scenario(speculation=given, **changes)


def served(policy: dict, **changes) -> SimulationResult:
    return simulate(with_policy(policy, **changes))


# ---------------------------------------------------------------------------------------------------- both engines agree

LOADS = {
    "open loop": {},
    "closed loop": {"workload": workload("closed_loop", users=9, requests=60)},
    "full cache": {
        "hardware": {"base": "h100_sxm", "memory_bytes": 24.2e9},
        "workload": workload("closed_loop", users=24, requests=60, prompt={"distribution": "uniform", "low": 300, "high": 900}),
    },
    "prompts first": {"engine": "sglang"},
    "no proposal": {
        "speculation": {"method": "ngram", "drafter": None},
        "acceptance": {"acceptance_rate": 0.5, "proposal_rate": 0.4},
    },
    "ranks": {"parallel": {"data_parallel_size": 2}},
}


def test_drafting_again_takes_blocks_from_nobody_where_whole_requests_were_admitted():
    spec = AcceptanceWindow(window=20, least=1.9, retry_rounds=8, look_every=4)
    gammas: set[int] = set()
    for seed in range(12):
        load = Load(
            seed, num_requests=24, longest_output=60, gap_s=0.01, num_speculative_tokens=5, acceptance_rate=0.3, total_blocks=60,
            max_num_seqs=64, max_num_batched_tokens=512, max_model_len=1000, admission="whole_request",
        )  # fmt: skip
        paths = partial(IndependentPath, seed=seed, acceptance_rate=0.3)
        result = serve(load.requests(), load.rules(), AffinePricer(), paths, WindowPolicy(spec, 5))
        assert not result.steps.column("preempted").any()
        gammas |= set((result.steps.column("drafted") // np.maximum(result.steps.column("decode_sequences"), 1)).tolist())
    assert {0, 5} <= gammas


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("kind", POLICIES)
def test_both_engines_choose_alike_to_the_last_bit(kind, load):
    asked = with_policy(
        POLICIES[kind], **{name: dict(section) if isinstance(section, dict) else section for name, section in LOADS[load].items()}
    )
    shape, policy = asked.variants[0]
    law = asked.acceptance(shape.steps).law
    fast, readable = (Server(asked, asked.deployed(shape), shape, law, slow, policy) for slow in (False, True))
    requests = asked.requests()
    one, other = fast.run(requests), readable.run(requests)
    for name in ("request_id", "first_token_s", "finish_s", "rounds", "draft_rounds", "drafted", "accepted", "preemptions"):
        assert (one.records.column(name) == other.records.column(name)).all(), name
    for name in ("start_s", "seconds", "decode_sequences", "context_tokens", "drafted", "accepted", "emitted", "used_blocks"):
        assert (one.steps.column(name) == other.steps.column(name)).all(), name
    assert one.term_seconds == other.term_seconds
    # Rounds in which sequences differ in their drafts are taken one by one.
    assert one.statistics.wakes < other.statistics.wakes or load in ("full cache", "no proposal")


def test_a_policy_is_the_same_whether_told_round_by_round_or_many_at_once():
    def fresh() -> list:
        spec = GoodputOptimal(look_every=8, half_life=50)
        window = AcceptanceWindow(least=2.0, window=30, look_every=8)
        return [GoodputPolicy(spec, 4, lambda gamma, running, _: 1 + 0.05 * gamma * running), WindowPolicy(window, 4)]

    for one, many in zip(fresh(), fresh(), strict=True):
        for chunk in ((4, 4), (8,), (3, 1, 4), (8,)):
            for rounds in chunk:
                gamma = many(6)
                assert gamma == one(6)
                many.done(rounds, gamma, 6 * rounds, 6000 * rounds, 6 * rounds if gamma else 0, 3 * rounds * bool(gamma))
                for _ in range(rounds):
                    one.done(1, gamma, 6, 6000, 6 if gamma else 0, 3 * bool(gamma))


# -------------------------------------------------------------------------------------------------- each does what it says


def test_off_above_a_batch_is_the_table_that_says_so():
    table = {"kind": "by_batch", "table": [[1, 3, 3]]}
    assert times_of(with_policy(table)) == times_of(with_policy({"kind": "off_above", "batch": 3}))
    top = {key: value for key, value in BASE["speculation"].items() if key != "num_speculative_tokens"}
    assert times_of(with_policy(table)) == times_of(scenario(speculation={**top, "by_batch": table["table"]}))


def test_a_fixed_policy_is_no_policy():
    assert times_of(with_policy({"kind": "fixed"})) == times_of(scenario())


def test_a_window_switches_off_what_is_accepted_too_little_and_leaves_the_rest_on():
    window = {"kind": "acceptance_window", "window": 60, "least": 2.0}
    poor, good = (served(window, acceptance={"acceptance_rate": rate}).comparisons[0] for rate in (0.02, 0.8))
    assert good.variant.off_share == 0
    assert 0.7 < poor.variant.off_share < 1
    # Off for good, it costs no more than the draft's upkeep.
    always = simulate(scenario(acceptance={"acceptance_rate": 0.02})).comparisons[0]
    assert always.tpot.value < poor.tpot.value < 1
    again = served({**window, "retry_rounds": 50}, acceptance={"acceptance_rate": 0.02}).comparisons[0]
    assert again.variant.off_share < poor.variant.off_share


def test_a_resting_drafter_pays_its_upkeep_and_nothing_else():
    asked = with_policy(
        {"kind": "acceptance_window", "window": 10, "least": 4.0}, workload=workload("closed_loop", users=4, requests=24)
    )
    variant = simulate(asked).comparisons[0].variant
    assert variant.off_share > 0.9
    terms = variant.result.term_seconds
    off = variant.result.steps.column("drafted") == 0
    assert variant.result.steps.term("draft_first_pass")[off].sum() == 0
    assert variant.result.steps.term("draft_cache_upkeep")[off & (variant.result.steps.column("decode_sequences") > 0)].min() > 0
    assert terms["draft_cache_upkeep"] < 0.2 * sum(terms.values())


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize(
    ("speculation", "taxed"),
    [
        ({"method": "draft_model", "drafter": "meta-llama/Llama-3.2-1B-Instruct"}, {"draft_cache_upkeep"}),
        ({}, {"draft_cache_upkeep"}),
        ({"method": "ngram", "drafter": None}, {"unoverlapped_host"}),
    ],
    ids=["draft_model", "eagle3", "ngram"],
)
def test_a_policy_that_never_drafts_is_plain_serving_and_the_tax_that_its_steps_name(engine, speculation, taxed):
    """Users in step, so that both serve the same batches: every other term of a decode step is that of a plain one."""
    given = {key: value for key, value in {**BASE["speculation"], **speculation}.items() if value is not None}
    together = workload("closed_loop", users=8, requests=24)
    asked = scenario(engine=engine, speculation={**given, "policy": {"kind": "off_above", "batch": 1}}, workload=together)
    result = simulate(asked)
    variant = result.comparisons[0].variant
    assert variant.off_share == 1
    assert variant.summary.acceptance.mean_acceptance_length == 1

    def per_step(steps) -> dict[str, float]:
        """Mean seconds of the terms of a step that only decodes."""
        only = (steps.column("decode_sequences") > 0) & (steps.column("prefill_tokens") == 0)
        return {term: float(steps.term(term)[only].mean()) for term in steps.term_names}

    plain, off = per_step(result.plain.result.steps), per_step(variant.result.steps)
    extra = {term: seconds - plain.get(term, 0.0) for term, seconds in off.items()}
    named = {term for term, seconds in extra.items() if seconds > 1e-9}
    assert named == (taxed if engine == "vllm" else taxed - {"unoverlapped_host"})  # the others overlap the host as before
    assert min(extra.values()) > -1e-9
    tax_s = variant.summary.tpot_s.mean - result.plain.summary.tpot_s.mean
    assert tax_s == pytest.approx(sum(extra.values()), rel=1e-6, abs=1e-9)


def test_by_context_follows_the_mean_context():
    long = workload("closed_loop", users=4, requests=12, prompt=200, output=600)
    steps = (
        served({"kind": "by_context", "table": [[0, 500, 3], [501, 9999, 1]], "look_every": 4}, workload=long)
        .comparisons[0]
        .variant.result.steps
    )
    decode = steps.column("decode_sequences")
    settled = (decode > 0) & (np.roll(decode, 8) > 0)
    context = np.divide(steps.column("context_tokens"), np.maximum(decode, 1))
    drafts = np.divide(steps.column("drafted"), np.maximum(decode, 1))
    assert (drafts[settled & (context < 450)] > 2.5).mean() > 0.9
    assert (drafts[settled & (context > 560)] <= 1).mean() > 0.9


def test_every_change_of_gamma_costs_what_is_stated():
    variant = served({"kind": "by_batch", "table": [[1, 3, 3], [4, 99, 1]], "switch_s": 0.005}).comparisons[0].variant
    steps = variant.result.steps
    decoding = steps.column("decode_sequences") > 0
    drafts = (steps.column("drafted") / np.maximum(steps.column("decode_sequences"), 1))[decoding]
    # The last drafts of a sequence at the model's length are none here: drafts a sequence are γ.
    changes = int((np.diff(drafts) != 0).sum())
    assert changes > 5
    assert variant.result.term_seconds["draft_switch"] == pytest.approx(0.005 * changes)


# ------------------------------------------------------------------------------------------------------ the clever one pays


@pytest.mark.parametrize(("users", "rate"), [(1, 0.8), (1, 0.4), (48, 0.8), (200, 0.6), (200, 0.1)])
def test_goodput_optimal_is_never_far_from_the_best_fixed_gamma(users, rate):
    """At constant load and acceptance nothing can beat the best γ, or none, by much; and the policy has to find it."""
    load = workload("closed_loop", users=users, requests=max(3 * users, 12), prompt=200, output=150)
    fixed = simulate(
        scenario(
            acceptance={"acceptance_rate": rate},
            workload=load,
            speculation={**BASE["speculation"], "num_speculative_tokens": [1, 2, 3, 5]},
        )
    )
    # Off is not free: the head's cache is kept, and takes memory.
    resting = served({"kind": "by_batch", "table": [[9998, 9999, 5]]}, acceptance={"acceptance_rate": rate}, workload=load)
    best = max(comparison.output_tokens for comparison in (*fixed.comparisons, *resting.comparisons))
    found = served(
        {"kind": "goodput_optimal"},
        acceptance={"acceptance_rate": rate},
        workload=load,
        speculation={"num_speculative_tokens": 5},
    ).comparisons[0]
    assert found.output_tokens > 0.95 * best
    if rate == 0.1:
        assert found.variant.off_share > 0.7


def test_running_acceptance_is_the_rate_that_explains_all_rounds():
    for rate in (0.3, 0.62, 0.9):
        weights = {
            gamma: (100.0 * gamma, 100.0 * gamma * (theory.mean_acceptance_length(rate, gamma) - 1)) for gamma in (1, 2, 5)
        }
        assert pooled_acceptance_rate(weights) == pytest.approx(rate, abs=1e-9)


def test_several_policies_are_compared_in_one_run():
    result = simulate(
        with_policy(
            [{"kind": "fixed"}, POLICIES["by_batch"], POLICIES["goodput_optimal"]], speculation={"num_speculative_tokens": [1, 3]}
        )
    )
    assert [c.variant.label for c in result.comparisons] == ["γ = 1", "γ = 3", "γ by batch, up to 3", "goodput-optimal, γ ≤ 3"]
    finished = [c.variant.result.records.column("finish_s").tolist() for c in result.comparisons]
    assert finished[2] not in (finished[0], finished[1])


def test_rounds_past_the_largest_graph_are_counted():
    busy = workload("closed_loop", users=200, requests=220, prompt=50, output=40)
    small, large = (
        simulate(scenario(workload=busy, speculation={**BASE["speculation"], "num_speculative_tokens": gamma}))
        .comparisons[0]
        .variant.graph_share
        for gamma in (1, 5)
    )
    assert small > large + 0.3  # 200 × 2 rows fit the ladder of 512, 200 × 6 do not


# ----------------------------------------------------------------------------------------------------------- every key binds

BINDING = {
    "switch_s": ("by_batch", {"switch_s": 0.004}),
    "table": ("by_batch", {"table": [[1, 2, 3]]}),
    "batch": ("off_above", {"batch": 1}),
    "by_context.table": ("by_context", {"table": [[0, 450, 3]]}),
    "by_context.look_every": ("by_context", {"look_every": 40}),
    "window": ("acceptance_window", {"window": 400}),
    "least": ("acceptance_window", {"least": 1.0}),
    "retry_rounds": ("acceptance_window", {"retry_rounds": None}),
    "acceptance_window.look_every": ("acceptance_window", {"look_every": 31}),
    "half_life": ("goodput_optimal", {"half_life": 5}),
    "goodput_optimal.look_every": ("goodput_optimal", {"look_every": 60}),
}


@pytest.mark.parametrize("key", BINDING)
def test_every_key_moves_the_result(key):
    kind, change = BINDING[key]
    busy = workload("poisson", rate_per_s=25.0, requests=150)
    before, after = (
        times_of(
            with_policy(
                {k: v for k, v in {**POLICIES[kind], **extra}.items() if v is not None},
                workload=busy,
                speculation={"num_speculative_tokens": 6},
            )
        )
        for extra in ({}, change)
    )
    assert before != after


def test_how_long_a_resting_goodput_policy_waits_moves_the_result():
    busy = workload("closed_loop", users=60, requests=120)
    before, after = (
        times_of(
            with_policy(
                {**POLICIES["goodput_optimal"], "retry_rounds": rounds}, workload=busy, acceptance={"acceptance_rate": 0.05}
            )
        )
        for rounds in (20, 100_000)
    )
    assert before != after


@pytest.mark.parametrize(
    ("speculation", "words"),
    [
        ("{policy: {kind: clever}, num_speculative_tokens: 3}", "goodput_optimal"),
        ("{policy: {kind: fixed, batch: 3}, num_speculative_tokens: 3}", "batch"),
        ("{policy: {kind: off_above}, num_speculative_tokens: 3}", "batch"),
        ("{policy: {kind: off_above, batch: 8}}", "exactly one of num_speculative_tokens and by_batch"),
        ("{policy: {kind: by_batch, table: [[1, 8, 0]]}}", "must draft somewhere"),
        ("{policy: {kind: by_context, table: [[0, 80, 3], [80, 90, 1]]}}", "begins before context 80 ends"),
        ("{policy: {kind: by_batch, table: [[1, 8, 3]]}, num_speculative_tokens: 3}", "num_speculative_tokens must be left out"),
        ("{policy: {kind: fixed}, by_batch: [[1, 8, 3]]}", "no policy beside by_batch"),
        ("{policy: [{kind: fixed}, {kind: fixed}], num_speculative_tokens: 3}", "compare each policy once"),
        ("{policy: {kind: goodput_optimal}, tree: nodes=8}", "num_speculative_tokens must be given"),
        ("{policy: {kind: acceptance_window, least: 0.5}, num_speculative_tokens: 3}", "least: must be at least 1"),
        ("{policy: []}", "policy"),
    ],
)
def test_wrong_policies_are_told(speculation, words):
    data = {**BASE, "speculation": {"method": "eagle3", "drafter": BASE["speculation"]["drafter"], **yaml.safe_load(speculation)}}
    document = parse_yaml(yaml.safe_dump(data), "s.yaml")
    with pytest.raises(SpecError, match=words):
        scenario_of(document)


def test_one_policy_needs_no_list():
    alone, listed = (
        Speculation(method="ngram", num_speculative_tokens=3, policy=p).policies
        for p in ({"kind": "fixed"}, ({"kind": "fixed"},))
    )
    assert alone == listed


def test_a_plain_function_is_no_policy_that_looks():
    assert DraftPolicy(lambda running: running).looks_in == float("inf")


def test_r_and_the_break_even_are_those_of_rounds_that_draft():
    """Steps in which a policy is off are none of them: a table that drafts at few batches has the R and α* of its γ."""
    rare = served({"kind": "by_batch", "table": [[1, 1, 3], [9998, 9999, 5]]}).comparisons[0]
    law = simulate(scenario(speculation={**BASE["speculation"], "num_speculative_tokens": 5})).comparisons[0]
    assert rare.variant.off_share > 0.5
    assert rare.r.value == pytest.approx(law.r.value, rel=0.02)
    assert rare.break_even_acceptance_rate == pytest.approx(law.break_even_acceptance_rate, rel=0.05)
    assert rare.mean_acceptance_length > 1.5


def test_explain_is_asked_at_what_the_policy_drafts():
    drafts = {**BASE["speculation"], "by_batch": [[1, 2, 5], [3, 64, 2]]}
    del drafts["num_speculative_tokens"]
    asked = scenario(speculation=drafts)
    assert [explain(asked, batch=batch).num_speculative_tokens for batch in (1, 8)] == [5, 2]
    resting = explain(asked, batch=65)
    assert resting.num_speculative_tokens == 5
    assert any("drafts nothing at the mean batch of 65" in warning for warning in resting.warnings)


@pytest.mark.parametrize(
    ("engine", "policy", "warned"),
    [
        ("trtllm", {"kind": "off_above", "batch": 8}, True),
        ("trtllm", {"kind": "off_above", "batch": 256}, False),  # as many as may run
        ("trtllm", {"kind": "by_batch", "table": [[1, 8, 3], [9, 256, 1]]}, False),
        ("trtllm", {"kind": "by_batch", "table": [[1, 8, 3]]}, True),
        ("trtllm", {"kind": "goodput_optimal"}, True),
        ("trtllm", {"kind": "fixed"}, False),
        ("vllm", {"kind": "off_above", "batch": 8}, False),
    ],
)
def test_pauses_of_a_drafter_that_misses_their_tokens_are_warned_of(engine, policy, warned):
    said = [
        text for text in with_policy(policy, engine=engine).warnings if "does not see the tokens of steps without drafts" in text
    ]
    assert bool(said) == warned


def test_a_drafter_without_a_cache_misses_nothing():
    heads = {"method": "medusa", "drafter": None, "num_speculative_tokens": 3}
    asked = with_policy({"kind": "off_above", "batch": 8}, engine="trtllm", speculation=heads)
    assert not any("does not see" in text for text in asked.warnings)


def test_switching_on_costs_nothing_because_resting_kept_the_cache():
    """A long rest and none pay the same first round: what is owed was paid by the steps in between."""
    asked = with_policy({"kind": "by_batch", "table": [[1, 3, 3]]})
    steps = simulate(asked).comparisons[0].variant.result.steps
    drafting, decoding = steps.column("drafted") > 0, steps.column("decode_sequences") > 0
    upkeep = steps.term("draft_cache_upkeep")
    assert (upkeep[decoding & ~drafting] > 0).all()
    assert (upkeep[drafting] == 0).all()
    assert (decoding & ~drafting).any()
    assert drafting.any()
