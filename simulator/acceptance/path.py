"""One request's acceptance, looked up by position: what the drafter proposes there and how much of it is accepted.

Randomness belongs to positions of the emitted text, not to rounds: uniform u[t] decides whether the target's token t
agrees with a draft for it. Runs with another γ, another policy, or without speculation thus see the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simulator.acceptance.streams import UniformStream

Flags = npt.NDArray[np.bool_]
Positions = npt.NDArray[np.int64]
FlagSource = Callable[[int, int], Flags]
"""(positions, depth) → flags[t, d]: draft d of a round that starts at t agrees. Where it does not matter how deep in a round a
token lies, flags[t] of `positions + depth` tokens."""
ProposalSource = Callable[[int], Positions]
"""positions → most drafts proposed in a round that starts there."""
NO_LIMIT = 1 << 30
FIRST_ROUND = 1  # the first token comes with the prompt


class Rounds(NamedTuple):
    """Consecutive rounds of a text: the tokens emitted before each and, were the text longer, after the last; and the `tokens`
    that each emits, the last no more than there are.
    """

    starts: Positions
    tokens: Positions


class AcceptancePath:
    """Pure look-ups; both are filled as arrays, for all positions at once, when a longer or deeper one is first asked."""

    __slots__ = ("_depth", "_flags", "_limits", "_output_tokens", "_positions", "_proposals", "_runs", "_texts")

    def __init__(self, flags: FlagSource, output_tokens: int, proposals: ProposalSource | None = None):
        self._flags, self._proposals = flags, proposals
        self._output_tokens = max(1, output_tokens)
        self._positions = self._depth = 0  # what the arrays cover so far
        self._runs: Sequence[int] = ()
        self._limits: Sequence[int] = ()
        self._texts: tuple[Texts, int] | None = None

    def changed(self, change: Callable[[Flags, int, int], Flags]) -> AcceptancePath:
        """The same proposals with other flags: `change(flags, positions, depth)`."""
        own = self._flags
        return AcceptancePath(
            lambda positions, depth: change(own(positions, depth), positions, depth), self._output_tokens, self._proposals
        )

    def accepted(self, position: int, drafted: int) -> int:
        """How many of `drafted` drafts are accepted in a round that starts after `position` emitted tokens."""
        if drafted > self._depth or position >= self._positions:
            self._fill(position, drafted)
        run = self._runs[position]
        return run if run < drafted else drafted

    def all_rounds(self, begin: int, end: int, drafted: int) -> Rounds | None:
        """All rounds of `drafted` drafts from `begin` emitted tokens on, of which the last reaches `end`.

        None where the drafter may propose fewer than it is asked for.
        """
        if self._proposals is not None:
            return None
        if self._texts is not None and end == self._output_tokens:
            texts, place = self._texts
            found = texts.rounds(place, drafted)
            if begin == FIRST_ROUND:
                return found
            index = found.starts.searchsorted(begin)
            if found.starts[index] == begin:
                return Rounds(found.starts[index:], found.tokens[index:])
        flags = self._flags(end, drafted)
        return _walked(flags, begin) if flags.ndim == 2 else _each_along([flags[begin:]], begin, drafted)[0]

    def proposed(self, position: int, num_speculative_tokens: int) -> int:
        """How many drafts, at most γ, the drafter proposes after `position` emitted tokens; 0 where it finds none."""
        if self._proposals is None:
            return num_speculative_tokens
        if position >= len(self._limits):
            self._limits = self._proposals(self._covering(position)).tolist()
        limit = self._limits[position]
        return limit if limit < num_speculative_tokens else num_speculative_tokens

    def _fill(self, position: int, drafted: int) -> None:
        if position < 0 or drafted < 0:
            raise ValueError(f"position and drafted must be at least 0 (got {position}, {drafted})")
        self._positions, self._depth = max(self._positions, self._covering(position)), max(self._depth, drafted, 1)
        flags = self._flags(self._positions, self._depth)
        self._runs = _runs(flags if flags.ndim == 2 else overlapping(flags, self._positions, self._depth)).tolist()

    def _covering(self, position: int) -> int:
        """How many positions to fill: the request's own, or twice as many as needed past them."""
        return self._output_tokens if position < self._output_tokens else 2 * (position + 1)


