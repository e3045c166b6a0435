"""Laws that every simulated run obeys, over random scenarios: scarce blocks, slots and budgets, bursts, closed loops.

A failure prints the scenario; one line shows it again:  python tests/test_laws.py "Scenario(seed=3, max_num_seqs=1)"
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, note, settings
from hypothesis import strategies as st

from simulator.cost.alike import AlikeRounds
from simulator.cost.tape import Tape, added
from simulator.serving import BatchingRules, RequestRecord, ServingResult, no_lookahead, one_slot_per_draft, serve
from simulator.theory import md1_mean_wait_s, mean_acceptance_length
from simulator.workload import Request


@dataclass(frozen=True)
class Scenario:
    """All that decides a run. `gap_s` 0 is one burst; `on_grid` puts arrivals on instants at which steps end."""

    seed: int = 1
    num_requests: int = 12
    longest_prompt: int = 40
    longest_output: int = 24
    gap_s: float = 0.05
    on_grid: bool = False
    users: int = 0
    think_time_s: float = 0.0
    num_speculative_tokens: int = 3
    speculate_up_to: int = 64
    acceptance_rate: float = 0.6
    proposal_rate: float = 1.0
    has_lookahead: bool = True
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 32
    max_model_len: int = 60
    total_blocks: int = 40
    block_tokens: int = 4
    prefill_first: bool = False
    chunked_prefill: bool = True
    watermark_blocks: int = 0
    admission: str = "first_chunk"

    def rules(self) -> BatchingRules:
        named = {rule.name for rule in fields(BatchingRules)} & vars(self).keys()
        limits = {name: getattr(self, name) for name in named}
        return BatchingRules(**limits, lookahead_slots=one_slot_per_draft if self.has_lookahead else no_lookahead)

    def requests(self) -> tuple[Request, ...]:
        rng = np.random.default_rng([self.seed, *b"requests"])
        arrival_s = np.cumsum(rng.exponential(self.gap_s, self.num_requests)) if self.gap_s else np.zeros(self.num_requests)
        if self.on_grid:
            arrival_s = np.floor(arrival_s / STEP_S) * STEP_S
        prompts = rng.integers(1, self.longest_prompt + 1, self.num_requests)
        outputs = rng.integers(1, self.longest_output + 1, self.num_requests)
        return tuple(Request(i, float(arrival_s[i]), int(prompts[i]), int(outputs[i])) for i in range(self.num_requests))

    def drafts(self, running: int) -> int:
        return self.num_speculative_tokens if running <= self.speculate_up_to else 0


STEP_S = 2.0**-6  # powers of two: sums of step times are exact, so arrivals do fall on ends of steps


class Cost(NamedTuple):
    seconds: float
    terms: tuple[tuple[str, float], ...]


@dataclass
class AffinePricer:
    """Prices by rows and prompt tokens, and keeps what it was asked. Fails rather than price a run that does not end.

    With a `context_token_s` the price also grows with the contexts, up to a window, and with the longest of them.
    """

    decode_row_s: float = STEP_S / 8
    prefill_token_s: float = STEP_S / 16
    context_token_s: float = 0.0
    window: int = 30
    asked: list[tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...], int]] = field(default_factory=list)

    def price(self, decode: Sequence[tuple[int, int]], prefill: Sequence[tuple[int, int]], prompts_finished: int) -> Cost:
        assert len(self.asked) < 100_000, "the run makes no progress"
        self.asked.append((tuple(decode), tuple(prefill), prompts_finished))
        contexts = [context for context, _ in decode]
        sums = sum(contexts), sum(min(context, self.window) for context in contexts), max(contexts, default=0)
        return self._price(sum(1 + drafts for _, drafts in decode), *sums, prefill)

    def alike(self, sequences: int, drafted: int) -> AlikeRounds:
        tape = Tape((1.0, 1.0, 1.0))

        def prompts(*asked: Any) -> list[tuple[str, float]]:
            return self._prompts(asked[-2])

        return AlikeRounds(tape, self._rounds(sequences * (1 + drafted), *tape.inputs), 0.0, prompts)

    def _price(self, rows: int, context: Any, windowed: Any, longest: Any, prefill: Sequence[tuple[int, int]]) -> Cost:
        terms = self._rounds(rows, context, windowed, longest) + (self._prompts(prefill) if prefill else [])
        return Cost(added(seconds for _, seconds in terms), tuple(terms))

    def _rounds(self, rows: int, context: Any, windowed: Any, longest: Any) -> list[tuple[str, Any]]:
        terms = [("host", STEP_S), ("decode", rows * self.decode_row_s)]
        if self.context_token_s:
            terms += [
                ("attention", (context + 2 * windowed) * self.context_token_s),
                ("walk", longest * self.context_token_s / 3),
            ]
        return terms

    def _prompts(self, prefill: Sequence[tuple[int, int]]) -> list[tuple[str, float]]:
        return [("prefill", sum(new for new, _ in prefill) * self.prefill_token_s)]


class IndependentPath:
    """Every draft is accepted with the same probability; flags belong to positions. Keeps the rounds it was asked for."""

    def __init__(self, request: Request, seed: int, acceptance_rate: float, proposal_rate: float = 1.0):
        rng = np.random.default_rng([seed, *b"acceptance", request.request_id])
        self.flags = (rng.random(request.output_tokens + 32) < acceptance_rate).tolist()
        self.hits = (rng.random(request.output_tokens + 32) < proposal_rate).tolist()
        self.rounds: list[tuple[int, int, int]] = []

    def accepted(self, position: int, drafted: int) -> int:
        accepted = 0
        while accepted < drafted and self.flags[position + accepted]:
            accepted += 1
        self.rounds.append((position, drafted, accepted))
        return accepted

    def proposed(self, position: int, num_speculative_tokens: int) -> int:
        return num_speculative_tokens if self.hits[position] else 0


@dataclass(frozen=True)
class Run:
    scenario: Scenario
    requests: tuple[Request, ...]
    result: ServingResult
    pricer: AffinePricer
    paths: dict[int, IndependentPath]

    @property
    def served(self) -> list[RequestRecord]:
        return [record for record in self.result.records if not record.rejected]


def simulate(scenario: Scenario, readable: bool = True, context_token_s: float = 0.0) -> Run:
    """By the readable engine, which the laws are about; the other is held to it."""
    requests, pricer = scenario.requests(), AffinePricer(context_token_s=context_token_s)
    paths: dict[int, IndependentPath] = {}

    def path(request: Request) -> IndependentPath:
        paths[request.request_id] = IndependentPath(request, scenario.seed, scenario.acceptance_rate, scenario.proposal_rate)
        return paths[request.request_id]

    closed: dict[str, Any] = {"users": scenario.users or None, "think_time_s": scenario.think_time_s}
    result = serve(requests, scenario.rules(), pricer, path, scenario.drafts, **closed, readable=readable)
    return Run(scenario, requests, result, pricer, paths)


remembered = lru_cache(maxsize=1024)(simulate)

OPTIONS: dict[str, list[Any]] = {
    "num_requests": [1, 10, 20, 40],
    "longest_prompt": [1, 10, 40],
    "longest_output": [1, 6, 24, 60, 60],
    "gap_s": [0.0, 0.002, 0.02, 0.5],
    "on_grid": [False, True],
    "users": [0, 0, 0, 1, 8, 50],
    "think_time_s": [0.0, STEP_S, 0.3],
    "num_speculative_tokens": [0, 1, 2, 3, 5],
    "speculate_up_to": [3, 64, 64],
    "acceptance_rate": [0.0, 0.6, 0.9, 1.0],
    "proposal_rate": [0.0, 0.5, 1.0, 1.0, 1.0],
    "has_lookahead": [False, True],
    "max_num_seqs": [1, 2, 8, 64, 64],
    "max_num_batched_tokens": [1, 4, 7, 32, 100, 512],
    "max_model_len": [20, 60, 1000],
    "total_blocks": [8, 12, 16, 25, 40, 1000],
    "block_tokens": [1, 4, 4, 8, 16],
    "prefill_first": [False, True],
    "chunked_prefill": [False, True, True],
    "watermark_blocks": [0, 0, 5],
    "admission": ["first_chunk", "whole_prompt", "whole_request"],
}


def drawn(seed: int) -> Scenario:
    """A scenario drawn evenly from the options: drawn one by one, hypothesis would seldom make blocks scarce."""
    rng = np.random.default_rng([seed, *b"scenario"])
    return Scenario(seed, **{name: options[rng.integers(len(options))] for name, options in OPTIONS.items()})


def roomy(seed: int) -> Scenario:
    """A scenario of long outputs with budget to spare, in which spans of many rounds are cut, preempted and booked anew."""
    rng = np.random.default_rng([seed, *b"roomy"])
    blocks, drafts_up_to = int(rng.choice([40, 100, 300, 2000])), int(rng.choice([2, 5, 64]))
    return replace(
        drawn(seed), longest_output=200, max_model_len=1000, max_num_batched_tokens=512, total_blocks=blocks,
        speculate_up_to=drafts_up_to, gap_s=float(rng.choice([0.02, 0.2, 0.5])), proposal_rate=1.0,
    )  # fmt: skip


seeds = st.integers(0, 2**32 - 1)
scenarios = seeds.map(drawn)

SCARCE_BLOCKS = Scenario(total_blocks=15, gap_s=0.0, num_requests=20, max_num_batched_tokens=512)
SCARCE_SLOTS = Scenario(max_num_seqs=2, gap_s=0.0)
BUDGET_BELOW_DRAFTS = Scenario(max_num_batched_tokens=3, num_speculative_tokens=5, acceptance_rate=0.9)
PROMPTS_FIRST_SCARCE = Scenario(total_blocks=15, gap_s=0.002, num_requests=20, prefill_first=True, max_num_batched_tokens=16)
RESERVED = Scenario(total_blocks=25, gap_s=0.0, num_requests=30, max_num_batched_tokens=16, admission="whole_prompt")
WHOLE_PROMPTS = Scenario(chunked_prefill=False, max_num_batched_tokens=60, gap_s=0.002)
CLOSED_LOOP = Scenario(users=4, num_requests=20, total_blocks=20)
TIES = Scenario(on_grid=True, gap_s=0.02, num_requests=150, num_speculative_tokens=0)


# `pytest --hypothesis-profile=thorough` tries 10,000 scenarios for every law.
quickly = settings(
    derandomize=True, deadline=None, database=None, max_examples=max(300, settings.default.max_examples)
)  # fmt: skip


def law(check: Callable[[Run], None]) -> Callable[[], None]:
    """Makes a test of a law: the named scenarios, then random ones."""

    @quickly
    @given(scenario=scenarios)
    @example(scenario=SCARCE_BLOCKS)
    @example(scenario=SCARCE_SLOTS)
    @example(scenario=BUDGET_BELOW_DRAFTS)
    @example(scenario=PROMPTS_FIRST_SCARCE)
    @example(scenario=WHOLE_PROMPTS)
    @example(scenario=RESERVED)
    @example(scenario=CLOSED_LOOP)
    @example(scenario=TIES)
    def test(scenario: Scenario) -> None:
        note(f'show again: python tests/test_laws.py "{scenario!r}"')
        check(remembered(scenario))

    test.__doc__ = check.__doc__
    LAWS.append(check)
    return test


LAWS: list[Callable[[Run], None]] = []


@law
def test_every_request_finishes_or_is_rejected_for_a_reason(run: Run) -> None:
    assert [record.request_id for record in run.result.records] == [request.request_id for request in run.requests]
    rules = run.scenario.rules()
    for record in run.result.records:
        assert record.rejected == rules.refusal(record.prompt_tokens, record.output_tokens)
        assert (record.finish_s is None) == bool(record.rejected)
        if not run.scenario.users:
            assert record.arrival_s == run.requests[record.request_id].arrival_s


@law
def test_tokens_are_conserved(run: Run) -> None:
    steps, served = run.result.steps, run.served
    for record in served:
        assert sum(record.emission_tokens) == record.output_tokens
        assert 0 <= record.accepted <= record.drafted <= run.scenario.num_speculative_tokens * record.draft_rounds
        assert record.draft_rounds <= record.rounds
    assert steps.column("emitted").sum() == sum(record.output_tokens for record in served)
    for name in ("drafted", "accepted"):
        assert steps.column(name).sum() == sum(getattr(record, name) for record in served)
    assert steps.column("decode_sequences").sum() == sum(record.rounds for record in served)
    prompts = sum(record.prompt_tokens for record in served)
    recomputed = steps.column("prefill_tokens").sum() - prompts
    assert recomputed >= 0
    assert recomputed == 0 or steps.column("preempted").sum() > 0


@law
def test_emitted_tokens_equal_accepted_plus_one_per_sequence_round(run: Run) -> None:
    for record in run.served:
        starts = np.cumsum([0, *record.emission_tokens]).tolist()
        burst = dict(zip(starts, record.emission_tokens, strict=False))
        rounds = run.paths[record.request_id].rounds
        for position, _, accepted in rounds:
            assert burst[position] == min(accepted + 1, record.output_tokens - position)
        with_drafts = {position for position, _, _ in rounds}
        assert all(tokens == 1 for position, tokens in burst.items() if position not in with_drafts)
        assert len(rounds) == record.draft_rounds


@law
def test_bursts_are_rounds_and_finished_prompts(run: Run) -> None:
    bursts = sum(len(record.emission_s) for record in run.served)
    assert bursts == sum(record.rounds for record in run.served) + run.result.steps.column("prompts_finished").sum()


@law
def test_kv_cache_is_never_over_committed(run: Run) -> None:
    rules = run.scenario.rules()
    for (decode, prefill, _), step in zip(run.pricer.asked, run.result.steps, strict=True):
        written = [context + 1 + drafts for context, drafts in decode] + [before + new for new, before in prefill]
        assert sum(math.ceil(tokens / rules.block_tokens) for tokens in written) <= step.used_blocks <= rules.total_blocks
        assert max(written) <= rules.max_model_len


@law
def test_no_step_exceeds_its_limits(run: Run) -> None:
    rules = run.scenario.rules()
    for (decode, prefill, prompts_finished), step in zip(run.pricer.asked, run.result.steps, strict=True):
        assert 1 <= step.rows + step.prefill_tokens <= rules.max_num_batched_tokens
        assert len(decode) + len(prefill) <= step.running <= rules.max_num_seqs
        assert all(0 <= drafts <= run.scenario.num_speculative_tokens for _, drafts in decode)
        assert not (rules.prefill_first and decode and prefill)
        assert prompts_finished <= len(prefill)
        assert rules.chunked_prefill is True or all(before == 0 for _, before in prefill)
        assert rules.chunked_prefill is True or prompts_finished == len(prefill)


@law
def test_clock_is_monotone_and_causal(run: Run) -> None:
    steps = run.result.steps
    start_s, end_s = steps.column("start_s"), steps.column("start_s") + steps.column("seconds")
    assert (start_s[1:] >= end_s[:-1]).all()
    ends = set(end_s.tolist())
    for record in run.served:
        assert record.first_scheduled_s is not None
        assert record.arrival_s <= record.first_scheduled_s < record.emission_s[0] == record.first_token_s
        assert record.emission_s[-1] == record.finish_s
        assert (record.itl_s > 0).all()
        assert ends.issuperset(record.emission_s)


@law
def test_terms_sum_to_busy_time(run: Run) -> None:
    assert sum(run.result.term_seconds.values()) == pytest.approx(run.result.steps.column("seconds").sum())


@law
def test_same_seed_gives_the_same_bytes(run: Run) -> None:
    again = simulate(run.scenario).result
    assert repr(again.records) == repr(run.result.records)
    assert repr(list(again.steps)) == repr(list(run.result.steps))
    assert repr(again.term_seconds) == repr(run.result.term_seconds)


@law
def test_arrivals_at_the_start_of_a_step_are_seen_by_it(run: Run) -> None:
    """The step's own counts of running and waiting are the requests that arrived by its start less those that finished."""
    arrival_s = np.sort([record.arrival_s for record in run.served])
    finish_s = np.sort([record.finish_s or 0.0 for record in run.served])
    for step in run.result.steps:
        arrived, finished = np.searchsorted(arrival_s, step.start_s, "right"), np.searchsorted(finish_s, step.start_s, "right")
        assert step.running + step.waiting == arrived - finished


