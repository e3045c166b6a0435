"""How sure a prediction of R is beyond its coefficients: what runs repeat to, what was never measured, and how doubts add up.

The numbers but the first are fitted on published runs that were left out of the fit of all constants (`questions.interval_fit`),
and lie in `published_cases/doubts.yaml`.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated

from pydantic import Field

from simulator import resources
from simulator.spec import Spec, check, load_yaml

# Rounds measured twice in one configuration differ by 3 % (median) and 11-12 % (90th percentile): docs/model.md.
ROUND_NOISE_STD = 0.035
# ln of what a resting drafter takes over what its cache's upkeep is priced at: vllm-project/vllm#49548 saw 6.6 and 21.6 % of a
# step where 2 is priced, six times as much in the (geometric) middle, which is made the dear end of an 80 % interval. Nobody saw
# less.
UPKEEP_DEARER_STD = 1.4


class Doubts(Spec):
    """Standard deviations of ln R, but for the first.

    coefficient_share: of what the doubts of all coefficients give ln R, what shows in runs that no constant has seen.
    engine_dearer_std: what an engine without measured runs adds to it on the side of dearer rounds. part_dearer_std: what each
    part of a measured engine adds that none of its runs had (`cost.unmeasured`). part_cheaper_std: each of either on the other
    side, to which new implementations err less.
    """

    coefficient_share: Annotated[float, Field(gt=0, le=2)]
    engine_dearer_std: Annotated[float, Field(ge=0, le=2)]
    part_dearer_std: Annotated[float, Field(ge=0, le=2)]
    part_cheaper_std: Annotated[float, Field(ge=0, le=2)]


FOLDER, FILE = "published_cases", "doubts.yaml"


@cache
def shipped_doubts() -> Doubts:
    return check(Doubts, load_yaml(resources.folder(FOLDER) / FILE))
