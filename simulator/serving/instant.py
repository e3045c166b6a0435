"""What happens at one instant on several replicas, in an order of meaning instead of an order of events.

First requests arrive, caches that were sent come, and clients give up; then steps end; then prompts that were computed for
another engine go there; then users send what follows the answers that they got; then steps begin; last, blocks that were
reserved are told of. So whoever chooses a replica sees the same of all of them whichever engine serves, and a step that begins
now sees all that has been sent to it by now.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import simpy
from simpy.events import NORMAL, URGENT

ARRIVES, LANDS, GIVES_UP = URGENT - 2, URGENT - 1, URGENT  # before steps end, which is NORMAL
COMPUTED = NORMAL + 1
ANSWERED = NORMAL + 2
STEPS_BEGIN = NORMAL + 3
RESERVED = NORMAL + 4


class Instant:
    """Puts off what must not happen before other events of the same time have. `answered` is told of (replica, request id)."""

    def __init__(self, env: simpy.Environment, answered: Callable[[int, int], None]):
        self.env, self.answered = env, answered
        self._put_off: dict[int, list[tuple[int, int, Callable[[], None]]]] = {}

    def over(self, replica: int, request_id: int) -> None:
        """A request has ended with a step that ends now. Users are told replica by replica, and there in the order of ending."""
        self.put_off(ANSWERED, replica, partial(self.answered, replica, request_id))

    def put_off(self, stage: int, replica: int, act: Callable[[], None]) -> None:
        """Acts of one stage happen replica by replica, and there in the order in which they were put off."""
        acts = self._put_off.setdefault(stage, [])
        if not acts:
            self._later(stage).callbacks.append(partial(self._act, stage))
        acts.append((replica, len(acts), act))

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

    def _act(self, stage: int, _: simpy.Event) -> None:
        acts, self._put_off[stage] = sorted(self._put_off[stage], key=lambda each: each[:2]), []
        for _replica, _order, act in acts:
            act()
