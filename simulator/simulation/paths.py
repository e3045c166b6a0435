"""Paths: the acceptance of each request under one law, made for many requests together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from simulator.acceptance import AcceptanceLaw, AcceptancePath, Texts
from simulator.workload import Request

# Paths of this many requests are kept from run to run, some 3 kB each: each γ is run several times on the same requests.
KEPT = 5_000
# Made at once for the requests that come next: array expressions then take longer than it takes to call them.
TOGETHER = 64

Key = tuple[int, int, int]


class Paths:
    """The paths of requests, each from its id, its tokens and the seed alone, in whatever order they are asked for."""

    def __init__(self, law: AcceptanceLaw, seed: int):
        self._law, self._seed = law, seed
        self._kept: dict[Key, AcceptancePath] = {}
        self._ahead: dict[Key, AcceptancePath] = {}  # not asked for yet
        self._coming: Iterator[Request] = iter(())

    def expect(self, requests: Iterable[Request]) -> None:
        """These will be asked for, about in this order."""
        self._coming = iter(requests)
        self._ahead = {}

    def of(self, request: Request) -> AcceptancePath:
        """The path of a request."""
        key = _key(request)
        path = self._found(key)
        if path is None:
            self._look_ahead()
            path = self._found(key)
        return path or self._kept.setdefault(key, self._made(key))

    def _found(self, key: Key) -> AcceptancePath | None:
        return self._kept.get(key) or self._ahead.pop(key, None)

    def _look_ahead(self) -> None:
        made = {key: self._made(key) for key in map(_key, islice(self._coming, TOGETHER)) if key not in self._kept}
        Texts(made.values())
        (self._kept if len(self._kept) < KEPT else self._ahead).update(made)

    def _made(self, key: Key) -> AcceptancePath:
        request_id, prompt_tokens, output_tokens = key
        return self._law.path(request_id, output_tokens, self._seed, prompt_tokens=prompt_tokens)


def _key(request: Request) -> Key:
    return request.request_id, request.prompt_tokens, request.output_tokens