@law
def test_littles_law(run: Run) -> None:
    """Time-average number in the system = λ·W over a complete run; the left side from the steps, the right from the requests."""
    in_system_s = sum((step.running + step.waiting) * step.seconds for step in run.result.steps)
    end_s = run.result.steps.column("start_s") + run.result.steps.column("seconds")
    for record in run.served:
        step = np.searchsorted(end_s, record.arrival_s, "right")
        if run.result.steps[int(step)].start_s < record.arrival_s:
            in_system_s += end_s[step] - record.arrival_s
    assert in_system_s == pytest.approx(sum(record.e2e_latency_s or 0.0 for record in run.served), rel=1e-9)


@law
def test_engine_is_idle_only_when_empty(run: Run) -> None:
    steps = list(run.result.steps)
    arrivals = sorted(record.arrival_s for record in run.served)
    if steps:
        assert steps[0].start_s == arrivals[0]
    for step, following in pairwise(steps):
        end_s = step.start_s + step.seconds
        if following.start_s > end_s:
            assert all((record.finish_s or 0.0) <= end_s for record in run.served if record.arrival_s <= end_s)
            assert following.start_s in arrivals


@law
def test_waiting_work_that_fits_is_admitted(run: Run) -> None:
    rules = run.scenario.rules()
    if rules.admission != "first_chunk":
        return
    longest = max((record.prompt_tokens + record.output_tokens for record in run.served), default=0)
    lookahead = run.scenario.num_speculative_tokens
    for step in run.result.steps:
        left = rules.max_num_batched_tokens - step.rows - step.prefill_tokens
        if rules.prefill_first and step.rows:
            left = rules.max_num_batched_tokens
        if step.waiting and not step.preempted and step.running < rules.max_num_seqs and left > 0:
            chunk = min(longest, left) if rules.chunked_prefill else longest
            blocks = math.ceil((chunk + lookahead) / rules.block_tokens) + rules.watermark_blocks
            no_budget = not rules.chunked_prefill and longest > left
            assert no_budget or blocks > rules.total_blocks - step.used_blocks


