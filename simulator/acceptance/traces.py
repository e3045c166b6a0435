"""Acceptance traces: recorded once per prompt, replayed exactly at any γ.

Let x be the target's own output, p_t its distribution at position t and q_t the drafter's, both given the true prefix.
Rejection sampling accepts a draft y with min(1, p_t(y) / q_t(y)) and emits a p_t-distributed token either way, so
P(accepted and emitted = x) = min(p_t(x), q_t(x)). Given the emitted text, position t would therefore be accepted with

    a_t = min(1, q_t(x_t) / p_t(x_t)),   independently over t:

one target generation and one teacher-forced draft pass give everything. A greedy pair has a_t of 0 or 1. Drafters whose
input degrades along the chain (EAGLE, MTP, block drafters) have a row a[t, depth] for a round that starts at t.
The arrays: `acceptance` (T,) or (T, depth) in 0..1, all prompts in a row, entries of a row that reach past the end of its
prompt 0; `lengths` (prompts,) tokens per prompt; optional `proposed` (T,) drafts the drafter offers in a round that starts
there; optional `category` (prompts,) text; optional `confidence`, shaped as `acceptance`: what the drafter gives its likeliest
token. `trace_files` writes and reads them.

Rules that end a round's drafting at a token the drafter doubts look at tokens not yet verified. What they emit is replayed
exactly: up to and with its first mismatch a round drafts after the true text, and what lies behind does not count. How many
drafts they spend is approximate where `confidence` is one number a token, which past the mismatch is not the draft's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.acceptance.laws import AcceptanceLaw
from simulator.acceptance.path import AcceptancePath, Flags, overlapping
from simulator.acceptance.rates import Rates
from simulator.acceptance.streams import UniformStream

Counts = npt.NDArray[np.int64]
_ENDLESS = 1 << 20  # drafts: more than any round has


@dataclass(frozen=True, slots=True)
class _Replay:
    """Expected counts of replaying every prompt once; attempted and accepted by depth, shape (γ,)."""

    rounds: float
    proposals: float
    drafted: float
    attempted: Rates
    accepted: Rates


@dataclass(frozen=True, slots=True, eq=False)
class TraceAcceptance(AcceptanceLaw):
    """Replay of a trace. A request takes a prompt at random, and a further one whenever its output is longer.

    Its rates are those of replaying every prompt once, from the token after the one that its prefill emits; a draft past the
    end of its prompt counts as drafted, never as tried. Raises ValueError for arrays that do not fit together.
    """

    acceptance: Rates
    lengths: Counts
    proposed: Counts | None = None
    category: npt.NDArray[np.str_] | None = None
    confidence: Rates | None = None
    _replays: dict[int, _Replay] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        found = list(faults(self.acceptance, self.lengths, self.proposed, self.category, self.confidence))
        if found:
            raise ValueError("; ".join(f"{array} {must}" for array, must in found))

    @property
    def measured_up_to(self) -> int | None:
        """The recorded depth; None where acceptance does not depend on it."""
        return None if self.acceptance.ndim == 1 else int(self.acceptance.shape[1])

    def conditional_rates(self, num_speculative_tokens: int) -> Rates:
        replay = self._replay(num_speculative_tokens)
        rates: Rates = np.divide(
            replay.accepted, replay.attempted, out=np.zeros(num_speculative_tokens), where=replay.attempted > 0
        )
        return rates

    def proposal_share(self, num_speculative_tokens: int) -> float:
        replay = self._replay(num_speculative_tokens)
        return replay.proposals / replay.rounds if replay.rounds else 1.0

    def mean_acceptance_length_of_proposals(self, num_speculative_tokens: int) -> float:
        replay = self._replay(num_speculative_tokens)
        return 1 + float(replay.accepted.sum()) / replay.proposals if replay.proposals else 1.0

    def draft_acceptance_rate(self, num_speculative_tokens: int) -> float:
        replay = self._replay(num_speculative_tokens)
        return float(replay.accepted.sum()) / replay.drafted if replay.drafted else 0.0

    def category_names(self) -> tuple[str, ...]:
        return () if self.category is None else tuple(sorted(set(self.category.tolist())))

    def of_category(self, category: str) -> TraceAcceptance:
        """The prompts of one category. Raises KeyError where there are none."""
        if self.category is None or not (kept := self.category == category).any():
            raise KeyError(category)
        tokens = np.repeat(kept, self.lengths)
        proposed = None if self.proposed is None else self.proposed[tokens]
        confidence = None if self.confidence is None else self.confidence[tokens]
        return TraceAcceptance(
            self.acceptance[tokens], self.lengths[kept], proposed, self.category[kept], confidence, note=self.note
        )

    def stopping_below(self, confidence: float) -> TraceAcceptance:
        """The trace of a drafter that ends its proposal before the first token it gives less than `confidence`.

        τ is exact; drafts beyond a first mismatch are approximate (see above). At the end of a prompt, where nobody knows what
        would have followed, a proposal under way goes on. Raises ValueError where the trace has no confidence.
        """
        if self.confidence is None:
            raise ValueError("this trace has no confidence")
        sure = self.confidence >= confidence
        limits = _leading(sure) if sure.ndim == 2 else _run_lengths(sure, self.lengths)
        limits = limits if self.proposed is None else np.minimum(limits, self.proposed)
        return TraceAcceptance(self.acceptance, self.lengths, limits, self.category, self.confidence, note=self.note)

    def prompts(self) -> Iterator[TraceAcceptance]:
        """Each prompt as a trace of its own."""
        for last, length in zip(np.cumsum(self.lengths).tolist(), self.lengths.tolist(), strict=True):
            tokens = slice(last - length, last)
            proposed = None if self.proposed is None else self.proposed[tokens]
            confidence = None if self.confidence is None else self.confidence[tokens]
            yield TraceAcceptance(self.acceptance[tokens], np.array([length]), proposed, confidence=confidence)

    def rounds(self, num_speculative_tokens: int) -> float:
        """Expected rounds of replaying every prompt once."""
        return self._replay(num_speculative_tokens).rounds

    def drafts_per_round(self, num_speculative_tokens: int) -> float:
        """Mean length of a proposal over all rounds, those without one included."""
        replay = self._replay(num_speculative_tokens)
        return replay.drafted / replay.rounds if replay.rounds else 0.0

    def path(self, request_id: int, output_tokens: int, seed: int, *, prompt_tokens: int = 0) -> AcceptancePath:  # noqa: ARG002
        uniforms = UniformStream(seed, b"acceptance", request_id)
        tokens = _PromptStream(self.lengths, seed, request_id)

        def flags(positions: int, depth: int) -> Flags:
            if self.acceptance.ndim == 1:
                rates = self.acceptance[tokens.first(positions + depth)]
                agree: Flags = uniforms.first(positions + depth) < rates
                return agree
            self._check_depth(depth)
            drawn = overlapping(uniforms.first(positions + depth - 1), positions, depth)
            below: Flags = drawn < self.acceptance[tokens.first(positions), :depth]
            return below

        proposed = self.proposed
        if proposed is None:
            return AcceptancePath(flags, output_tokens)
        return AcceptancePath(flags, output_tokens, lambda positions: proposed[tokens.first(positions)])

    def _check_depth(self, depth: int) -> None:
        if self.acceptance.ndim == 2 and depth > self.acceptance.shape[1]:
            raise ValueError(f"this trace was recorded to {self.acceptance.shape[1]} drafts (got {depth})")

    def _replay(self, num_speculative_tokens: int) -> _Replay:
        self._check_depth(num_speculative_tokens)
        if num_speculative_tokens not in self._replays:
            self._replays[num_speculative_tokens] = self._replayed(num_speculative_tokens)
        return self._replays[num_speculative_tokens]

    def _replayed(self, num_speculative_tokens: int) -> _Replay:
        """Expected counts, exactly: the probability that a round starts at t is carried forward through each prompt."""
        totals = np.zeros(3)  # rounds, proposals, drafted
        attempted, accepted = np.zeros(num_speculative_tokens), np.zeros(num_speculative_tokens)
        for last, length in zip(np.cumsum(self.lengths).tolist(), self.lengths.tolist(), strict=True):
            starts = np.zeros(length + 1)
            starts[1] = 1.0
            for t in range(1, length):
                if starts[t] == 0:
                    continue
                offered = self._offered(last - length + t, num_speculative_tokens)
                tried = min(offered, length - t - 1)
                reached = starts[t] * np.cumprod(np.concatenate(([1.0], self.row(last - length + t, tried))))
                totals += starts[t] * np.array([1.0, offered > 0, offered])
                attempted[:tried] += reached[:-1]
                accepted[:tried] += reached[1:]
                starts[t + 1 : t + tried + 2] += reached - np.concatenate((reached[1:], [0.0]))
        rounds, proposals, drafted = totals.tolist()
        return _Replay(rounds, proposals, drafted, attempted, accepted)

    def _offered(self, token: int, num_speculative_tokens: int) -> int:
        return num_speculative_tokens if self.proposed is None else min(num_speculative_tokens, int(self.proposed[token]))

    def row(self, token: int, tried: int) -> Rates:
        """Acceptance of the drafts of a round that starts at `token`."""
        return self.acceptance[token : token + tried] if self.acceptance.ndim == 1 else self.acceptance[token, :tried]


def _leading(flags: Flags) -> Counts:
    """How many flags a row begins with."""
    counted: Counts = np.cumprod(flags, axis=1).sum(axis=1)
    return counted


def _run_lengths(flags: Flags, lengths: Counts) -> Counts:
    """How many flags in a row begin at each token; a run that reaches the end of its prompt has none."""
    found = np.zeros(len(flags), dtype=np.int64)
    for last, length in zip(np.cumsum(lengths).tolist(), lengths.tolist(), strict=True):
        run = _ENDLESS
        for token in range(last - 1, last - length - 1, -1):
            found[token] = run = run + 1 if flags[token] else 0
    return found


class _PromptStream:
    """Indices into a trace: prompt after prompt, each drawn uniformly from the request's own stream."""

    __slots__ = ("_ends", "_generator", "_lengths", "_tokens")

    def __init__(self, lengths: Counts, seed: int, request_id: int):
        self._lengths, self._ends = lengths, np.cumsum(lengths)
        self._generator = np.random.default_rng([seed, *b"acceptance-trace", request_id])
        self._tokens: Counts = np.empty(0, dtype=np.int64)

    def first(self, count: int) -> Counts:
        while len(self._tokens) < count:
            prompt = int(self._generator.integers(len(self._lengths)))
            drawn = np.arange(self._ends[prompt] - self._lengths[prompt], self._ends[prompt])
            self._tokens = np.concatenate((self._tokens, drawn))
        return self._tokens[:count]


