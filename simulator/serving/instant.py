"""What happens at one instant on several replicas, in an order of meaning instead of an order of events.

First requests arrive and clients give up; then steps end; then users send what follows the answers that they got; last, steps
begin. So whoever chooses a replica sees the same of all of them whichever engine serves, and a step that begins now sees all that
has been sent to it by now.
"""

from __future__ import annotations

from collections.abc import Callable

import simpy
from simpy.events import NORMAL

ANSWERED = NORMAL + 1
STEPS_BEGIN = NORMAL + 2


class Instant:
    """Puts off what must not happen before other events of the same time have. `answered` is told of (replica, request id)."""

    def __init__(self, env: simpy.Environment, answered: Callable[[int, int], None]):
        self.env, self.answered = env, answered
        self._over: list[tuple[int, int, int]] = []

    def over(self, replica: int, request_id: int) -> None:
        """A request has ended with a step that ends now. Users are told replica by replica, and there in the order of ending."""
        if not self._over:
            self._later(ANSWERED).callbacks.append(self._tell)
        self._over.append((replica, len(self._over), request_id))

    @property
    def nothing_follows(self) -> bool:
        """Whether nothing else happens now, so that a step may begin at once."""
        return self.env.peek() > self.env.now

    def steps_begin(self) -> simpy.Event:
        """Happens when steps may begin."""
        return self._later(STEPS_BEGIN)

    def _later(self, priority: int) -> simpy.Event:
        event = simpy.Event(self.env)
        event._ok, event._value = True, None
        self.env.schedule(event, priority)  # type: ignore[arg-type]
        return event

    def _tell(self, _: simpy.Event) -> None:
        over, self._over = sorted(self._over), []
        for replica, _order, request_id in over:
            self.answered(replica, request_id)