@law
def test_nothing_is_preempted_where_whole_requests_are_admitted(run: Run) -> None:
    """With one γ: a policy that drafts more later can ask for more slots than were promised."""
    if run.scenario.admission == "whole_request" and run.scenario.speculate_up_to >= run.scenario.max_num_seqs:
        assert not any(step.preempted for step in run.result.steps)


@law
def test_every_step_moves_the_oldest_sequence_on(run: Run) -> None:
    """So no run takes more steps than it has tokens, however often it preempts; a step of prompts alone may leave it waiting."""
    if not run.scenario.prefill_first:
        assert len(run.result.steps) <= sum(record.prompt_tokens + record.output_tokens for record in run.served)
    assert all(step.rows + step.prefill_tokens >= 1 for step in run.result.steps)


@law
def test_first_scheduling_is_first_come_first_served(run: Run) -> None:
    served = sorted(run.served, key=lambda record: (record.arrival_s, record.request_id))
    scheduled = [record.first_scheduled_s or 0.0 for record in served]
    assert scheduled == sorted(scheduled)


@law
def test_closed_loop_never_has_more_requests_than_users(run: Run) -> None:
    if run.scenario.users:
        assert all(step.running + step.waiting <= run.scenario.users for step in run.result.steps)


@quickly
@given(scenario=scenarios)
def test_no_drafts_equal_no_speculation(scenario: Scenario) -> None:
    """No drafts asked of a drafter, and a drafter that never proposes and needs no slots, both are the plain engine.

    Unless room is set aside for drafts that might come, as where whole requests are admitted.
    """
    if scenario.admission == "whole_request":
        scenario = replace(scenario, admission="whole_prompt")
    plain = remembered(replace(scenario, num_speculative_tokens=0)).result
    other_drafter = replace(scenario, num_speculative_tokens=0, acceptance_rate=0.3, has_lookahead=not scenario.has_lookahead)
    for same in (remembered(other_drafter).result, remembered(replace(scenario, proposal_rate=0.0, has_lookahead=False)).result):
        assert repr(same.records) == repr(plain.records)
        assert list(same.steps) == list(plain.steps)


