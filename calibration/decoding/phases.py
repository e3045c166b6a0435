"""The phases of decoding, marked where they run, so that their time can be taken without touching the algorithm."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Literal

# prefill: the target over the prompt. decode: a plain step of the target. verify: the target over the drafts.
# draft_prefill: the draft's first pass, over the prompt and the first token. draft: a pass of one token, or a look-up.
# catch_up: a later first pass of a round that also feeds the draft token its last pass never saw.
# sampling: choosing, accepting, cropping.
Phase = Literal["prefill", "decode", "draft_prefill", "catch_up", "draft", "verify", "sampling"]
# Called with the phase and the new tokens per sequence, entered before the work and left after it.
Phases = Callable[[Phase, int], AbstractContextManager[None]]


def no_phases(phase: Phase, tokens: int) -> AbstractContextManager[None]:  # noqa: ARG001  the signature is the interface
    """Marks nothing."""
    return nullcontext()


@dataclass(frozen=True, slots=True)
class Span:
    """One stretch of work: `tokens` new tokens per sequence in `seconds`."""

    phase: Phase
    tokens: int
    seconds: float


@dataclass
class PhaseClock:
    """Records every stretch of work with `clock`, in seconds; pass the object as `phases`.

    The default clock counts the CPU time of this thread, which other processes disturb least; it is right for one thread
    on a CPU only. On an accelerator pass a clock that waits for the device first.
    """

    clock: Callable[[], float] = time.thread_time
    spans: list[Span] = field(default_factory=list)

    @contextmanager
    def _measured(self, phase: Phase, tokens: int) -> Iterator[None]:
        begin = self.clock()
        yield
        self.spans.append(Span(phase, tokens, self.clock() - begin))

    def __call__(self, phase: Phase, tokens: int) -> AbstractContextManager[None]:
        return self._measured(phase, tokens)

    def totals(self) -> dict[str, float]:
        """Seconds by phase."""
        sums: dict[str, float] = {}
        for span in self.spans:
            sums[span.phase] = sums.get(span.phase, 0.0) + span.seconds
        return sums
