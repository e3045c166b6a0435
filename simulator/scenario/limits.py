"""Limits: those of a scenario with the engine's defaults filled in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The server's limits with the engine's defaults filled in.

    prefix_caching: also only where some prompts begin alike. swap_space_bytes: 0 where preempted sequences are recomputed.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    max_model_len: int
    prefix_caching: bool = False
    swap_space_bytes: float = 0.0
