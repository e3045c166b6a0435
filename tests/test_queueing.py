"""The engine as a queue: what queueing theory says of its mean waits, with and without speculation.

One slot serves one request at a time, first come first served, so that Poisson arrivals make it an M/G/1 queue whose service time
is a prompt and its rounds. Tests are within four standard errors of means over batches of neighbours, which share a queue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

from simulator.cost.alike import AlikeRounds
from simulator.cost.tape import Tape
from simulator.serving import BatchingRules, ServingResult, no_lookahead, serve
from simulator.theory import md1_mean_wait_s, mg1_mean_wait_s, mm1_mean_wait_s
from simulator.workload import Request
from tests.test_laws import IndependentPath

ONE_SLOT = BatchingRules(
    max_num_seqs=1, max_num_batched_tokens=10**6, max_model_len=10**6, total_blocks=10**6, lookahead_slots=no_lookahead
)


class Cost(NamedTuple):
    seconds: float
    terms: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Rates:
    """So many seconds for a prompt token and for a round, whoever takes part; nothing else."""

    prompt_token_s: float
    round_s: float = 1.0

    def price(self, decode: Sequence[tuple[int, int]], prefill: Sequence[tuple[int, int]], _: int) -> Cost:
        terms = [*self._rounds(len(decode)), *self._prompts(prefill)]
        return Cost(sum(seconds for _, seconds in terms), tuple(terms))

    def alike(self, sequences: int, drafted: int) -> AlikeRounds:
        return AlikeRounds(Tape((1.0, 1.0, 1.0)), self._rounds(sequences), 0.0, lambda *asked: self._prompts(asked[-2]))

    def _rounds(self, sequences: int) -> list[tuple[str, float]]:
        return [("round", self.round_s)] if sequences else []

    def _prompts(self, prefill: Sequence[tuple[int, int]]) -> list[tuple[str, float]]:
        return [("prefill", self.prompt_token_s * sum(new for new, _ in prefill))] if prefill else []


def served(
    prompts: Sequence[int], outputs: Sequence[int], rate_per_s: float, pricer: Rates, *, drafts: int = 0, acceptance_rate: float = 0.0,
    rules: BatchingRules = ONE_SLOT, **more: Any,
) -> ServingResult:  # fmt: skip
    arrival_s = np.cumsum(np.random.default_rng([5, *b"arrivals"]).exponential(1 / rate_per_s, len(prompts)))
    requests = [Request(i, float(arrival_s[i]), int(prompts[i]), int(outputs[i])) for i in range(len(prompts))]
    return serve(requests, rules, pricer, lambda r: IndependentPath(r, 11, acceptance_rate), lambda _: drafts, **more)


def assert_mean(values: np.ndarray, expected: float, batches: int = 25) -> None:
    """Within four standard errors, and the error small enough to say something."""
    means = [batch.mean() for batch in np.array_split(values, batches)]
    error = float(np.std(means, ddof=1) / math.sqrt(batches))
    assert abs(values.mean() - expected) <= 4 * error + 1e-9, (values.mean(), expected, error)
    assert error < 0.1 * expected


COUNT = 10_000
MEAN_TOKENS = 1000


def geometric(count: int) -> np.ndarray:
    """Whole numbers whose law is as good as exponential."""
    return np.random.default_rng([8, *b"prompts"]).geometric(1 / MEAN_TOKENS, count)


def mixed(count: int) -> np.ndarray:
    """Many short prompts and few long ones: a squared coefficient of variation of 2.9."""
    return np.where(np.random.default_rng([9, *b"prompts"]).random(count) < 0.9, 200, 8200)


@pytest.mark.parametrize("utilisation", [0.3, 0.7])
@pytest.mark.parametrize(
    ("lengths", "mean_wait_s"),
    [
        (geometric, mm1_mean_wait_s),
        (lambda count: np.full(count, MEAN_TOKENS), md1_mean_wait_s),
        (mixed, lambda rate, mean_s: mg1_mean_wait_s(rate, mean_s, (0.9 * 200**2 + 0.1 * 8200**2) / MEAN_TOKENS**2 * mean_s**2)),
    ],
    ids=["exponential: M/M/1", "constant: M/D/1", "two lengths: M/G/1"],
)
def test_one_token_answers_wait_as_their_prompts_lengths_say(
    lengths: Callable[[int], np.ndarray], mean_wait_s: Callable[[float, float], float], utilisation: float
) -> None:
    service_s = 0.02
    result = served(lengths(COUNT), np.ones(COUNT), utilisation / service_s, Rates(service_s / MEAN_TOKENS))
    assert_mean(result.records.queueing_s, mean_wait_s(utilisation / service_s, service_s))


def moments_of_rounds(output_tokens: int, drafts: int, acceptance_rate: float) -> tuple[float, float]:
    """Mean and mean square of the rounds that emit all tokens after the first: a round moves by 1 + accepted, cut at the end."""
    accepted = [acceptance_rate**n * (1 - acceptance_rate) for n in range(drafts)] + [acceptance_rate**drafts]
    first, second = np.zeros(output_tokens), np.zeros(output_tokens)
    for left in range(1, output_tokens):
        after = [max(left - 1 - n, 0) for n in range(drafts + 1)]
        first[left] = 1 + sum(p * first[rest] for p, rest in zip(accepted, after, strict=True))
        second[left] = sum(p * (1 + 2 * first[rest] + second[rest]) for p, rest in zip(accepted, after, strict=True))
    return float(first[-1]), float(second[-1])


@pytest.mark.parametrize(("drafts", "acceptance_rate"), [(0, 0.0), (3, 0.7), (5, 0.9)])
def test_a_whole_answer_waits_as_the_moments_of_its_rounds_say(drafts: int, acceptance_rate: float) -> None:
    """Pollaczek and Khinchine: speculation shortens the wait by its mean, and lengthens it by the spread that it brings."""
    prompt_s, round_s, output, count = 0.5, 0.1, 40, 6_000
    rounds, square = moments_of_rounds(output, drafts, acceptance_rate)
    mean_s = prompt_s + round_s * rounds
    second_s2 = prompt_s**2 + 2 * prompt_s * round_s * rounds + round_s**2 * square
    rate = 0.6 / mean_s
    result = served(
        np.full(count, 100),
        np.full(count, output),
        rate,
        Rates(prompt_s / 100, round_s),
        drafts=drafts,
        acceptance_rate=acceptance_rate,
    )
    assert_mean(result.records.queueing_s, mg1_mean_wait_s(rate, mean_s, second_s2))
    assert_mean(result.records.column("rounds").astype(float), rounds)
    if drafts:
        assert square > rounds**2 + 1


def test_clients_who_give_up_bound_every_wait_and_leave_as_many_as_the_server_can_serve() -> None:
    """Overloaded one and a half times: a full queue of waiting clients turns over, and the engine never rests."""
    service_s = 0.02
    result = served(np.full(COUNT, 1000), np.ones(COUNT), 1.5 / service_s, Rates(service_s / 1000), time_out_s=1.0)
    records = result.records
    waited = records.queueing_s[~np.isnan(records.column("finish_s"))]
    assert waited.max() < 1.0
    answered = len(waited) / COUNT
    wasted = float(np.count_nonzero(~np.isnan(records.column("first_scheduled_s"))) / COUNT) - answered
    assert answered + wasted == pytest.approx(1 / 1.5, rel=0.02)  # served, or begun too late
    assert np.mean(waited[1000:]) == pytest.approx(1.0 - service_s, rel=0.03)  # the queue is as long as patience lets it be


def test_slots_share_the_load_and_no_more_than_work_is_lost() -> None:
    """Work conservation: the busy time of a step that costs by token alone is that of the tokens, however many slots there are."""
    prompts = mixed(2000)
    busy_s = []
    for slots in (1, 4, 64):
        rules = BatchingRules(
            max_num_seqs=slots, max_num_batched_tokens=4096, max_model_len=10**5, total_blocks=10**6, lookahead_slots=no_lookahead
        )
        result = served(prompts, np.ones(len(prompts)), 50.0, Rates(1e-5), rules=rules)
        busy_s.append(float(result.steps.column("seconds").sum()))
    assert busy_s == pytest.approx([1e-5 * prompts.sum()] * 3)
