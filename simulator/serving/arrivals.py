"""When requests reach the engine: at their own times (open loop), or as users become free (closed loop).

Ties are settled by meaning: an arrival is an urgent event, so a request that arrives at time t is seen by a step that
starts at t, whichever event was scheduled first. Requests that arrive together come in the order of their ids.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable

import simpy
from simpy.events import URGENT

from simulator.workload import Request

Submit = Callable[[Request], bool]  # False: rejected


class Arrival(simpy.Event):
    """Calls `release()` after `delay_s`, before any step that starts at that instant."""

    def __init__(self, env: simpy.Environment, delay_s: float, release: Callable[[], object]):
        super().__init__(env)
        self._ok, self._value = True, release
        self.callbacks.append(self._happen)
        env.schedule(self, URGENT, delay_s)

    def _happen(self, _: simpy.Event) -> None:
        self._value()


def delay_until(time_s: float, now_s: float) -> float:
    """A delay after which a clock at `now_s` shows `time_s`, or by rounding the number before it: the next delay is then exact.

    >>> delay_until(0.3, 0.1) + 0.1
    0.3
    """
    delay_s = time_s - now_s
    return delay_s if now_s + delay_s <= time_s else math.nextafter(delay_s, 0.0)


class OpenLoop:
    """Requests arrive at `arrival_s`, whatever the engine does. Make it at time 0; one event at a time waits for the next."""

    def __init__(self, env: simpy.Environment, requests: Iterable[Request], submit: Submit):
        self.env, self.submit = env, submit
        self._pending = iter(sorted(requests, key=lambda request: (request.arrival_s, request.request_id)))
        self._next = next(self._pending, None)
        self._wait()

    def _wait(self) -> None:
        if self._next is not None:
            Arrival(self.env, delay_until(self._next.arrival_s, self.env.now), self._arrive)

    def _arrive(self) -> None:
        while self._next is not None and self._next.arrival_s <= self.env.now:
            self.submit(self._next)
            self._next = next(self._pending, None)
        self._wait()


class ClosedLoop:
    """`users` users share the list of requests; each sends the next one `think_time_s` after its last was answered.

    A rejected request counts as answered at once. Raises ValueError for fewer than one user or a negative think time.
    """

    def __init__(self, env: simpy.Environment, requests: Iterable[Request], submit: Submit, users: int, think_time_s: float):
        if users < 1 or think_time_s < 0:
            raise ValueError(f"must have users at least 1 (got {users}) and think_time_s at least 0 (got {think_time_s})")
        self.env, self.submit, self.think_time_s = env, submit, think_time_s
        self.pending = deque(sorted(requests, key=lambda request: request.request_id))
        for _ in range(min(users, len(self.pending))):
            Arrival(env, 0.0, self._send)

    def request_done(self) -> None:
        """One user is free. Without think time its next request is seen by the step that starts now."""
        if self.think_time_s > 0:
            Arrival(self.env, self.think_time_s, self._send)
        else:
            self._send()

    def _send(self) -> None:
        while self.pending:
            if self.submit(self.pending.popleft()):
                return
            if self.think_time_s > 0:
                Arrival(self.env, self.think_time_s, self._send)
                return
