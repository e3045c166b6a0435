"""Errors that some of the measured runs share, made independent."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def whitened(errors: NDArray[np.float64], own_std: float, shared_std: float) -> NDArray[np.float64]:
    """Errors (n,) as independent unit ones, where each is a run's own plus one that all of them share.

    The mean holds the shared error and so counts less: its variance is own²/n + shared² where independent runs have own²/n.

    >>> whitened(np.array([0.1, 0.3]), 0.1, 0.0).round(9).tolist()
    [1.0, 3.0]
    """
    shrink = own_std / math.hypot(own_std, math.sqrt(len(errors)) * shared_std)
    white: NDArray[np.float64] = (errors - errors.mean() * (1 - shrink)) / own_std
    return white
