"""Prompt and output tokens as a scenario states them: a constant or a distribution."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Annotated, Literal

import numpy as np
from pydantic import Discriminator, Tag, model_validator

from simulator.spec import Spec
from simulator.workload.quantities import Floats, Integers, Tokens, whole_tokens


class LognormalLengths(Spec):
    """Token counts whose logarithm is normal, given by their median and 90th percentile, rounded, at least 1."""

    distribution: Literal["lognormal"]
    median: Tokens
    p90: Tokens

    @model_validator(mode="after")
    def _ordered(self) -> LognormalLengths:
        if self.p90 <= self.median:
            raise ValueError(f"p90 must be above median (got p90 {self.p90}, median {self.median})")
        return self

    @property
    def sigma(self) -> float:
        """Standard deviation of the logarithm."""
        return math.log(self.p90 / self.median) / NormalDist().inv_cdf(0.9)

    @property
    def mean(self) -> float:
        return self.median * math.exp(self.sigma**2 / 2)

    def sample(self, n: int, rng: np.random.Generator) -> Integers:
        return whole_tokens(self.median * np.exp(self.sigma * rng.standard_normal(n)))

    def at(self, shares: Floats) -> Integers:
        """The counts up to which these shares of all lie."""
        from scipy.special import ndtri  # slow to load

        return whole_tokens(self.median * np.exp(self.sigma * ndtri(shares)))


class UniformLengths(Spec):
    """Whole token counts from `low` to `high`, both included, equally likely."""

    distribution: Literal["uniform"]
    low: Tokens
    high: Tokens

    @model_validator(mode="after")
    def _ordered(self) -> UniformLengths:
        if self.high <= self.low:
            raise ValueError(f"high must be above low (got high {self.high}, low {self.low})")
        return self

    @property
    def mean(self) -> float:
        return (self.low + self.high) / 2

    def sample(self, n: int, rng: np.random.Generator) -> Integers:
        return self.at(rng.random(n))

    def at(self, shares: Floats) -> Integers:
        """The counts up to which these shares of all lie."""
        return self.low + np.floor(shares * (self.high - self.low + 1)).astype(np.int64)


def _kind_of_length(value: object) -> object:
    if isinstance(value, dict):
        return value.get("distribution", "")
    return getattr(value, "distribution", "number")


Length = Annotated[
    Annotated[Tokens, Tag("number")] | Annotated[LognormalLengths, Tag("lognormal")] | Annotated[UniformLengths, Tag("uniform")],
    Discriminator(_kind_of_length),
]


class LengthsSpec(Spec):
    """Prompt and output tokens, drawn independently: a constant each, or ``{distribution: lognormal | uniform, …}``."""

    prompt: Length
    output: Length
