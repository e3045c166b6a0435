"""Laws that every simulated run obeys, over random scenarios: scarce blocks, slots and budgets, bursts, closed loops, sessions,
shared prefixes, blocks moved to the host, clients that give up.

2,000 scenarios are tried, or as many as `pytest --scenarios` says. A failure names the law and prints the one line that shows it
again:  python tests/test_laws.py "Scenario(seed=3, max_num_seqs=1)"
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest

from simulator.cost.alike import AlikeRounds
from simulator.cost.tape import Tape, added
from simulator.serving import BatchingRules, RequestRecord, ServingResult, StepRecord, no_lookahead, one_slot_per_draft, serve
from simulator.theory import mean_acceptance_length
from simulator.workload import Request


@dataclass(frozen=True)
class Scenario:
    """All that decides a run. `gap_s` 0 is one burst; `on_grid` puts arrivals on instants at which steps end.

    `texts`: so many beginnings of prompts go round, of `shared_tokens` tokens; 0: no two prompts are alike. `turns`: requests of a
    session. `time_out_s` 0: nobody gives up.
    """

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
    texts: int = 0
    shared_tokens: int = 0
    turns: int = 1
    turn_think_s: float = 0.0
    prefix_caching: bool = False
    recomputed_blocks: int = 0
    recomputes_draft: bool = False
    state_blocks: int = 0
    host_blocks: int = 0
    host_block_s: float = 0.0
    time_out_s: float = 0.0

    def rules(self) -> BatchingRules:
        named = {rule.name for rule in fields(BatchingRules)} & vars(self).keys()
        limits = {name: getattr(self, name) for name in named}
        limits["most_drafts"] = self.num_speculative_tokens
        return BatchingRules(**limits, lookahead_slots=one_slot_per_draft if self.has_lookahead else no_lookahead)

    def requests(self) -> tuple[Request, ...]:
        rng = np.random.default_rng([self.seed, *b"requests"])
        arrival_s = np.cumsum(rng.exponential(self.gap_s, self.num_requests)) if self.gap_s else np.zeros(self.num_requests)
        if self.on_grid:
            arrival_s = np.floor(arrival_s / STEP_S) * STEP_S
        prompts = rng.integers(1, self.longest_prompt + 1, self.num_requests).tolist()
        outputs = rng.integers(1, self.longest_output + 1, self.num_requests).tolist()
        texts = rng.integers(0, max(self.texts, 1), self.num_requests).tolist()
        requests: list[Request] = []
        for i in range(self.num_requests):
            first = i - i % self.turns
            said = prompts[i] + sum(prompts[first:i]) + sum(outputs[first:i])
            shared = min(self.shared_tokens, prompts[first]) if self.texts else 0
            content = (
                ((1 + texts[first], shared), (100 + first, said - shared + outputs[i]))
                if shared
                else ((100 + first, said + outputs[i]),)
            )
            follows, think_time_s = (i - 1, self.turn_think_s) if i > first else (None, 0.0)
            requests.append(Request(i, float(arrival_s[first]), said, outputs[i], content, follows, think_time_s))
        return tuple(requests)

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

    def price(
        self, decode: Sequence[tuple[int, int]], prefill: Sequence[tuple[int, int]], prompts_finished: int,
        draft_prefill: Sequence[tuple[int, int]] = (),
    ) -> Cost:  # fmt: skip
        assert len(self.asked) < 100_000, "the run makes no progress"
        self.asked.append((tuple(decode), tuple(prefill), prompts_finished))
        contexts = [context for context, _ in decode]
        sums = sum(contexts), sum(min(context, self.window) for context in contexts), max(contexts, default=0)
        return self._price(sum(1 + drafts for _, drafts in decode), *sums, prefill, draft_prefill)

    def alike(self, sequences: int, drafted: int) -> AlikeRounds:
        tape = Tape((1.0, 1.0, 1.0))

        def prompts(*asked: Any, draft_prefill: Sequence[tuple[int, int]] = ()) -> list[tuple[str, float]]:
            return self._prompts(asked[-2], draft_prefill)

        return AlikeRounds(tape, self._rounds(sequences * (1 + drafted), *tape.inputs), 0.0, prompts)

    def _price(self, rows: int, context: Any, windowed: Any, longest: Any, prefill: Any, draft_prefill: Any) -> Cost:
        terms = self._rounds(rows, context, windowed, longest) + self._prompts(prefill, draft_prefill)
        return Cost(added(seconds for _, seconds in terms), tuple(terms))

    def _rounds(self, rows: int, context: Any, windowed: Any, longest: Any) -> list[tuple[str, Any]]:
        terms = [("host", STEP_S), ("decode", rows * self.decode_row_s)]
        if self.context_token_s:
            terms += [
                ("attention", (context + 2 * windowed) * self.context_token_s),
                ("walk", longest * self.context_token_s / 3),
            ]
        return terms

    def _prompts(self, *chunks: Sequence[tuple[int, int]]) -> list[tuple[str, float]]:
        """Those of the target and of the drafter."""
        rates = (("prefill", self.prefill_token_s), ("prefill_draft", self.prefill_token_s / 8))
        return [(name, sum(new for new, _ in each) * rate) for (name, rate), each in zip(rates, chunks, strict=True) if each]


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

    @cached_property
    def records(self) -> list[RequestRecord]:
        """Those that were not rejected."""
        return [record for record in self.result.records if not record.rejected]

    @cached_property
    def served(self) -> list[RequestRecord]:
        """Those that finished."""
        return [record for record in self.records if record.cancelled_s is None]

    @cached_property
    def order(self) -> dict[int, int]:
        """In which order requests reached the engine."""
        return {request_id: place for place, request_id in enumerate(self.paths)}

    @cached_property
    def steps(self) -> list[StepRecord]:
        return list(self.result.steps)


def simulate(scenario: Scenario, readable: bool = True, context_token_s: float = 0.0) -> Run:
    """By the readable engine, which the laws are about; the other is held to it."""
    requests, pricer = scenario.requests(), AffinePricer(context_token_s=context_token_s)
    paths: dict[int, IndependentPath] = {}

    def path(request: Request) -> IndependentPath:
        paths[request.request_id] = IndependentPath(request, scenario.seed, scenario.acceptance_rate, scenario.proposal_rate)
        return paths[request.request_id]

    users: dict[str, Any] = {"users": scenario.users or None, "think_time_s": scenario.think_time_s}
    time_out_s = scenario.time_out_s or None
    result = serve(requests, scenario.rules(), pricer, path, scenario.drafts, **users, time_out_s=time_out_s, readable=readable)
    return Run(scenario, requests, result, pricer, paths)


OPTIONS: dict[str, list[Any]] = {
    "num_requests": [1, 6, 12, 24],
    "longest_prompt": [1, 10, 40],
    "longest_output": [1, 6, 24, 24, 60],
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
    "texts": [0, 1, 3],
    "shared_tokens": [3, 8, 30],
    "turns": [1, 1, 2, 5],
    "turn_think_s": [0.0, STEP_S, 0.1],
    "prefix_caching": [False, True],
    "recomputed_blocks": [0, 0, 1],
    "recomputes_draft": [False, False, True],
    "state_blocks": [0, 0, 0, 1, 3],
    "host_blocks": [0, 0, 10, 1000],
    "host_block_s": [0.0, STEP_S / 4],
    "time_out_s": [0.0, 0.0, 0.1, 20 * STEP_S, 2.0],
}


def drawn(seed: int) -> Scenario:
    """A scenario drawn evenly from the options, so that scarcity of every kind is common."""
    rng = np.random.default_rng([seed, *b"scenario"])
    return Scenario(seed, **{name: options[rng.integers(len(options))] for name, options in OPTIONS.items()})


def roomy(seed: int) -> Scenario:
    """A scenario of long outputs with budget to spare, in which spans of many rounds are cut, preempted and booked anew."""
    rng = np.random.default_rng([seed, *b"roomy"])
    blocks, drafts_up_to = int(rng.choice([40, 100, 300, 2000])), int(rng.choice([2, 5, 64]))
    return replace(
        drawn(seed), longest_output=100, max_model_len=1000, max_num_batched_tokens=512, total_blocks=blocks,
        speculate_up_to=drafts_up_to, gap_s=float(rng.choice([0.02, 0.2, 0.5])), proposal_rate=1.0,
    )  # fmt: skip


NAMED = {
    "scarce blocks": Scenario(total_blocks=15, gap_s=0.0, num_requests=20, max_num_batched_tokens=512),
    "scarce slots": Scenario(max_num_seqs=2, gap_s=0.0),
    "budget below drafts": Scenario(max_num_batched_tokens=3, num_speculative_tokens=5, acceptance_rate=0.9),
    "prompts first, scarce": Scenario(
        total_blocks=15, gap_s=0.002, num_requests=20, prefill_first=True, max_num_batched_tokens=16
    ),
    "reserved": Scenario(total_blocks=25, gap_s=0.0, num_requests=30, max_num_batched_tokens=16, admission="whole_prompt"),
    "whole prompts": Scenario(chunked_prefill=False, max_num_batched_tokens=60, gap_s=0.002),
    "closed loop": Scenario(users=4, num_requests=20, total_blocks=20),
    "ties": Scenario(on_grid=True, gap_s=0.02, num_requests=150, num_speculative_tokens=0),
    "shared prefix": Scenario(texts=2, shared_tokens=30, prefix_caching=True, num_requests=30, gap_s=0.02),
    "shared prefix, scarce": Scenario(
        texts=3, shared_tokens=20, prefix_caching=True, num_requests=40, total_blocks=20, gap_s=0.002, recomputes_draft=True
    ),
    "sessions": Scenario(turns=5, turn_think_s=0.1, prefix_caching=True, num_requests=30, max_model_len=1000, total_blocks=60),
    "swapping": Scenario(total_blocks=15, gap_s=0.0, num_requests=20, host_blocks=1000, host_block_s=STEP_S / 4),
    "recurrent states": Scenario(state_blocks=4, total_blocks=30, gap_s=0.0, num_requests=30),
    "turns that end together": Scenario(
        seed=20037,
        num_requests=24,
        longest_prompt=10,
        longest_output=6,
        users=8,
        speculate_up_to=3,
        acceptance_rate=1.0,
        has_lookahead=False,
        prefill_first=True,
        turns=5,
        turn_think_s=0.1,
    ),
    "swapping to a small host": Scenario(total_blocks=25, gap_s=0.0, num_requests=20, host_blocks=8, host_block_s=STEP_S),
    "giving up": Scenario(gap_s=0.002, num_requests=30, time_out_s=0.3, max_num_seqs=4),
    "giving up while swapped": Scenario(
        gap_s=0.0,
        num_requests=30,
        time_out_s=0.5,
        total_blocks=20,
        host_blocks=100,
        prefix_caching=True,
        texts=1,
        shared_tokens=9,
    ),
}
CHUNKS = 40
LAWS: list[Callable[[Run], None]] = []


def law(check: Callable[[Run], None]) -> Callable[[Run], None]:
    """Notes a law, to be tried on every scenario."""
    LAWS.append(check)
    return check


def try_laws(scenario: Scenario, laws: Sequence[Callable[[Run], None]]) -> None:
    """Fails with the law that is broken, and the line that shows it again."""
    broken = _broken(scenario, laws)
    if broken is not None:
        scenario = _simplified(scenario, laws)
        shown = ", ".join(
            f"{one.name}={getattr(scenario, one.name)!r}"
            for one in fields(Scenario)
            if getattr(scenario, one.name) != one.default
        )
        name, error = _broken(scenario, laws) or broken
        pytest.fail(f'{name}: {error}\nshow again: python tests/test_laws.py "Scenario({shown})"', pytrace=False)


def _broken(scenario: Scenario, laws: Sequence[Callable[[Run], None]]) -> tuple[str, Exception] | None:
    name = "the run ends"
    try:
        run = simulate(scenario)
        for check in laws:
            name = check.__name__
            check(run)
    except Exception as error:
        return name, error
    return None


def _simplified(scenario: Scenario, laws: Sequence[Callable[[Run], None]]) -> Scenario:
    """The scenario with every field at its default that is not needed to break a law."""
    for one in fields(Scenario):
        simpler = replace(scenario, **{one.name: one.default})
        if simpler != scenario and _broken(simpler, laws) is not None:
            scenario = simpler
    return scenario


@pytest.mark.parametrize("name", NAMED)
def test_laws_hold_where_something_is_scarce(name: str) -> None:
    try_laws(NAMED[name], LAWS)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_laws_hold_in_random_scenarios(chunk: int, request: pytest.FixtureRequest) -> None:
    for seed in range(chunk, request.config.getoption("--scenarios"), CHUNKS):
        try_laws(drawn(seed), LAWS)
        if seed % 8 == 0:
            try_laws(drawn(seed), RARELY)
            try_laws(roomy(seed), [booked_futures_give_the_same_records_to_the_last_bit])


@law
def every_request_finishes_is_rejected_or_is_given_up(run: Run) -> None:
    assert [record.request_id for record in run.result.records] == [request.request_id for request in run.requests]
    rules, time_out_s = run.scenario.rules(), run.scenario.time_out_s or math.inf
    for record, request in zip(run.result.records, run.requests, strict=True):
        assert record.rejected == rules.refusal(record.prompt_tokens, record.output_tokens)
        assert [record.finish_s is not None, bool(record.rejected), record.cancelled_s is not None].count(True) == 1
        if not run.scenario.users and request.follows is None:
            assert record.arrival_s == request.arrival_s
        if record.cancelled_s is not None:
            assert record.cancelled_s == record.arrival_s + time_out_s
        if record.finish_s is not None:
            assert record.finish_s < record.arrival_s + time_out_s


@law
def a_turn_comes_when_its_user_has_thought_about_the_answer_before(run: Run) -> None:
    for record, request in zip(run.result.records, run.requests, strict=True):
        if request.follows is not None:
            before = run.result.records[request.follows]
            over_s = next(s for s in (before.finish_s, before.cancelled_s, before.arrival_s) if s is not None)
            assert record.arrival_s == over_s + request.think_time_s


@law
def tokens_are_conserved(run: Run) -> None:
    columns = run.result.steps
    for record in run.served:
        assert sum(record.emission_tokens) == record.output_tokens
    for record in run.records:
        assert sum(record.emission_tokens) <= record.output_tokens
        assert 0 <= record.accepted <= record.drafted <= run.scenario.num_speculative_tokens * record.draft_rounds
        assert record.draft_rounds <= record.rounds
    assert columns.column("emitted").sum() == sum(sum(record.emission_tokens) for record in run.records)
    for name in ("drafted", "accepted"):
        assert columns.column(name).sum() == sum(getattr(record, name) for record in run.records)
    assert columns.column("decode_sequences").sum() == sum(record.rounds for record in run.records)


@law
def every_prompt_token_is_computed_or_found_in_the_cache_and_again_only_after_preemption(run: Run) -> None:
    computed = run.result.steps.column("prefill_tokens").sum() + sum(record.cached_tokens for record in run.records)
    again = computed - sum(record.prompt_tokens for record in run.served)
    if not any(record.cancelled_s for record in run.records):
        assert again >= 0
        assert again == 0 or any(record.preemptions > record.swaps for record in run.served)
    for record in run.records:
        admissions = 1 + record.preemptions - record.swaps
        assert record.cached_tokens <= admissions * (record.prompt_tokens + record.output_tokens - 2)
        assert record.cached_tokens % run.scenario.block_tokens == 0
        assert not record.cached_tokens or run.scenario.prefix_caching


@law
def emitted_tokens_equal_accepted_plus_one_per_sequence_round(run: Run) -> None:
    for record in run.records:
        starts = np.cumsum([0, *record.emission_tokens]).tolist()
        burst = dict(zip(starts, record.emission_tokens, strict=False))
        rounds = run.paths[record.request_id].rounds
        for position, _, accepted in rounds:
            assert burst[position] == min(accepted + 1, record.output_tokens - position)
        with_drafts = {position for position, _, _ in rounds}
        assert all(tokens == 1 for position, tokens in burst.items() if position not in with_drafts)
        assert len(rounds) == record.draft_rounds


@law
def bursts_are_rounds_and_finished_prompts(run: Run) -> None:
    bursts = sum(len(record.emission_s) for record in run.records)
    assert bursts == sum(record.rounds for record in run.records) + run.result.steps.column("prompts_finished").sum()


@law
def kv_cache_is_never_over_committed(run: Run) -> None:
    rules = run.scenario.rules()
    for (decode, prefill, _), step in zip(run.pricer.asked, run.steps, strict=True):
        written = [context + 1 + drafts for context, drafts in decode] + [before + new for new, before in prefill]
        blocks = [math.ceil(tokens / rules.block_tokens) + rules.state_blocks for tokens in written]
        # Sequences may read the same blocks where prefixes are cached.
        assert (max(blocks) if rules.prefix_caching else sum(blocks)) <= step.used_blocks <= rules.total_blocks
        assert max(written) <= rules.max_model_len


@law
def no_step_exceeds_its_limits(run: Run) -> None:
    rules = run.scenario.rules()
    for (decode, prefill, prompts_finished), step in zip(run.pricer.asked, run.steps, strict=True):
        assert 1 <= step.rows + step.prefill_tokens <= rules.max_num_batched_tokens
        assert len(decode) + len(prefill) <= step.running <= rules.max_num_seqs
        assert all(0 <= drafts <= run.scenario.num_speculative_tokens for _, drafts in decode)
        assert not (rules.prefill_first and decode and prefill)
        assert prompts_finished <= len(prefill)
        assert rules.chunked_prefill or rules.prefix_caching or all(before == 0 for _, before in prefill)
        assert rules.chunked_prefill or prompts_finished == len(prefill)


@law
def clock_is_monotone_and_causal(run: Run) -> None:
    columns = run.result.steps
    start_s, end_s = columns.column("start_s"), columns.column("start_s") + columns.column("seconds")
    assert (start_s[1:] >= end_s[:-1]).all()
    ends = set(end_s.tolist())
    for record in run.records:
        assert (record.itl_s > 0).all()
        assert ends.issuperset(record.emission_s)
    for record in run.served:
        assert record.first_scheduled_s is not None
        assert record.arrival_s <= record.first_scheduled_s < record.emission_s[0] == record.first_token_s
        assert record.emission_s[-1] == record.finish_s


@law
def terms_sum_to_busy_time(run: Run) -> None:
    assert sum(run.result.term_seconds.values()) == pytest.approx(run.result.steps.column("seconds").sum())


@law
def what_goes_to_the_host_comes_back_and_takes_its_time(run: Run) -> None:
    scenario, swap_s = run.scenario, run.result.term_seconds.get("swap", 0.0)
    if not scenario.host_blocks:
        assert not any(record.swaps for record in run.records)
    elif scenario.host_block_s and not any(record.cancelled_s for record in run.records):
        moved = swap_s / scenario.host_block_s
        assert moved % 2 == 0
        assert 2 * sum(record.swaps for record in run.records) <= moved
    assert bool(swap_s) <= any(record.swaps for record in run.records)


@law
def arrivals_at_the_start_of_a_step_are_seen_by_it_and_those_who_gave_up_are_gone(run: Run) -> None:
    """The step's own counts of running and waiting are the requests that arrived by its start less those that are over."""
    arrival_s = np.sort([record.arrival_s for record in run.records])
    over_s = np.sort([_over_s(record) for record in run.records])
    start_s = run.result.steps.column("start_s")
    here = np.searchsorted(arrival_s, start_s, "right") - np.searchsorted(over_s, start_s, "right")
    assert [step.running + step.waiting for step in run.steps] == here.tolist()


