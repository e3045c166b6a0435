"""Pricers that are kept: questions about one deployment at many batches, contexts and acceptances share what is known of its
matrices, and of the same under every doubtful coefficient."""

from __future__ import annotations

from collections import deque

from simulator.cost.deployment import Deployment
from simulator.cost.uncertainty import UncertainPricer

# A grid or a table may turn over devices and γ first: the last of several dozen are kept.
_KEPT: deque[UncertainPricer] = deque(maxlen=64)


def uncertain_pricer(deployment: Deployment, full_acceptance_rate: float) -> UncertainPricer:
    """As `UncertainPricer` under the shipped doubts; made once for equal deployments."""
    for known in reversed(_KEPT):
        if _may_equal(known.deployment, deployment) and known.deployment == deployment:
            return known.with_full_acceptance_rate(full_acceptance_rate)
    _KEPT.append(UncertainPricer(deployment, full_acceptance_rate))
    return _KEPT[-1]


def _may_equal(one: Deployment, other: Deployment) -> bool:
    """By names alone, which differ between most: comparing every constant takes longer."""
    return (
        one.target.name == other.target.name
        and one.method == other.method
        and one.hardware.profile_id == other.hardware.profile_id
        and one.engine.name == other.engine.name
    )
