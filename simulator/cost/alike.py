"""Rounds of sequences that all verify as many drafts: their cost as a function of the sums of their contexts alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from simulator.cost.tape import Tape, added

NamedSeconds = list[tuple[str, Any]]


# New tokens, cached before, prompts finished: as large as the largest steps, and larger than captured graphs.
_SAMPLE_CHUNK = (1 << 20, 1 << 20, 1)


class PromptsBeside:
    """What chunks of prompts add to rounds alike: by a replay where it is one chunk, else by the formulas themselves."""

    def __init__(self, formulas: Callable[..., NamedSeconds]):
        self._formulas = formulas
        self._names: list[str] = []
        self._replay: Callable[..., tuple[Any, ...]] | None = None
        self._recorded = False

    def __call__(
        self, context: float, windowed: float, longest: float, target_s: float, prefill: Sequence[tuple[int, int]],
        prompts_finished: int, **more: Any,
    ) -> NamedSeconds:  # fmt: skip
        if len(prefill) == 1 and not more:
            if not self._recorded:
                self._record(context, windowed, longest, target_s)
            if self._replay is not None:
                seconds = self._replay(context, windowed, longest, target_s, *prefill[0], prompts_finished)
                return list(zip(self._names, seconds, strict=True))
        return self._formulas(context, windowed, longest, target_s, prefill, prompts_finished, **more)

    def _record(self, *rounds: float) -> None:
        self._recorded = True
        tape = Tape((*rounds, *_SAMPLE_CHUNK))
        context, windowed, longest, target_s, new, before, finished = tape.inputs
        try:
            terms = self._formulas(context, windowed, longest, target_s, ((new, before),), finished)
        except TypeError:
            return
        self._names = [name for name, _ in terms]
        self._replay = tape.replay([seconds for _, seconds in terms]).of_numbers


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
