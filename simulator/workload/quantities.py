"""The kinds of numbers that workloads are made of, and the ranges in which they are accepted."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

MAX_TOKENS = 10_000_000
"""Longest prompt or output accepted anywhere; sampled lengths are clipped to it."""
Rate = Annotated[float, Field(ge=1e-6, le=1e6)]
Seconds = Annotated[float, Field(gt=0, le=1e9)]
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Count = Annotated[int, Field(ge=1, le=10_000_000)]
NonNegative = Annotated[float, Field(ge=0)]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def whole_tokens(tokens: Floats) -> Integers:
    """Rounded to whole numbers from 1 to `MAX_TOKENS`."""
    return np.rint(np.clip(tokens, 1, MAX_TOKENS)).astype(np.int64)
