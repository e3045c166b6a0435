"""Rounds of sequences that all verify as many drafts: their cost as a function of the sums of their contexts alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

from simulator.cost.tape import Tape, added

NamedSeconds = list[tuple[str, Any]]


# New tokens and cached before of a chunk that is larger than any captured graph.
_SAMPLE_CHUNK = (1 << 20, 1 << 20)
# Recording takes as long as asking the formulas some four times.
_USES_BEFORE_RECORDING = 4


class PromptsBeside:
    """What chunks of prompts add to rounds alike of any number of sequences: by the formulas, or by a replay where as many chunks
    come often."""

    def __init__(self, formulas: Callable[..., NamedSeconds]):
        self._formulas = formulas
        self._uses: Counter[tuple[int, bool]] = Counter()  # by number of chunks, and whether any sequence decodes
        self._replays: dict[tuple[int, bool], tuple[list[str], Callable[..., tuple[Any, ...]]] | None] = {}

    def __call__(
        self, sequences: int, context: float, windowed: float, longest: float, target_s: float,
        prefill: Sequence[tuple[int, int]], prompts_finished: int, **more: Any,
    ) -> NamedSeconds:  # fmt: skip
        beside = sequences, context, windowed, longest, target_s, prompts_finished
        if not more:
            kind = len(prefill), sequences > 0
            found = self._replays.get(kind)
            if found is not None:
                names, replay = found
                return list(zip(names, replay(*beside, *chain(*prefill)), strict=True))
            self._uses[kind] += 1
            if self._uses[kind] == _USES_BEFORE_RECORDING:
                self._replays[kind] = self._recorded(len(prefill), beside)
        return self._formulas(*beside, prefill, **more)

    def _recorded(self, chunks: int, sample: Sequence[float]) -> tuple[list[str], Callable[..., tuple[Any, ...]]] | None:
        """Names of the terms and their seconds as a function; None where a formula must know its numbers."""
        tape = Tape((*sample, *(_SAMPLE_CHUNK * chunks)))
        beside, numbers = tape.inputs[: len(sample)], tape.inputs[len(sample) :]
        sequences = beside[0] if sample[0] else 0
        try:
            terms = self._formulas(sequences, *beside[1:], tuple(zip(numbers[::2], numbers[1::2], strict=True)))
        except TypeError:
            return None
        return [name for name, _ in terms], tape.replay([seconds for _, seconds in terms]).of_numbers


class AlikeRounds:
    """The cost of such rounds for a fixed number of sequences and drafts.

    Every function begins with the cached tokens of all sequences together, the same with each counted up to the window, and
    those of the longest. `one`: (seconds, the target's part of them as chunks of prompts are priced against it, …) of one round
    from numbers; `many`: the seconds of many from arrays; `each`: those of one after the other. `prompts(…, target_s, prefill,
    prompts_finished)`: the terms that chunks add.
    """

    def __init__(self, tape: Tape, terms: Sequence[tuple[str, Any]], target_s: Any, prompts: Callable[..., NamedSeconds]):
        seconds = [seconds for _, seconds in terms]
        self._replay = tape.replay([added(seconds), target_s, *seconds])
        self._names = [name for name, _ in terms]
        self.one, self.prompts = self._replay.of_numbers, prompts

    @cached_property
    def many(self) -> Callable[..., Any]:
        return self._replay.first_of_arrays

    @cached_property
    def each(self) -> Callable[[Iterable[Sequence[Any]]], list[Any]]:
        return self._replay.first_of_each

    def terms(self, context: Any, windowed: Any, longest: Any) -> NamedSeconds:
        """The named parts of many rounds; those that do not depend on contexts are one number for all of them."""
        return list(zip(self._names, self._replay.of_arrays(context, windowed, longest)[2:], strict=True))