@law
def littles_law(run: Run) -> None:
    """Time-average number in the system = λ·W over a complete run; the left side from the steps, the right from the requests.

    Between two steps' starts requests arrive and clients give up, which the steps do not tell.
    """
    in_system_s = sum((step.running + step.waiting) * step.seconds for step in run.steps)
    start_s = run.result.steps.column("start_s")
    end_s = start_s + run.result.steps.column("seconds")
    for record in run.records:
        for time_s, sign in ((record.arrival_s, 1), (record.cancelled_s, -1)):
            if time_s is not None:
                step = int(np.searchsorted(end_s, time_s, "right"))
                if step < len(end_s) and start_s[step] < time_s:
                    in_system_s += sign * (end_s[step] - time_s)
    assert in_system_s == pytest.approx(sum(_over_s(record) - record.arrival_s for record in run.records), rel=1e-9)


def _over_s(record: RequestRecord) -> float:
    """When a request left."""
    over_s = record.finish_s if record.cancelled_s is None else record.cancelled_s
    assert over_s is not None
    return over_s


@law
def engine_is_idle_only_when_empty(run: Run) -> None:
    arrivals = sorted(record.arrival_s for record in run.records)
    if run.steps:
        assert run.steps[0].start_s == arrivals[0]
    for step, following in pairwise(run.steps):
        end_s = step.start_s + step.seconds
        if following.start_s > end_s:
            assert all(_over_s(record) <= end_s for record in run.records if record.arrival_s <= end_s)
            assert following.start_s in arrivals


