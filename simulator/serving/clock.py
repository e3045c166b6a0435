"""The clock of a simulation: simpy's, which an engine may move on by itself where nothing else happens meanwhile."""

from __future__ import annotations

import simpy


class Clock(simpy.Environment):
    """An event for what others may have to see in its order, none for what they cannot."""

    def moved_on(self, time_s: float) -> bool:
        """Shows `time_s` where nothing is to happen by then; False, and nothing has changed, where something is."""
        if self.peek() <= time_s:
            return False
        self._now = time_s
        return True
