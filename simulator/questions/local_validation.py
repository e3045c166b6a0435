"""Real decoding on this machine beside what was predicted of it: errors, signs, and what is within the noise.

Bars: a pair's total time within 8 %, on average within 5 %, the speedup within 10 %, its sign right. Nothing is judged where
the measurement repeats too badly for that: the noise floor is two standard errors of predicted over measured, from its spread
over the blocks of the measurement, taken together for all cases of a target.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from simulator.questions.decoding_replay import ONCE

TOTAL_BAR, MEAN_BAR, SPEEDUP_BAR = 0.08, 0.05, 0.10
# A noise floor above half a bar leaves it to chance whether the bar is met.
JUDGED_BELOW = 0.5
OTHER = "outside the phases"
Sign = Literal["win", "lose", "close"]


@dataclass(frozen=True, slots=True)
class DecodingTime:
    """Seconds by term of decoding some prompts, and the rounds or plain steps they took."""

    terms: Mapping[str, float]
    steps: int

    @property
    def total_s(self) -> float:
        return math.fsum(self.terms.values())

    @property
    def step_s(self) -> float:
        """Mean seconds of a round or step, without what a request pays once."""
        return (self.total_s - math.fsum(self.terms.get(name, 0.0) for name in ONCE)) / max(self.steps, 1)


@dataclass(frozen=True, slots=True)
class Compared:
    """Predicted beside measured, of one way to decode."""

    predicted: DecodingTime
    measured: DecodingTime

    @property
    def error(self) -> float:
        """Of the total: predicted over measured, less one."""
        return self.predicted.total_s / self.measured.total_s - 1


@dataclass(frozen=True, slots=True)
class LocalCase:
    """One pair, γ and batch on one kind of prompts. mean_acceptance_length: measured, per round and sequence.

    independent_s: total by the independent-α formula at this pair's own mean α and the same pass times; textbook_speedup: the
    formula that also takes verification as free. floors: of the total and of the speedup, as relative errors; infinite where
    nothing was repeated. rounds_equal: every real list of (proposed, accepted) is the replay's. texts: outputs equal to plain
    decoding, of how many. block_errors: predicted over measured in each block, less one: (plain, speculative).
    """

    target: str
    draft: str
    gamma: int
    batch: int
    kind: str
    mean_acceptance_length: float
    plain: Compared
    speculative: Compared
    acceptance_rate: float
    independent_s: float
    textbook_speedup: float
    rounds_equal: bool
    texts: tuple[int, int]
    block_errors: tuple[tuple[float, float], ...]
    total_floor: float = math.inf
    speedup_floor: float = math.inf

    @property
    def name(self) -> str:
        return f"{self.target} + {self.draft}, γ = {self.gamma}"

    @property
    def predicted_speedup(self) -> float:
        return self.plain.predicted.total_s / self.speculative.predicted.total_s

    @property
    def measured_speedup(self) -> float:
        return self.plain.measured.total_s / self.speculative.measured.total_s

    @property
    def speedup_error(self) -> float:
        return self.predicted_speedup / self.measured_speedup - 1

    @property
    def independent_error(self) -> float:
        return self.independent_s / self.speculative.measured.total_s - 1

    @property
    def predicted_r(self) -> float:
        return self.speculative.predicted.step_s / self.plain.predicted.step_s

    @property
    def measured_r(self) -> float:
        return self.speculative.measured.step_s / self.plain.measured.step_s

    @property
    def predicted_sign(self) -> Sign:
        return sign(self.predicted_speedup, self.speedup_floor)

    @property
    def measured_sign(self) -> Sign:
        return sign(self.measured_speedup, self.speedup_floor)

    @property
    def sign_right(self) -> bool:
        """Win where it won and loss where it lost; right too where either is within the noise."""
        return "close" in (self.predicted_sign, self.measured_sign) or self.predicted_sign == self.measured_sign

    @property
    def judged(self) -> bool:
        """Whether the measurement repeats well enough."""
        return self.total_floor <= JUDGED_BELOW * TOTAL_BAR and self.speedup_floor <= JUDGED_BELOW * SPEEDUP_BAR

    @property
    def within_bars(self) -> bool:
        return abs(self.speculative.error) <= TOTAL_BAR and abs(self.speedup_error) <= SPEEDUP_BAR and self.sign_right


@dataclass(frozen=True, slots=True)
class Machine:
    """Where and how it was measured. wall_factor: wall time of the runs over their CPU time."""

    processor: str
    cores: int
    load_average: float
    wall_factor: float
    torch: str
    blocks: int
    minutes: float


@dataclass(frozen=True, slots=True)
class LocalValidation:
    """All cases. skipped: pairs left out, and why."""

    machine: Machine
    cases: tuple[LocalCase, ...]
    skipped: tuple[str, ...] = ()

    @property
    def mean_error(self) -> float:
        """Mean absolute error of the totals of speculative decoding."""
        return sum(abs(case.speculative.error) for case in self.cases) / len(self.cases)

    @property
    def replayed(self) -> bool:
        """Whether all that must be equal whatever the machine does is equal."""
        return all(case.rounds_equal for case in self.cases)

    @property
    def verdict(self) -> Literal["holds", "fails", "too busy to judge"]:
        """Wrong rounds are wrong on any machine; times are judged where they repeat."""
        judged = [case for case in self.cases if case.judged]
        if not self.replayed or not all(case.within_bars for case in judged):
            return "fails"
        if len(judged) < len(self.cases):
            return "too busy to judge"
        return "holds" if self.mean_error <= MEAN_BAR else "fails"


def sign(speedup: float, floor: float) -> Sign:
    """Win or lose, or too close to call within the noise floor."""
    if abs(math.log(speedup)) <= floor:
        return "close"
    return "win" if speedup > 1 else "lose"


def noise_floors(cases: Sequence[LocalCase]) -> tuple[float, float]:
    """(of a total, of a speedup): two standard errors, from how predicted over measured varies between blocks."""
    totals, ratios = [], []
    for case in cases:
        logs = [(math.log1p(plain), math.log1p(speculative)) for plain, speculative in case.block_errors]
        if len(logs) < 2:
            return math.inf, math.inf
        totals.append(_variance([speculative for _, speculative in logs]) / len(logs))
        ratios.append(_variance([plain - speculative for plain, speculative in logs]) / len(logs))
    return 2 * math.sqrt(sum(totals) / len(totals)), 2 * math.sqrt(sum(ratios) / len(ratios))


def _variance(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)