@law
def waiting_work_that_fits_is_admitted(run: Run) -> None:
    rules = run.scenario.rules()
    if rules.admission != "first_chunk":
        return
    longest = max((record.prompt_tokens + record.output_tokens for record in run.records), default=0)
    lookahead = run.scenario.num_speculative_tokens
    whole = not rules.chunked_prefill or rules.prefix_caching or rules.host_blocks > 0  # what is cached or comes back counts too
    for step in run.steps:
        left = rules.max_num_batched_tokens - step.rows - step.prefill_tokens
        if rules.prefill_first and step.rows:
            left = rules.max_num_batched_tokens
        if step.waiting and not step.preempted and step.running < rules.max_num_seqs and left > 0:
            chunk = longest + (1 + lookahead if rules.host_blocks else 0) if whole else min(longest, left)
            blocks = math.ceil((chunk + lookahead) / rules.block_tokens) + rules.state_blocks + rules.watermark_blocks
            no_budget = not rules.chunked_prefill and longest > left
            assert no_budget or blocks > rules.total_blocks - step.used_blocks


@law
def nothing_is_preempted_where_whole_requests_are_admitted(run: Run) -> None:
    """Also where γ changes: as many slots were promised as the most drafts will need."""
    if run.scenario.admission == "whole_request":
        assert not any(step.preempted for step in run.steps)