@quickly
@given(scenario=scenarios)
def test_speculation_changes_times_but_not_what_is_served(scenario: Scenario) -> None:
    plain, speculative = remembered(replace(scenario, num_speculative_tokens=0)), remembered(scenario)
    assert [record.rejected for record in plain.result.records] == [record.rejected for record in speculative.result.records]
    for one, other in zip(plain.served, speculative.served, strict=True):
        assert sum(one.emission_tokens) == sum(other.emission_tokens)
        assert other.rounds <= one.rounds + one.preemptions


@law
def test_booked_futures_give_the_same_records_to_the_last_bit(run: Run) -> None:
    """The engine that takes many rounds at once, where prices are exact sums and where they grow with every context."""
    assert_same(simulate(run.scenario, readable=False).result, run.result)
    uneven_s = STEP_S / 1000
    assert_same(simulate(run.scenario, False, uneven_s).result, simulate(run.scenario, True, uneven_s).result)


@quickly
@given(scenario=seeds.map(roomy))
def test_long_spans_give_the_same_records_to_the_last_bit(scenario: Scenario) -> None:
    note(f"scenario: {scenario!r}")
    uneven_s = STEP_S / 1000
    assert_same(simulate(scenario, False, uneven_s).result, simulate(scenario, True, uneven_s).result)


