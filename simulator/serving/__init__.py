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
from simulator.serving.record import EngineStatistics, RequestRecord, RequestRecords, ServingResult, StepRecord, StepRecords
from simulator.serving.replica import StepCost, StepPricer
from simulator.serving.replicas import serve_in_turn
from simulator.serving.scheduler import AcceptancePath, BatchingRules, no_lookahead, one_slot_per_draft
from simulator.serving.serve import serve

__all__ = [
    "AcceptanceCounts",
    "AcceptancePath",
    "BatchingRules",
    "Distribution",
    "EngineStatistics",
    "Load",
    "PairedRatio",
    "RequestRecord",
    "RequestRecords",
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