def _runs(flags: Flags) -> Positions:
    """Drafts in a row that would be accepted in a round from each position."""
    unbroken = flags[:, 0]
    runs = unbroken.astype(np.int64)
    for draft in range(1, flags.shape[1]):
        unbroken = unbroken & flags[:, draft]
        runs += unbroken
    return runs


def _walked(flags: Flags, begin: int) -> Rounds:
    """The rounds from `begin` on where it matters how deep in a round a token lies, one after the other."""
    following = (np.arange(1, len(flags) + 1) + _runs(flags)).tolist()
    starts = [begin]
    while starts[-1] < len(flags):
        starts.append(following[starts[-1]])
    return Rounds(np.array(starts), np.diff(np.minimum(starts, len(flags))))


def _starts_along(flags: Flags, begins: Positions, drafted: int) -> Positions:
    """Where rounds start along texts of which draft and target agree on some tokens, whatever rounds they lie in.

    Behind a token on which they do not a round starts in any case, be it a draft that was rejected or a bonus token. From there
    on each takes 1 + `drafted` tokens, up to the next such token. begins: where texts begin.
    """
    sure = np.empty_like(flags)
    np.logical_not(flags[:-1], out=sure[1:])
    sure[begins] = True
    found: Positions = sure.nonzero()[0]
    rounds = np.diff(found, append=len(flags))  # tokens up to the next sure start
    rounds += drafted
    rounds //= 1 + drafted
    before = np.cumsum(rounds)
    before -= rounds
    starts = np.repeat(found - (1 + drafted) * before, rounds)
    starts += np.arange(0, (1 + drafted) * len(starts), 1 + drafted)
    return starts


class Texts:
    """The texts of several requests, whose rounds are found together once those of one are asked for.

    Their paths hold it, not it them: no reference cycle keeps a path whose request is over.
    """

    def __init__(self, paths: Iterable[AcceptancePath]):
        found_at_once = [path for path in paths if path._proposals is None]
        self._texts = [(path._flags, path._output_tokens) for path in found_at_once]
        self._rounds: dict[int, list[Rounds]] = {}  # by drafts of a round
        for place, path in enumerate(found_at_once):
            path._texts = self, place

    def rounds(self, place: int, drafted: int) -> Rounds:
        """As `AcceptancePath.all_rounds` of one of them, from the first round to the end."""
        found = self._rounds.get(drafted)
        if found is None:
            flags = [flags(output_tokens, drafted) for flags, output_tokens in self._texts]
            along = iter(_each_along([text[FIRST_ROUND:] for text in flags if text.ndim == 1], FIRST_ROUND, drafted))
            found = [next(along) if text.ndim == 1 else _walked(text, FIRST_ROUND) for text in flags]
            self._rounds[drafted] = found
        return found[place]


# Stands behind each of several texts, so that where one ends is not where the next begins.
_BEHIND = np.zeros(1, dtype=np.bool_)


def _each_along(texts: Sequence[Flags], begin: int, drafted: int) -> list[Rounds]:
    """The rounds of each text, the first after `begin` tokens of it; its last `drafted` tokens lie past its end."""
    if not texts:
        return []
    lengths = np.array([len(text) for text in texts])
    upto = np.cumsum(lengths + 1)
    begins = upto - lengths - 1
    starts = _starts_along(np.concatenate([part for text in texts for part in (text, _BEHIND)]), begins, drafted)
    first, last = starts.searchsorted(begins), starts.searchsorted(begins + lengths - drafted)
    counts = np.diff(first, append=len(starts))
    starts -= np.repeat(begins - begin, counts)
    tokens = np.diff(np.minimum(starts, np.repeat(begin + lengths - drafted, counts)))
    return [Rounds(starts[i : j + 1], tokens[i:j]) for i, j in zip(first.tolist(), last.tolist(), strict=True)]


def overlapping(row: npt.NDArray[Any], positions: int, depth: int) -> npt.NDArray[Any]:
    """values[t, d] = row[t + d] of a contiguous row, which is shared: to be read only."""
    return np.ndarray((positions, depth), row.dtype, row, strides=(row.itemsize, row.itemsize))


def drawn_proposals(seed: int, request_id: int, rates: Callable[[int], npt.NDArray[np.float64]]) -> ProposalSource | None:
    """A full proposal or none at each position, by its own uniforms; `rates(n)` are the first n positions' probabilities."""
    uniforms = UniformStream(seed, b"acceptance-proposal", request_id)
    return lambda positions: np.where(uniforms.first(positions) < rates(positions), NO_LIMIT, 0)
