"""The forward passes of a decoding loop and what they were seen to take. Needs no torch; `pass_timing` takes the times."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

# No drafter can be called this: names of drafters have no spaces unless they are paths.
TARGET = "the target"


@dataclass(frozen=True, slots=True, order=True)
class DecodingPass:
    """One pass, at whatever context: `rows` new tokens for each of `sequences`, logits of the `last` of them.

    model: `TARGET`, or the drafter's name. masked: as batched decoding runs it, over a cache whose empty slots are masked.
    prompt: the cache is still empty. Of a drafter that searches the text it is one search for `rows` tokens.
    """

    model: str
    sequences: int
    masked: bool
    rows: int
    last: int
    prompt: bool = False


class PassTime(NamedTuple):
    """Seconds of the pass itself, of choosing or accepting tokens from its logits, and of taking back what it cached."""

    forward_s: float
    choose_s: float
    crop_s: float

    @property
    def seconds(self) -> float:
        return self.forward_s + self.choose_s + self.crop_s


class Sample(NamedTuple):
    """One time, the context it was taken at, and the block of the measurement it belongs to."""

    context: int
    block: int
    time: PassTime


@dataclass
class PassTable:
    """Samples by pass. A time is the mean of its samples at a context, and linear between two contexts.

    A total is a sum of passes, slow ones included, which a median would leave out; a tenth at either end is still dropped.
    """

    samples: dict[DecodingPass, list[Sample]] = field(default_factory=dict)

    def add(self, asked: DecodingPass, sample: Sample) -> None:
        self.samples.setdefault(asked, []).append(sample)

    def of_blocks(self, blocks: Iterable[int]) -> PassTable:
        """The samples of these blocks only; a pass without any keeps them all."""
        kept = set(blocks)
        chosen = {asked: [s for s in samples if s.block in kept] or samples for asked, samples in self.samples.items()}
        return PassTable(chosen)

    def time(self, asked: DecodingPass, context: float) -> PassTime:
        """Raises KeyError for a pass that was not measured."""
        known = sorted({sample.context for sample in self.samples[asked]})
        return _between(known, [self._mean(asked, at) for at in known], context)

    def _mean(self, asked: DecodingPass, context: int) -> PassTime:
        times = [sample.time for sample in self.samples[asked] if sample.context == context]
        return PassTime(*(_trimmed_mean(parts) for parts in zip(*times, strict=True)))


def _trimmed_mean(values: Sequence[float]) -> float:
    dropped = len(values) // 10
    return statistics.fmean(sorted(values)[dropped : len(values) - dropped])


def _between(known: Sequence[int], times: Sequence[PassTime], context: float) -> PassTime:
    """Linear between neighbours, constant beyond the ends."""
    if context <= known[0]:
        return times[0]
    for (low, before), (high, after) in pairwise(zip(known, times, strict=True)):
        if context <= high:
            share = (context - low) / (high - low)
            return PassTime(*(b + share * (a - b) for b, a in zip(before, after, strict=True)))
    return times[-1]