@law
def every_step_moves_the_oldest_sequence_on(run: Run) -> None:
    """So no run takes more steps than it has tokens, however often it preempts; a step of prompts alone may leave it waiting."""
    if not run.scenario.prefill_first:
        assert len(run.steps) <= sum(record.prompt_tokens + record.output_tokens for record in run.records)
    assert all(step.rows + step.prefill_tokens >= 1 for step in run.steps)


@law
def first_scheduling_is_first_come_first_served(run: Run) -> None:
    begun = [record for record in run.records if record.first_scheduled_s is not None]
    begun.sort(key=lambda record: (record.arrival_s, run.order[record.request_id]))
    scheduled = [record.first_scheduled_s or 0.0 for record in begun]
    assert scheduled == sorted(scheduled)


@law
def closed_loop_never_has_more_requests_than_users(run: Run) -> None:
    if run.scenario.users:
        assert all(step.running + step.waiting <= run.scenario.users for step in run.steps)


@law
def booked_futures_give_the_same_records_to_the_last_bit(run: Run) -> None:
    """The engine that takes many rounds at once, where prices are exact sums."""
    assert_same(simulate(run.scenario, readable=False).result, run.result)


def prices_that_grow_with_every_context_too(run: Run) -> None:
    uneven_s = STEP_S / 1000
    assert_same(simulate(run.scenario, False, uneven_s).result, simulate(run.scenario, True, uneven_s).result)


