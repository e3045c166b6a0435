"""How sure a prediction of R is beyond its coefficients: what runs repeat to, what was never measured, and how doubts add up.

Those in `published_cases/doubts.yaml` are fitted on published runs that no constant had seen (`questions.interval_fit`).
"""

from __future__ import annotations

from functools import cache
from typing import Annotated

from pydantic import Field

from simulator import resources
from simulator.spec import Spec, check, load_yaml
from simulator.unseen_sets import FOLDER

# Rounds measured twice in one configuration differ by 3 % (median) and 11-12 % (90th percentile): docs/model.md. If they were
# Gaussian, either would be off by 0.031 to go by the median, by 0.049 by the tail. An 80 % interval needs what lies between,
ROUND_NOISE_STD = 0.04
# and least squares, in which tails weigh most, take the latter.
RUN_STD = 0.05
# ln of what a resting drafter takes over what its cache's upkeep is priced at. vllm-project/vllm#5000 saw 1.9 and 7.4 % of a
# step, which is what is priced, vllm#49548 6.6 and 21.6 % where 2 is: from once to ten times as much, 3.6 at the dear end.
UPKEEP_DEARER_STD = 1.0


class Doubts(Spec):
    """Doubts as standard deviations of logarithms, but for the first.

    coefficient_share: of what the doubts of all coefficients give ln R, what shows in runs that no constant has seen.
    part_std: of what a round takes beside a plain step (ln(R - 1)), for each part of a measured engine that none of its runs had
    (`cost.unmeasured`). engine_std: the same for an engine without measured runs. setup_std: of ln R, where no run had the
    method on these kernels.
    """

    coefficient_share: Annotated[float, Field(gt=0, le=2)]
    engine_std: Annotated[float, Field(ge=0, le=2)]
    part_std: Annotated[float, Field(ge=0, le=2)]
    setup_std: Annotated[float, Field(ge=0, le=2)]


FILE = "doubts.yaml"


@cache
def shipped_doubts() -> Doubts:
    return check(Doubts, load_yaml(resources.folder(FOLDER) / FILE))
