"""Passes that decide, freed of what a busy machine did to a whole round: they are taken in rounds, each in one go, and a ratio of
two of them needs what they differ by within a round, not how busy the machine was in it."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from calibration.measurement import Measurement, MeasurementFile, Value
from simulator.calibrate.planned_cells import CHECKED_ROWS

# Fewer passes in a round cannot tell its level from their own times.
_FEWEST_PASSES = 3
_SWEEPS = 20
# Standard deviations that none of eight normal errors exceeds nineteen times in twenty (Bonferroni).
_WORST_OF_EIGHT = 2.73
# Standard deviations from a mean absolute deviation (medians run through points, so that a median one would be too small), and of
# a median from that of one sample; normal errors.
_MEAN_ABSOLUTE_TO_STD, _MEDIAN_TO_MEAN = 1.2533, 1.2533


@dataclass(frozen=True, slots=True)
class RatioNoise:
    """What a second measurement of t(γ+1 rows)/t(1 row) may differ by for noise alone at the worst of eight γ, relative. samples:
    behind the poorest time."""

    difference: float
    samples: int


def levelled(passes: Sequence[Measurement]) -> list[Measurement]:
    """Passes that share rounds, their seconds divided by the level of their round: by how much its passes took longer than they
    do in the median round. Median polish of the logarithms over rounds × passes (Tukey 1977, ch. 11)."""
    if len(passes) < _FEWEST_PASSES:
        return list(passes)
    levels = _levels(passes)
    return [
        replace(each, seconds=tuple(s / math.exp(levels[number]) for s, number in zip(each.seconds, each.rounds, strict=True)))
        for each in passes
    ]


def _levels(passes: Sequence[Measurement]) -> dict[int, float]:
    """ln of each round's level, 0 in the median."""
    logs = [[(number, math.log(s)) for number, s in zip(each.rounds, each.seconds, strict=True)] for each in passes]
    levels = dict.fromkeys(sorted({number for each in logs for number, _ in each}), 0.0)
    for _ in range(_SWEEPS):
        left: dict[int, list[float]] = defaultdict(list)
        for each in logs:
            own = statistics.median(value - levels[number] for number, value in each)
            for number, value in each:
                left[number].append(value - own)
        found = {number: statistics.median(values) for number, values in left.items()}
        middle = statistics.median(found.values())
        levels = {number: value - middle for number, value in found.items()}
    return levels


def with_levels(file: MeasurementFile) -> MeasurementFile:
    """The file with the passes that decide levelled; those measured a second time on their own, so that the two stay apart."""
    changed: dict[int, Measurement] = {}
    for group in _deciding(file):
        changed |= {id(before): after for before, after in zip(group, levelled(group), strict=True)}
    return replace(file, measurements=tuple(changed.get(id(each), each) for each in file.measurements))


def ratio_noise(file: MeasurementFile) -> RatioNoise | None:
    """Of the passes that were measured twice, by how their levelled times scatter; None where there are too few."""
    groups = [levelled(group) for group in _deciding(file) if len(group) >= _FEWEST_PASSES]
    deviations = [math.log(s / each.median_s) for group in groups for each in group for s in each.seconds]
    free = len(deviations)
    for group in groups:
        free -= len(group) + len({number for each in group for number in each.rounds}) - 1
    if free < 1:
        return None
    one = _MEAN_ABSOLUTE_TO_STD * statistics.fmean(map(abs, deviations)) * math.sqrt(len(deviations) / free)
    samples = min(len(each.seconds) for group in groups for each in group)
    of_one = min(len(each.seconds) for group in groups for each in group if each.inputs["rows"] == 1)
    ratio = _MEDIAN_TO_MEAN * one * math.sqrt(1 / samples + 1 / of_one)
    return RatioNoise(_WORST_OF_EIGHT * math.sqrt(2) * ratio, samples)


def _deciding(file: MeasurementFile) -> list[list[Measurement]]:
    """Passes that were taken in one go and measured twice: what shares rounds, first and second measurement apart."""
    twice = {_place(each) for each in file.of("forward", split="check")} - {None}
    groups: dict[tuple[object, ...], list[Measurement]] = defaultdict(list)
    for each in file.of("forward"):
        place = _place(each)
        if place in twice and each.split != "held_out":
            groups[place, each.split == "check"].append(each)
    return list(groups.values())


def _place(each: Measurement) -> tuple[Value, ...] | None:
    """What passes of one round have in common; None for those that are visited apart."""
    inputs: Mapping[str, Value] = each.inputs
    if int(inputs["batch"]) != 1 or int(inputs["rows"]) not in CHECKED_ROWS:
        return None
    return tuple(inputs[name] for name in ("model", "dtype", "mode", "context"))