def same_seed_gives_the_same_bytes(run: Run) -> None:
    again = simulate(run.scenario).result
    assert repr(again.records) == repr(run.result.records)
    assert repr(list(again.steps)) == repr(list(run.result.steps))
    assert repr(again.term_seconds) == repr(run.result.term_seconds)


def no_drafts_equal_no_speculation(run: Run) -> None:
    """No drafts asked of a drafter, and a drafter that never proposes and needs no slots, both are the plain engine.

    Unless room is set aside for drafts that might come, as where whole requests are admitted.
    """
    scenario = run.scenario
    if scenario.admission == "whole_request":
        scenario = replace(scenario, admission="whole_prompt")
    plain = simulate(replace(scenario, num_speculative_tokens=0)).result
    other_drafter = replace(scenario, num_speculative_tokens=0, acceptance_rate=0.3, has_lookahead=not scenario.has_lookahead)
    for same in (simulate(other_drafter).result, simulate(replace(scenario, proposal_rate=0.0, has_lookahead=False)).result):
        assert repr(same.records) == repr(plain.records)
        assert list(same.steps) == list(plain.steps)


def speculation_changes_times_but_not_what_is_served(run: Run) -> None:
    scenario = replace(run.scenario, time_out_s=0.0)
    plain, speculative = simulate(replace(scenario, num_speculative_tokens=0)), simulate(scenario)
    assert [record.rejected for record in plain.result.records] == [record.rejected for record in speculative.result.records]
    for one, other in zip(plain.served, speculative.served, strict=True):
        assert sum(one.emission_tokens) == sum(other.emission_tokens)
        assert other.rounds <= one.rounds + one.preemptions


