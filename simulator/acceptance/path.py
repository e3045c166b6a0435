"""One request's acceptance, looked up by position: what the drafter proposes there and how much of it is accepted.

Randomness belongs to positions of the emitted text, not to rounds: uniform u[t] decides whether the target's token t
agrees with a draft for it. Runs with another γ, another policy, or without speculation thus see the same text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


class AcceptancePath:
    """Pure look-ups; both are filled as arrays, for all positions at once, when a longer or deeper one is first asked."""

    __slots__ = ("_depth", "_flags", "_limits", "_output_tokens", "_positions", "_proposals", "_runs")

    def __init__(self, flags: FlagSource, output_tokens: int, proposals: ProposalSource | None = None):
        self._flags, self._proposals = flags, proposals
        self._output_tokens = max(1, output_tokens)
        self._positions = self._depth = 0  # what the arrays cover so far
        self._runs: list[int] = []
        self._limits: list[int] = []

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

    def round_starts(self, begin: int, end: int, drafted: int) -> Positions | None:
        """Tokens emitted before each round of `drafted` drafts from `begin` on, and after the last one, which reaches `end`.

        None where the drafter may propose fewer than it is asked for.
        """
        if self._proposals is not None:
            return None
        flags = self._flags(end, drafted)
        if flags.ndim == 1:
            return begin + _rounds_along(flags[begin : end + drafted], end - begin, drafted)
        following = (np.arange(1, end + 1) + _runs(flags)).tolist()
        starts, position = [begin], begin
        while position < end:
            position = following[position]
            starts.append(position)
        return np.array(starts)

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


def _rounds_along(flags: Flags, tokens: int, drafted: int) -> Positions:
    """As `round_starts` of a text of which draft and target agree on some tokens, whatever rounds they lie in.

    Behind a token on which they do not a round starts in any case, be it a draft that was rejected or a bonus token. From there
    on each takes 1 + `drafted` tokens, up to the next such token.
    """
    starts = np.arange(len(flags) + 1, dtype=np.int32)
    since_miss = np.zeros(len(flags) + 1, dtype=np.int32)
    np.multiply(starts[1:], ~flags, out=since_miss[1:])
    np.maximum.accumulate(since_miss, out=since_miss)
    np.subtract(starts, since_miss, out=since_miss)
    np.remainder(since_miss, 1 + drafted, out=since_miss)
    (rounds,) = (since_miss == 0).nonzero()
    found: Positions = rounds[: 1 + rounds.searchsorted(tokens)]
    return found


def overlapping(row: npt.NDArray[Any], positions: int, depth: int) -> npt.NDArray[Any]:
    """values[t, d] = row[t + d] of a contiguous row, which is shared: to be read only."""
    return np.ndarray((positions, depth), row.dtype, row, strides=(row.itemsize, row.itemsize))


def drawn_proposals(seed: int, request_id: int, rates: Callable[[int], npt.NDArray[np.float64]]) -> ProposalSource | None:
    """A full proposal or none at each position, by its own uniforms; `rates(n)` are the first n positions' probabilities."""
    uniforms = UniformStream(seed, b"acceptance-proposal", request_id)
    return lambda positions: np.where(uniforms.first(positions) < rates(positions), NO_LIMIT, 0)
