"""One engine serving requests in simulated time. Read `replica` (the loop), then `scheduler` (what a step runs).

`record` holds what happened, `metrics` what it means, `kv_cache` counts blocks, `arrivals` releases requests; `replicas` runs
several engines, `router` sends each request to one of them, `disaggregation` has prompts computed on some of them.
"""

from simulator.serving.kv_transfer import KVTransfer, TransferRecords
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
from simulator.serving.replica import PricesSteps, StepPrice
from simulator.serving.replicas import Engine, Prefill, serve_on_replicas
from simulator.serving.router import RouterName
from simulator.serving.rules import BatchingRules, no_lookahead, one_slot_per_draft
from simulator.serving.sequence import AcceptanceByPosition
from simulator.serving.serve import serve

__all__ = [
    "AcceptanceByPosition",
    "AcceptanceCounts",
    "BatchingRules",
    "Distribution",
    "Engine",
    "EngineStatistics",
    "KVTransfer",
    "Load",
    "PairedRatio",
    "Prefill",
    "PricesSteps",
    "RequestRecord",
    "RequestRecords",
    "RouterName",
    "ServingResult",
    "StepPrice",
    "StepRecord",
    "StepRecords",
    "Summary",
    "TransferRecords",
    "no_lookahead",
    "one_slot_per_draft",
    "paired_ratio",
    "serve",
    "serve_on_replicas",
    "summarise",
    "unmet_limits",
]
