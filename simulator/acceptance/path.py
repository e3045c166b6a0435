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
FlagSource = Callable[[int, int], Flags]  # (positions, depth) → flags[t, d]: draft d of a round that starts at t agrees
ProposalSource = Callable[[int], npt.NDArray[np.int64]]  # positions → most drafts proposed in a round that starts there
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

    def runs(self, drafted: int) -> list[int] | None:
        """Drafts in a row that would be accepted after each number of emitted tokens, counted at least up to `drafted`.

        None where the drafter may propose fewer than it is asked for.
        """
        if self._proposals is not None:
            return None
        if drafted > self._depth or self._output_tokens > self._positions:
            self._fill(self._output_tokens - 1, drafted)
        return self._runs

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
        unbroken = flags[:, 0]
        runs = unbroken.astype(np.int64)
        for draft in range(1, self._depth):
            unbroken = unbroken & flags[:, draft]
            runs += unbroken
        self._runs = runs.tolist()

    def _covering(self, position: int) -> int:
        """How many positions to fill: the request's own, or twice as many as needed past them."""
        return self._output_tokens if position < self._output_tokens else 2 * (position + 1)


def windows(flags: Flags, positions: int, depth: int) -> Flags:
    """flags[t, d] = flags[t + d] of a row of at least positions + depth - 1 flags: the depth does not matter."""
    return overlapping(np.ascontiguousarray(flags), positions, depth)


def overlapping(row: npt.NDArray[Any], positions: int, depth: int) -> npt.NDArray[Any]:
    """values[t, d] = row[t + d] of a contiguous row, which is shared: to be read only."""
    return np.ndarray((positions, depth), row.dtype, row, strides=(row.itemsize, row.itemsize))


def drawn_proposals(seed: int, request_id: int, rates: Callable[[int], npt.NDArray[np.float64]]) -> ProposalSource | None:
    """A full proposal or none at each position, by its own uniforms; `rates(n)` are the first n positions' probabilities."""
    uniforms = UniformStream(seed, b"acceptance-proposal", request_id)
    return lambda positions: np.where(uniforms.first(positions) < rates(positions), NO_LIMIT, 0)
