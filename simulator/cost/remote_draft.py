"""RemoteDraft: a draft model on a device of its own, beside or behind the verification.

Drafts go one way and the verdict comes back, so a round pays the link twice. Synchronous, its time adds:

    round = D + 2·latency + V                  D: drafting on its device, V: verification on the target's

Overlapped (Liu et al. 2024, PEARL; McDanel 2024, AMUSD), the device drafts the next round while this one is verified, as if
every draft and its own guess of the bonus token would be accepted. Where that holds the longer of the two sets the pace, else it
starts anew:

    round = h·max(V, D + 2·latency) + (1 - h)·(D + 2·latency + V)

h = f^((γ + 1)/γ) for a share f of rounds with all γ drafts accepted: one more token must agree, at the same rate as those.
Messages are token ids, so that their bytes are nothing beside the latency.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from simulator.cost.tape import known, larger
from simulator.hardware import Hardware


@dataclass(frozen=True, slots=True)
class RemoteDraft:
    """The device or devices of a draft, the link to them in seconds one way, and whether they draft ahead."""

    hardware: Hardware
    tensor_parallel_size: int = 1
    link_latency_s: float = 0.0
    overlap: bool = False

    @property
    def round_trip_s(self) -> float:
        return 2 * self.link_latency_s

    def exposed_share(self, draft_s: float, verify_s: float, full_acceptance_rate: float, gamma: int) -> float:
        """The part of `draft_s` (transfers included) that a round waits for beyond its verification.

        >>> from simulator.hardware import find_hardware
        >>> ahead = RemoteDraft(find_hardware("rtx_4090"), overlap=True)
        >>> ahead.exposed_share(1.0, 2.0, 1.0, 4), ahead.exposed_share(1.0, 2.0, 0.0, 4)
        (0.0, 1.0)
        """
        if not self.overlap or known(draft_s) <= 0:
            return 1.0
        hit = math.pow(full_acceptance_rate, (gamma + 1) / gamma)
        return hit * larger(1 - verify_s / draft_s, 0.0) + (1 - hit)
