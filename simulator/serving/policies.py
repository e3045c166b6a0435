"""Policies at work: γ of the next rounds, from the running batch and, where a policy looks, from what has happened.

A policy is asked before every step and must answer the same until it is told what a step did; it is told sums, in whole
numbers, and looks at them every `look_every` rounds. So it does not matter whether rounds are told one by one or many at a
time, and both engines choose alike.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

from simulator.draft_policy import AcceptanceWindow, ByBatch, ByContext, GoodputOptimal, OffAbove, PolicySpec, tokens_in
from simulator.theory import acceptance_rate_for, increasing_root, mean_acceptance_length

RoundSeconds = Callable[[int, int, float], float]
"""Predicted seconds of a round: (drafts, running sequences, mean context)."""


class DraftPolicy:
    """γ by running sequences alone."""

    looks_in: float = math.inf  # rounds until it looks

    def __init__(self, by_batch: Callable[[int], int], switch_s: float = 0.0):
        self._by_batch, self.switch_s = by_batch, switch_s

    def __call__(self, running: int) -> int:
        return self._by_batch(running)

    def done(self, rounds: int, gamma: int, sequences: int, context_tokens: int, draft_rounds: int, accepted: int) -> None:
        """Rounds at γ are over; all but `rounds` are sums over rounds and sequences. draft_rounds: those with a draft."""


class LookingPolicy(DraftPolicy, ABC):
    """Looks every `look_every` rounds at the sums since it last looked."""

    def __init__(self, look_every: int, switch_s: float):
        super().__init__(lambda running: self._choose(running), switch_s)
        self.look_every = self.looks_in = look_every
        self._sequences = self._context_tokens = 0
        self._seen: dict[int, tuple[int, int]] = {}  # γ → draft rounds, accepted

    def done(self, rounds: int, gamma: int, sequences: int, context_tokens: int, draft_rounds: int, accepted: int) -> None:
        self._sequences += sequences
        self._context_tokens += context_tokens
        if draft_rounds:
            before = self._seen.get(gamma, (0, 0))
            self._seen[gamma] = before[0] + draft_rounds, before[1] + accepted
        self.looks_in -= rounds
        if self.looks_in <= 0:
            self._look(self._context_tokens / self._sequences, self._seen)
            self.looks_in = self.look_every
            self._sequences = self._context_tokens = 0
            self._seen = {}

    @abstractmethod
    def _choose(self, running: int) -> int:
        """γ for so many running sequences, by what was last seen."""

    @abstractmethod
    def _look(self, context_tokens: float, seen: dict[int, tuple[int, int]]) -> None:
        """Takes in the mean context and, by γ, draft rounds and accepted drafts since the last look."""


class ContextPolicy(LookingPolicy):
    """γ by the mean context at the last look; before the first, as for the shortest contexts of the table."""

    def __init__(self, spec: ByContext):
        super().__init__(spec.look_every, spec.switch_s)
        self._table = spec.table
        self._context_tokens_seen: float = min(first for first, _, _ in spec.table)

    def _choose(self, running: int) -> int:  # noqa: ARG002
        return tokens_in(self._table, math.floor(self._context_tokens_seen))

    def _look(self, context_tokens: float, seen: dict[int, tuple[int, int]]) -> None:  # noqa: ARG002
        self._context_tokens_seen = context_tokens


class WindowPolicy(LookingPolicy):
    """On or off: off once a full window accepted too little, on again after a pause where one is stated."""

    def __init__(self, spec: AcceptanceWindow, gamma: int):
        super().__init__(spec.look_every, spec.switch_s)
        self._spec, self._gamma = spec, gamma
        self._window = (0, 0)
        self._off_rounds: int | None = None  # since it went off

    def _choose(self, running: int) -> int:  # noqa: ARG002
        return self._gamma if self._off_rounds is None else 0

    def _look(self, context_tokens: float, seen: dict[int, tuple[int, int]]) -> None:  # noqa: ARG002
        if self._off_rounds is not None:
            self._off_rounds += self.look_every
            if self._spec.retry_rounds is not None and self._off_rounds >= self._spec.retry_rounds:
                self._off_rounds, self._window = None, (0, 0)
            return
        rounds, accepted = self._window
        for more_rounds, more_accepted in seen.values():
            rounds, accepted = rounds + more_rounds, accepted + more_accepted
        self._window = (rounds, accepted)
        if rounds >= self._spec.window:
            self._window = (0, 0)
            if 1 + accepted / rounds < self._spec.least:
                self._off_rounds = 0


class GoodputPolicy(LookingPolicy):
    """The γ of most tokens a second: τ(γ) of the running acceptance rate over the predicted seconds of a round.

    The acceptance rate is the one under which the observed rounds would have accepted what they did, old rounds fading. Until
    the first look it drafts one, the cheapest way to learn it.
    """

    def __init__(self, spec: GoodputOptimal, gamma: int, round_s: RoundSeconds):
        super().__init__(spec.look_every, spec.switch_s)
        self._spec, self._gamma, self._round_s = spec, gamma, round_s
        self._rate: float | None = None
        self._context = 1.0
        self._weights: dict[int, tuple[float, float]] = {}
        self._off_rounds = 0
        self._chosen: dict[int, int] = {}  # γ by running batch, until the next look

    def _choose(self, running: int) -> int:
        if self._rate is None:
            return 1
        found = self._chosen.get(running)
        if found is None:
            found = self._chosen[running] = self._best(running, self._rate)
            if found == 0 and self._off_rounds >= self._spec.retry_rounds:
                found = self._chosen[running] = 1
        return found

    def _best(self, running: int, rate: float) -> int:
        def tokens_per_s(gamma: int) -> float:
            return mean_acceptance_length(rate, gamma) / self._round_s(gamma, max(running, 1), self._context)

        return max(range(self._gamma + 1), key=tokens_per_s)

    def _look(self, context_tokens: float, seen: dict[int, tuple[int, int]]) -> None:
        self._chosen = {}
        self._context = float(f"{context_tokens:.1e}")  # prices are kept by context to two digits
        self._off_rounds = 0 if seen else self._off_rounds + self.look_every
        if not seen:
            return
        faded = 0.5 ** (sum(rounds for rounds, _ in seen.values()) / self._spec.half_life)
        self._weights = {gamma: (faded * rounds, faded * accepted) for gamma, (rounds, accepted) in self._weights.items()}
        for gamma, (rounds, accepted) in seen.items():
            before = self._weights.get(gamma, (0.0, 0.0))
            self._weights[gamma] = before[0] + rounds, before[1] + accepted
        self._rate = pooled_acceptance_rate(self._weights)


def pooled_acceptance_rate(weights: dict[int, tuple[float, float]]) -> float:
    """The α under which rounds of several γ together accept what they accepted: γ → (rounds, accepted drafts).

    >>> round(pooled_acceptance_rate({1: (100, 50), 3: (100, 87.5)}), 6)
    0.5
    """
    if len(weights) == 1:
        ((gamma, (rounds, accepted)),) = weights.items()
        return acceptance_rate_for(min(1 + accepted / rounds, gamma + 1.0), gamma)
    total = sum(accepted for _, accepted in weights.values())

    def surplus(rate: float) -> float:
        return sum(rounds * (mean_acceptance_length(rate, gamma) - 1) for gamma, (rounds, _) in weights.items()) - total

    return increasing_root(surplus, 0.0, 1.0)


def live_policy(spec: PolicySpec, gamma: int, of_rank: Callable[[int], int], round_s: RoundSeconds) -> DraftPolicy:
    """A policy at work, fresh. of_rank: running sequences of one data-parallel rank, by which tables go."""
    if isinstance(spec, ByContext):
        return ContextPolicy(spec)
    if isinstance(spec, AcceptanceWindow):
        return WindowPolicy(spec, gamma)
    if isinstance(spec, GoodputOptimal):
        return GoodputPolicy(spec, gamma, round_s)
    return DraftPolicy(table_of(spec, gamma, of_rank), spec.switch_s)


def table_of(spec: PolicySpec, gamma: int, of_rank: Callable[[int], int]) -> Callable[[int], int]:
    """γ by running sequences of a policy that looks at nothing else."""
    if isinstance(spec, ByBatch):
        return lambda running: spec.tokens_at(of_rank(running))
    if isinstance(spec, OffAbove):
        return lambda running: gamma if of_rank(running) <= spec.batch else 0
    return lambda _: gamma