def faults(
    acceptance: npt.NDArray[Any],
    lengths: npt.NDArray[Any],
    proposed: npt.NDArray[Any] | None,
    category: npt.NDArray[Any] | None,
    confidence: npt.NDArray[Any] | None = None,
) -> Iterator[tuple[str, str]]:
    """(array, what it must be) for everything that is wrong with a trace."""
    if acceptance.ndim not in (1, 2) or acceptance.dtype.kind not in "fiub" or acceptance.size == 0:
        yield "acceptance", "must be numbers, one per token or one row of depths per token"
        return
    if not (np.all(acceptance >= 0) and np.all(acceptance <= 1)):
        yield "acceptance", "must be between 0 and 1 throughout"
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or lengths.size == 0 or lengths.min() < 1:
        yield "lengths", "must be whole numbers of at least 1, one per prompt"
        return
    if lengths.sum() != len(acceptance):
        yield "lengths", f"must add up to the {len(acceptance)} tokens of acceptance (got {lengths.sum()})"
    elif acceptance.ndim == 2 and _past_end(acceptance, lengths).any():
        yield "acceptance", "must be 0 where a row reaches past the end of its prompt"
    if proposed is not None and (proposed.shape != acceptance.shape[:1] or proposed.dtype.kind not in "iu" or proposed.min() < 0):
        yield "proposed", "must be whole numbers of at least 0, one per token"
    if category is not None and (category.shape != lengths.shape or category.dtype.kind != "U"):
        yield "category", "must be text, one per prompt"
    if confidence is not None and (confidence.shape != acceptance.shape or confidence.dtype.kind != "f"):
        yield "confidence", "must be numbers in the shape of acceptance"
    elif confidence is not None and not (np.all(confidence >= 0) and np.all(confidence <= 1)):
        yield "confidence", "must be between 0 and 1 throughout"


def _past_end(acceptance: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The entries of rows that belong to tokens after the end of their prompt."""
    left = np.concatenate([np.arange(length, 0, -1) for length in lengths])
    entries: npt.NDArray[Any] = acceptance[np.arange(acceptance.shape[1]) >= left[:, None]]
    return entries
