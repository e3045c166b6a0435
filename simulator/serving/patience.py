"""Clients that give up: a request that is not answered in time is let go, whether it waits or is being served.

A client goes away at the very instant: an answer whose last token comes then is too late, and a step that starts then runs
without it, as a request that arrives then is seen by it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import simpy

from simulator.serving.clock import Clock
from simulator.serving.instant import GIVES_UP
from simulator.serving.sequence import SequenceState

GiveUp = Callable[[SequenceState], None]


class Patience:
    """Gives up each sequence that is still here `time_out_s` after its arrival. One event at a time waits.

    Raises ValueError unless the time is positive.
    """

    def __init__(self, env: Clock, time_out_s: float):
        if not time_out_s > 0:
            raise ValueError(f"time_out_s must be above 0 (got {time_out_s})")
        self.env, self.time_out_s = env, time_out_s
        self._here: deque[tuple[float, SequenceState, GiveUp]] = deque()  # in order of arrival, and so of giving up
        self._waits = False

    def arrived(self, give_up: GiveUp, sequence: SequenceState) -> None:
        """A client begins to wait; `give_up` is called with the sequence if it waits too long."""
        self._here.append((self.env.now + self.time_out_s, sequence, give_up))
        if not self._waits:
            self._wait()

    def _wait(self) -> None:
        while self._here and self._here[0][1].ended:
            self._here.popleft()
        self._waits = bool(self._here)
        if self._waits:
            self.env.at(self._here[0][0], self._look, GIVES_UP)

    def _look(self, _: simpy.Event) -> None:
        while self._here and self._here[0][0] <= self.env.now:
            sequence, give_up = self._here.popleft()[1:]
            if not sequence.ended:
                give_up(sequence)
        self._wait()