# Those that take further runs.
RARELY = [
    prices_that_grow_with_every_context_too,
    same_seed_gives_the_same_bytes,
    no_drafts_equal_no_speculation,
    speculation_changes_times_but_not_what_is_served,
]


def test_most_rounds_of_roomy_scenarios_are_taken_many_at_a_time() -> None:
    """Else the engines' agreement would be that of the readable one with itself."""
    found = [simulate(roomy(seed), False).result.statistics for seed in range(40)]
    assert sum(one.wakes for one in found) < 0.6 * sum(one.steps for one in found)
    assert sum(one.plain_steps for one in found) < 0.2 * sum(one.steps for one in found)


@pytest.mark.parametrize("name", NAMED)
def test_what_is_forgotten_of_the_past_takes_nothing_of_the_future(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps and records become columns, and the timeline lets them go, every few rounds instead of every ten thousands."""
    monkeypatch.setattr("simulator.serving.step_log._AT_ONCE", 7)
    monkeypatch.setattr("simulator.serving.record._BATCH", 2)
    assert_same(simulate(NAMED[name], readable=False).result, simulate(NAMED[name]).result)


def assert_same(fast: ServingResult, readable: ServingResult) -> None:
    for one, other in zip(fast.records, readable.records, strict=True):
        assert repr(one) == repr(other)
    assert fast.steps.term_names == readable.steps.term_names
    for one, other in zip(fast.steps, readable.steps, strict=True):
        assert one == other
    for name in readable.steps.term_names:
        assert fast.steps.term(name).tolist() == readable.steps.term(name).tolist()
    assert fast.term_seconds == readable.term_seconds


def test_a_broken_law_is_told_in_one_line_that_shows_it_again() -> None:
    def nothing_is_ever_preempted(run: Run) -> None:
        assert not any(step.preempted for step in run.steps), "a sequence was"

    with pytest.raises(pytest.fail.Exception) as caught:
        try_laws(replace(NAMED["scarce blocks"], proposal_rate=0.5), [nothing_is_ever_preempted])
    law_line, line = str(caught.value).splitlines()[0], str(caught.value).splitlines()[-1]
    assert law_line.startswith("nothing_is_ever_preempted: a sequence was")
    assert "proposal_rate" not in line  # not needed to show it
    shown = eval(line.partition('"')[2].rstrip('"'))
    assert _broken(shown, [nothing_is_ever_preempted]) is not None


def test_named_scenarios_bind() -> None:
    """Each named scenario meets the scarcity it is named for."""
    runs = {name: simulate(scenario) for name, scenario in NAMED.items()}
    for name in ("scarce blocks", "prompts first, scarce", "shared prefix, scarce"):
        assert runs[name].result.steps.column("preempted").sum() > 0
    assert runs["scarce slots"].result.steps.column("waiting").max() > 0
    states = runs["recurrent states"]
    assert states.result.steps.column("waiting").max() > 0
    assert states.result.steps.column("running").max() <= states.scenario.total_blocks // (states.scenario.state_blocks + 1) < 8
    ends = Counter(record.finish_s for record in runs["turns that end together"].served)
    assert max(ends.values()) > 1
    assert (runs["budget below drafts"].result.steps.column("drafted") <= 2).all()
    end_s = {step.start_s + step.seconds for step in runs["ties"].steps}
    assert sum(record.arrival_s in end_s for record in runs["ties"].served) > 3
    for name in ("shared prefix", "shared prefix, scarce", "sessions", "giving up while swapped"):
        assert sum(record.cached_tokens for record in runs[name].records) > 0
    for name in ("swapping", "swapping to a small host", "giving up while swapped"):
        assert sum(record.swaps for record in runs[name].records) > 0
    assert any(record.preemptions > record.swaps for record in runs["swapping to a small host"].records)
    for name in ("giving up", "giving up while swapped"):
        gone = [record for record in runs[name].records if record.cancelled_s is not None]
        assert any(record.first_scheduled_s is None for record in gone)
        assert any(record.first_token_s is not None for record in gone)
        assert runs[name].served


# ------------------------------------------------------------------------------------------------- more memory, and alone


def test_more_blocks_make_no_run_longer_but_for_a_told_anomaly() -> None:
    """First come first served, more memory serves the same requests sooner.

    But for the anomalies that any list of jobs can have when they meet other company (Graham 1969), told by the line that shows
    them; none is known.
    """
    anomalies, shorter = [], 0
    for seed in range(300):
        admission = OPTIONS["admission"][seed % 3]
        drawn_one = replace(
            drawn(seed), admission=admission, time_out_s=0.0, turns=1, users=0, longest_prompt=20, longest_output=24
        )
        ends_s: list[float] = []
        for blocks in (16, 32, 1000):
            scenario = replace(drawn_one, total_blocks=blocks, block_tokens=4)
            ends_s.append(max((record.finish_s or 0.0 for record in simulate(scenario, False).served), default=0.0))
            if len(ends_s) > 1 and ends_s[-1] > ends_s[-2] * (1 + 1e-9):
                anomalies.append(f"{ends_s[-2]} s to {ends_s[-1]} s: {scenario!r}")
        shorter += sum(after < before for before, after in pairwise(ends_s))
    assert shorter > 50
    assert len(anomalies) <= 6, "\n".join(anomalies)


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
    shown_again = simulate(eval(sys.argv[1]))
    for check_again in (*LAWS, *RARELY):
        print(check_again.__name__, flush=True)
        check_again(shown_again)
