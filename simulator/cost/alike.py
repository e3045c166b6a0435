"""Rounds of sequences that all verify as many drafts: their cost as a function of the sums of their contexts alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from simulator.cost.tape import Tape, added

NamedSeconds = list[tuple[str, Any]]


class AlikeRounds:
    """The cost of such rounds for a fixed number of sequences and drafts.

    Every function begins with the cached tokens of all sequences together, the same with each counted up to the window, and those
    of the longest. `one` and `many`: (seconds, the target's part of them as chunks of prompts are priced against it, …) of one
    round from numbers, and of many from arrays. `prompts(…, target_s, prefill, prompts_finished)`: the terms that chunks add.
    """

    __slots__ = ("_names", "many", "one", "prompts")

    def __init__(self, tape: Tape, terms: Sequence[tuple[str, Any]], target_s: Any, prompts: Callable[..., NamedSeconds]):
        seconds = [seconds for _, seconds in terms]
        self.one, self.many = tape.replay([added(seconds), target_s, *seconds])
        self._names = [name for name, _ in terms]
        self.prompts = prompts

    def terms(self, context: Any, windowed: Any, longest: Any) -> NamedSeconds:
        """The named parts of many rounds; those that do not depend on contexts are one number for all of them."""
        return list(zip(self._names, self.many(context, windowed, longest)[2:], strict=True))
