"""The clock of a simulation: simpy's, which an engine may move on by itself where nothing else happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush
from operator import attrgetter

import simpy
from simpy.events import NORMAL

from simulator.serving.instant import ARRIVES


class Arrival(simpy.Event):
    """Calls `release()` after `delay_s`, before any step that ends or starts at that instant (`order`: stages of `instant`).

    `foreseen`: whoever it reaches has counted on it, so that nothing else is put off or brought forward by it.
    """

    def __init__(
        self,
        env: simpy.Environment,
        delay_s: float,
        release: Callable[[], object],
        foreseen: bool = False,
        order: int = ARRIVES,
    ):
        super().__init__(env)
        self._ok, self._value, self.foreseen = True, release, foreseen
        self.callbacks.append(self._happen)
        env.schedule(self, order, delay_s)  # type: ignore[arg-type]

    def _happen(self, _: simpy.Event) -> None:
        self._value()


class Clock(simpy.Environment):
    """An event for what others may have to see in its order, none for what they cannot."""

    now = property(attrgetter("_now"))  # asked for all the time: simpy's own takes twice as long

    def at(self, time_s: float, act: Callable[[simpy.Event], None]) -> simpy.Event:
        """Calls `act` with the returned event at exactly this time, which a delay may miss by rounding."""
        event = simpy.Event(self)
        event._ok, event._value = True, None
        event.callbacks.append(act)
        heappush(self._queue, (time_s, NORMAL, next(self._eid), event))
        return event

    def moved_on(self, time_s: float) -> bool:
        """Shows `time_s`, and foreseen arrivals have happened by then; False where something else comes first, and is next."""
        queue = self._queue
        while queue and queue[0][0] <= time_s:
            event = queue[0][3]
            if not (isinstance(event, Arrival) and event.foreseen):
                return False
            self.step()
        self._now = time_s
        return True
