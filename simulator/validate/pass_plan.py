"""Which single passes to time, and in which order: those that the replays are made of, as often as their doubt weighs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from calibration.decoding_pass import DecodingPass
from simulator.questions.decoding_replay import Replay

# Contexts further apart than this get a measured context at each end, nearer ones a single one between them.
NEAR_TOKENS = 48


class PassPlan:
    """Which passes to time at which contexts, how often each is used, and what has been timed."""

    def __init__(self, replays: Sequence[Replay], extra: Sequence[DecodingPass]):
        used: Counter[tuple[DecodingPass, int]] = Counter()
        for each in replays:
            used.update(each.passes)
        self._ends: dict[tuple[str, int, bool], tuple[int, int]] = {}
        for asked, context in used:
            if not asked.prompt and asked.last:
                low, high = self._ends.get(_cache_of(asked), (context, context))
                self._ends[_cache_of(asked)] = min(low, context), max(high, context)
        self.counts: dict[tuple[DecodingPass, int], float] = {}
        for (asked, context), count in used.items():
            for at, share in self._shares(asked, context):
                self.counts[asked, at] = self.counts.get((asked, at), 0.0) + count * share
        for asked in extra:
            for at, _ in self._shares(asked, self.middle(asked)):
                self.counts.setdefault((asked, at), 1.0)
        self._seconds: dict[tuple[DecodingPass, int], float] = {}
        self._samples: Counter[tuple[DecodingPass, int]] = Counter()
        self.owed_s = 0.0

    def middle(self, asked: DecodingPass) -> int:
        if asked.prompt or not asked.last:
            return 0
        low, high = self._ends.get(_cache_of(asked), (1, 1))
        return (low + high) // 2

    def _shares(self, asked: DecodingPass, context: int) -> list[tuple[int, float]]:
        """Contexts at which a pass is measured, and how much each weighs at this context."""
        if asked.prompt or not asked.last:
            return [(0, 1.0)]
        low, high = self._ends[_cache_of(asked)]
        if high - low <= NEAR_TOKENS:
            return [((low + high) // 2, 1.0)]
        share = (context - low) / (high - low)
        return [(low, 1 - share), (high, share)]

    def next(self) -> tuple[DecodingPass, int]:
        """The sample that takes most variance off a prediction per second, spread being in proportion to time."""
        return max(self.counts, key=self._gain)

    def _gain(self, key: tuple[DecodingPass, int]) -> float:
        samples = self._samples[key]
        if not samples:
            return float("inf")
        return self.counts[key] ** 2 * self._seconds[key] / (samples * (samples + 1))

    def done(self, asked: DecodingPass, context: int, seconds: float) -> None:
        self._samples[asked, context] += 1
        self._seconds[asked, context] = seconds


def _cache_of(asked: DecodingPass) -> tuple[str, int, bool]:
    return asked.model, asked.sequences, asked.masked