def test_most_rounds_of_roomy_scenarios_are_taken_many_at_a_time() -> None:
    """Else the law above would compare the readable engine with itself."""
    found = [simulate(roomy(seed), False).result.statistics for seed in range(40)]
    assert sum(one.wakes for one in found) < 0.6 * sum(one.steps for one in found)
    assert sum(one.plain_steps for one in found) < 0.2 * sum(one.steps for one in found)


def assert_same(fast: ServingResult, readable: ServingResult) -> None:
    for one, other in zip(fast.records, readable.records, strict=True):
        assert repr(one) == repr(other)
    assert fast.steps.term_names == readable.steps.term_names
    for one, other in zip(fast.steps, readable.steps, strict=True):
        assert one == other
    for name in readable.steps.term_names:
        assert fast.steps.term(name).tolist() == readable.steps.term(name).tolist()
    assert fast.term_seconds == readable.term_seconds


def test_named_scenarios_bind() -> None:
    """Each named scenario meets the scarcity it is named for."""
    assert remembered(SCARCE_BLOCKS).result.steps.column("preempted").sum() > 0
    assert remembered(PROMPTS_FIRST_SCARCE).result.steps.column("preempted").sum() > 0
    assert remembered(SCARCE_SLOTS).result.steps.column("waiting").max() > 0
    assert (remembered(BUDGET_BELOW_DRAFTS).result.steps.column("drafted") <= 2).all()
    end_s = {step.start_s + step.seconds for step in remembered(TIES).result.steps}
    assert sum(record.arrival_s in end_s for record in remembered(TIES).served) > 3


