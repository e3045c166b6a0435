"""The clock of a simulation: simpy's, which an engine may move on by itself where nothing else happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush
from operator import attrgetter

import simpy
from simpy.events import NORMAL


class Happening(simpy.Event):
    """Calls `act` with itself when it is due.

    `foreseen`: whoever it reaches has counted on it, so that nothing else is put off or brought forward by it.
    """

    _ok, _value = True, None

    def __init__(self, env: simpy.Environment, act: Callable[[simpy.Event], None], foreseen: bool):
        self.env, self.callbacks, self.foreseen = env, [act], foreseen


class Clock(simpy.Environment):
    """An event for what others may have to see in its order, none for what they cannot."""

    now = property(attrgetter("_now"))  # asked for all the time: simpy's own takes twice as long

    def at(self, time_s: float, act: Callable[[simpy.Event], None], order: int = NORMAL, foreseen: bool = False) -> simpy.Event:
        """Lets `act` happen at exactly this time, which a delay may miss by rounding. `order`: a stage of `instant`, or with the
        ends of steps."""
        event = Happening(self, act, foreseen)
        heappush(self._queue, (time_s, order, next(self._eid), event))  # type: ignore[misc]
        return event

    def moved_on(self, time_s: float) -> bool:
        """Shows `time_s`, and foreseen arrivals have happened by then; False where something else comes first, and is next."""
        queue = self._queue
        while queue and queue[0][0] <= time_s:
            event = queue[0][3]
            if not (isinstance(event, Happening) and event.foreseen):
                return False
            self.step()
        self._now = time_s
        return True
