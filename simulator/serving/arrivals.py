"""When requests reach the engine: at their own times (open loop), or as users become free (closed loop).

In both, a request may be a later turn of a session: it comes when its user has read the answer to the turn before. A turn that
was rejected, or that its user gave up, counts as answered then.

Ties are settled by meaning (`instant`): a request that arrives at time t is seen by a step that starts at t, whichever event was
scheduled first. Requests that arrive together come in the order of their ids.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter

import simpy

from simulator.serving.clock import Arrival
from simulator.workload import Request

Submit = Callable[[Request], bool]  # False: rejected


def delay_until(time_s: float, now_s: float) -> float:
    """A delay after which a clock at `now_s` shows `time_s`, or by rounding the number before it: the next delay is then exact.

    >>> delay_until(0.3, 0.1) + 0.1
    0.3
    """
    delay_s = time_s - now_s
    return delay_s if now_s + delay_s <= time_s else math.nextafter(delay_s, 0.0)


class _Loop:
    """Sends requests and, when one is over, the next turn of its session. A turn whose predecessor is elsewhere begins one."""

    def __init__(self, env: simpy.Environment, requests: Iterable[Request], submit: Submit):
        requests = tuple(requests)
        self.env, self.submit = env, submit
        here = {request.request_id for request in requests}
        self.first_turns = [request for request in requests if request.follows not in here]
        self._next_turn = {request.follows: request for request in requests if request.follows in here}

    @property
    def heeds_answers(self) -> bool:
        """Whether anything follows an answer."""
        return bool(self._next_turn)

    def next_arrival_s(self) -> float:
        """When the next request comes, as far as is known now: infinity where that depends on answers."""
        return math.inf

    def request_done(self, request_id: int) -> None:
        """A request is over. Without think time the next one is seen by the step that starts now."""
        turn = self._next_turn.pop(request_id, None)
        if turn is None:
            self._session_over()
        elif turn.think_time_s > 0:
            Arrival(self.env, turn.think_time_s, partial(self._go_on, turn))
        else:
            self._go_on(turn)

    def _send(self, request: Request) -> bool:
        """Sends a turn, and those after it for as long as they are rejected and follow at once. False: the session is over."""
        while not self.submit(request):
            turn = self._next_turn.pop(request.request_id, None)
            if turn is None:
                return False
            if turn.think_time_s > 0:
                Arrival(self.env, turn.think_time_s, partial(self._go_on, turn))
                return True
            request = turn
        return True

    def _go_on(self, turn: Request) -> None:
        if not self._send(turn):
            self._session_over()

    def _session_over(self) -> None:
        """The last turn of a session is over."""


class OpenLoop(_Loop):
    """Sessions begin at `arrival_s`, whatever the engine does. Make it at time 0; one event at a time waits for the next."""

    def __init__(self, env: simpy.Environment, requests: Iterable[Request], submit: Submit):
        super().__init__(env, requests, submit)
        self._pending = iter(sorted(self.first_turns, key=attrgetter("arrival_s", "request_id")))
        self._next = next(self._pending, None)
        self._wait()

    def next_arrival_s(self) -> float:
        return math.inf if self._next is None else self._next.arrival_s

    def _wait(self) -> None:
        if self._next is not None:
            Arrival(self.env, delay_until(self._next.arrival_s, self.env.now), self._arrive, foreseen=True)

    def _arrive(self) -> None:
        while self._next is not None and self._next.arrival_s <= self.env.now:
            self._send(self._next)
            self._next = next(self._pending, None)
        self._wait()


class ClosedLoop(_Loop):
    """`users` users share the list of sessions; each begins the next one `think_time_s` after its last was over.

    A rejected request counts as answered at once. Raises ValueError for fewer than one user or a negative think time.
    """

    def __init__(self, env: simpy.Environment, requests: Iterable[Request], submit: Submit, users: int, think_time_s: float):
        if users < 1 or think_time_s < 0:
            raise ValueError(f"must have users at least 1 (got {users}) and think_time_s at least 0 (got {think_time_s})")
        super().__init__(env, requests, submit)
        self.think_time_s = think_time_s
        self.pending = deque(sorted(self.first_turns, key=lambda request: request.request_id))
        for _ in range(min(users, len(self.pending))):
            Arrival(env, 0.0, self._begin)

    @property
    def heeds_answers(self) -> bool:
        return True

    def _session_over(self) -> None:
        if self.think_time_s > 0:
            Arrival(self.env, self.think_time_s, self._begin)
        else:
            self._begin()

    def _begin(self) -> None:
        """A free user begins the next session of the list that is not rejected at once."""
        while self.pending:
            if self._send(self.pending.popleft()):
                return
            if self.think_time_s > 0:
                Arrival(self.env, self.think_time_s, self._begin)
                return
