"""Linear-attention and state-space layers: what their states cost in one pass."""

from __future__ import annotations

import math
from collections.abc import Sequence

from simulator.architecture import RECURRENT, STATE_NUMBER_BYTES, LayerGroup
from simulator.cost.forward_pass import ForwardPass
from simulator.cost.terms import CostTerm
from simulator.hardware import Hardware


def state_term(groups: Sequence[LayerGroup], hardware: Hardware, asked: ForwardPass) -> CostTerm:
    """A floor, the states' traffic, and rows that follow one another.

    Verification keeps a state per drafted position to roll back to: kernels read a sequence's state once and write it after every
    row (vLLM: fused_recurrent_gated_delta_rule; SGLang keeps the written ones apart).
    """
    coefficients = hardware.coefficients
    extra_rows = asked.rows / asked.sequences - 1 if asked.sequences else 0.0
    prompt_tokens = sum(tokens for tokens, _ in asked.prefill)
    seconds = 0.0
    for group in groups:
        if group.attention not in RECURRENT:
            continue
        moves = asked.sequences + asked.rows + 2 * len(asked.prefill)
        moved = group.state_elements * STATE_NUMBER_BYTES * moves
        compute_s = 4.0 * group.state_elements * prompt_tokens / hardware.attention_flops_per_s()
        floor_s = coefficients.state_overhead_s.value + coefficients.state_row_s.value * extra_rows * math.sqrt(
            max(asked.sequences, 1)
        )
        seconds += group.count * max(floor_s, moved / hardware.bandwidth_bytes_per_s + compute_s)
    return CostTerm("states", seconds, "latency")
