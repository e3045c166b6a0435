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

from simulator.serving.clock import Clock
from simulator.serving.instant import ARRIVES
from simulator.workload import Request

Submit = Callable[[Request], bool]  # False: rejected


class _Loop:
    """Sends requests and, when one is over, the next turn of its session. A turn whose predecessor is elsewhere begins one."""

    def __init__(self, env: Clock, requests: Iterable[Request], submit: Submit):
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
            self.env.at(self.env.now + turn.think_time_s, partial(self._go_on, turn), ARRIVES)
        else:
            self._go_on(turn)

    def _send(self, request: Request) -> bool:
        """Sends a turn, and those after it for as long as they are rejected and follow at once. False: the session is over."""
        while not self.submit(request):
            turn = self._next_turn.pop(request.request_id, None)
            if turn is None:
                return False
            if turn.think_time_s > 0:
                self.env.at(self.env.now + turn.think_time_s, partial(self._go_on, turn), ARRIVES)
                return True
            request = turn
        return True

    def _go_on(self, turn: Request, _: simpy.Event | None = None) -> None:
        if not self._send(turn):
            self._session_over()

    def _session_over(self) -> None:
        """The last turn of a session is over."""


class OpenLoop(_Loop):
    """Sessions begin at `arrival_s`, whatever the engine does. Make it at time 0; one event at a time waits for the next."""

    def __init__(self, env: Clock, requests: Iterable[Request], submit: Submit):
        super().__init__(env, requests, submit)
        self._pending = iter(sorted(self.first_turns, key=attrgetter("arrival_s", "request_id")))
        self._next = next(self._pending, None)
        self._wait()

    def next_arrival_s(self) -> float:
        return math.inf if self._next is None else self._next.arrival_s

    def _wait(self) -> None:
        if self._next is not None:
            self.env.at(self._next.arrival_s, self._arrive, ARRIVES, foreseen=True)

    def _arrive(self, _: simpy.Event) -> None:
        while self._next is not None and self._next.arrival_s <= self.env.now:
            self._send(self._next)
            self._next = next(self._pending, None)
        self._wait()


class ClosedLoop(_Loop):
    """`users` users share the list of sessions; each begins the next one `think_time_s` after its last was over.

    A rejected request counts as answered at once. Raises ValueError for fewer than one user or a negative think time.
    """

    def __init__(self, env: Clock, requests: Iterable[Request], submit: Submit, users: int, think_time_s: float):
        if users < 1 or think_time_s < 0:
            raise ValueError(f"must have users at least 1 (got {users}) and think_time_s at least 0 (got {think_time_s})")
        super().__init__(env, requests, submit)
        self.think_time_s = think_time_s
        self.pending = deque(sorted(self.first_turns, key=lambda request: request.request_id))
        for _ in range(min(users, len(self.pending))):
            env.at(env.now, self._begin, ARRIVES)

    @property
    def heeds_answers(self) -> bool:
        return True

    def _session_over(self) -> None:
        if self.think_time_s > 0:
            self.env.at(self.env.now + self.think_time_s, self._begin, ARRIVES)
        else:
            self._begin()

    def _begin(self, _: simpy.Event | None = None) -> None:
        """A free user begins the next session of the list that is not rejected at once."""
        while self.pending:
            if self._send(self.pending.popleft()):
                return
            if self.think_time_s > 0:
                self.env.at(self.env.now + self.think_time_s, self._begin, ARRIVES)
                return