# ---------------------------------------------------------------------------------------------------------- closed forms


def _standard_error_of_mean(values: Sequence[float], batches: int = 25) -> float:
    """From means of consecutive values, since neighbours share a queue."""
    means = [batch.mean() for batch in np.array_split(np.array(values), batches)]
    return float(np.std(means, ddof=1) / math.sqrt(batches))


@pytest.mark.parametrize("utilisation", [0.3, 0.7])
def test_one_server_with_poisson_arrivals_waits_as_md1(utilisation: float) -> None:
    """One-token outputs, one slot, a step of constant length: an M/D/1 queue."""
    service_s, count = 0.02, 20_000
    arrival_s = np.cumsum(np.random.default_rng([5, *b"arrivals"]).exponential(service_s / utilisation, count))
    requests = [Request(i, float(arrival_s[i]), 10, 1) for i in range(count)]
    rules = BatchingRules(max_num_seqs=1, max_num_batched_tokens=16, max_model_len=16, total_blocks=1)
    constant = AffinePricer(prefill_token_s=(service_s - STEP_S) / 10)
    result = serve(requests, rules, constant, lambda request: IndependentPath(request, 1, 0.5), lambda _: 0)
    waits = [record.queueing_s or 0.0 for record in result.records]
    expected_s = md1_mean_wait_s(utilisation / service_s, service_s)
    assert abs(np.mean(waits) - expected_s) < 4 * _standard_error_of_mean(waits)


@pytest.mark.parametrize(("num_drafts", "acceptance_rate"), [(0, 0.5), (1, 0.3), (4, 0.8), (7, 0.95), (3, 1.0), (3, 0.0)])
def test_batch_one_agrees_with_the_closed_forms(num_drafts: int, acceptance_rate: float) -> None:
    """Alone, a request takes its prefill and its rounds, each at one price; a round emits what the closed form says."""
    rules = BatchingRules(max_num_seqs=1, max_num_batched_tokens=64, max_model_len=1000, total_blocks=100)
    requests = [Request(i, 0.0, 64, 200) for i in range(200)]
    path = lru_cache(None)(lambda request: IndependentPath(request, 11, acceptance_rate))
    result = serve(requests, rules, AffinePricer(), path, lambda _: num_drafts)
    prefill_s, round_s = STEP_S + 64 * STEP_S / 16, STEP_S + (1 + num_drafts) * STEP_S / 8
    lengths = []
    for record in result.records:
        assert record.first_scheduled_s is not None
        assert record.finish_s is not None
        assert record.finish_s - record.first_scheduled_s == pytest.approx(prefill_s + record.rounds * round_s)
        lengths.append((record.accepted + record.rounds, record.rounds))
    tokens, rounds = np.array(lengths).T
    mean = tokens.sum() / rounds.sum()
    standard_error = np.std(tokens - mean * rounds, ddof=1) / (rounds.mean() * math.sqrt(len(rounds)))
    assert abs(mean - mean_acceptance_length(acceptance_rate, num_drafts)) <= 4 * standard_error + 1e-12


if __name__ == "__main__":
    shown = simulate(eval(sys.argv[1]))
    for check in LAWS:
        print(check.__name__, flush=True)
        check(shown)
