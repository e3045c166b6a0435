"""One engine serving requests in simulated time. Read `replica` (the loop), then `scheduler` (what a step runs).

`record` holds what happened, `metrics` what it means, `replicas` joins several runs, `kv_cache` counts blocks, `arrivals`
releases requests.
"""

from simulator.serving.metrics import (
    AcceptanceCounts,
    Distribution,
    Load,
    PairedRatio,
    Summary,
    paired_ratio,
    summarise,
    unmet_limits,
)
from simulator.serving.record import RequestRecord, ServingResult, StepRecord, StepRecords
from simulator.serving.replica import StepCost, StepPricer, serve
from simulator.serving.replicas import serve_in_turn
from simulator.serving.scheduler import AcceptancePath, BatchingRules, no_lookahead, one_slot_per_draft

__all__ = [
    "AcceptanceCounts",
    "AcceptancePath",
    "BatchingRules",
    "Distribution",
    "Load",
    "PairedRatio",
    "RequestRecord",
    "ServingResult",
    "StepCost",
    "StepPricer",
    "StepRecord",
    "StepRecords",
    "Summary",
    "no_lookahead",
    "one_slot_per_draft",
    "paired_ratio",
    "serve",
    "serve_in_turn",
    "summarise",
    "unmet_limits",
]
