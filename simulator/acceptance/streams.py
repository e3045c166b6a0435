"""Named random streams, one a request: any of them is reached at once, without seeding a generator anew.

Philox (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") turns a counter into random bits under a key. The key
comes from the seed and the stream's name, the high words of the counter are the request: streams never meet.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt


class _Streams:
    """The streams of all requests under one seed and name."""

    def __init__(self, seed: int, name: bytes):
        key = np.random.SeedSequence([seed, *name]).generate_state(2, np.uint64)
        self._bits = np.random.Philox(key=key)
        self._start = self._bits.state  # nothing drawn, nothing left over from an earlier draw
        self._counter = self._start["state"]["counter"]
        self._generator = np.random.Generator(self._bits)

    def begin(self, request_id: int) -> np.random.Generator:
        self._counter[2] = request_id
        self._bits.state = self._start
        return self._generator


_streams = lru_cache(maxsize=64)(_Streams)


def request_stream(seed: int, name: bytes, request_id: int) -> np.random.Generator:
    """A request's stream from its beginning. The generator is shared: draw all that is wanted before asking for another."""
    return _streams(seed, name).begin(request_id)


class UniformStream:
    """Uniforms of one named stream, drawn as they are asked for: a longer request begins with the shorter one."""

    __slots__ = ("_request_id", "_streams")

    def __init__(self, seed: int, name: bytes, request_id: int):
        self._streams, self._request_id = _streams(seed, name), request_id

    def first(self, count: int) -> npt.NDArray[np.float64]:
        return self._streams.begin(self._request_id).random(count)
