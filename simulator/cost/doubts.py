"""How sure a prediction of R is beyond its coefficients: what runs repeat to, what other places add, and how doubts add up.

Two of the numbers are fitted on published runs whose family was left out of the fit of all constants
(`questions.interval_fit`), and lie in `published_cases/doubts.yaml`.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated

from pydantic import Field

from simulator import resources
from simulator.spec import Spec, check, load_yaml

# Rounds measured twice in one configuration differ by 3 % (median) and 11-12 % (90th percentile): docs/model.md.
ROUND_NOISE_STD = 0.035


class Doubts(Spec):
    """coefficient_share: of the standard deviation that the doubts of all coefficients give ln R, what shows in runs of families
    left out; transfer_std: of ln R where no constant of the engine was fitted on a device's architecture."""

    coefficient_share: Annotated[float, Field(gt=0, le=2)]
    transfer_std: Annotated[float, Field(ge=0, le=1)]


FOLDER, FILE = "published_cases", "doubts.yaml"


@cache
def shipped_doubts() -> Doubts:
    return check(Doubts, load_yaml(resources.folder(FOLDER) / FILE))
