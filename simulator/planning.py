"""Planning: the demand to serve, the room to keep, what a device costs; and the fleet that follows from a sustainable rate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, model_validator

from simulator.spec import Spec

Positive = Annotated[float, Field(gt=0, le=1e9)]
HEAD_ROOM = 0.2
# What a device draws of its TDP, (typical, least, most). Busy: H100 SXM serving language models at 267 to 680 W of 700 W, over
# eight models and batches of 1 to 128 (serialalice.pt, 2026); 300 W at batch 1 and 600 W at batch 128 (ML.ENERGY Benchmark 3.0,
# as quoted by vllm-sr-sim). Idle with weights loaded: 80 W of an H200's 700 W (serialalice.pt); the fifth is assumed, as is that
# other devices are like these.
BUSY_POWER_SHARE = (0.86, 0.38, 0.97)
IDLE_POWER_SHARE = (0.15, 0.11, 0.20)


class PlanningSpec(Spec):
    """The `planning:` section, read by `capacity`.

    demand_per_s: requests a second to serve; or demand_scale: so many times the rate that the workload itself states. Neither:
    the workload's own rate. head_room: share of the sustainable rate that is kept free. price_per_gpu_hour: in any currency.
    good_share: share of the requests that must meet every limit of the service level, beside its percentiles.
    """

    demand_per_s: Positive | None = None
    demand_scale: Positive | None = None
    head_room: Annotated[float, Field(ge=0, lt=1)] = HEAD_ROOM
    price_per_gpu_hour: Positive | None = None
    good_share: Annotated[float, Field(gt=0, lt=1)] | None = None

    @model_validator(mode="after")
    def _one_demand(self) -> PlanningSpec:
        if self.demand_per_s is not None and self.demand_scale is not None:
            raise ValueError("demand_per_s and demand_scale exclude each other: give one")
        return self

    def demand(self, own_rate_per_s: float) -> float:
        """Requests a second to serve, for a workload of this rate.

        >>> PlanningSpec(demand_scale=2.5).demand(4.0)
        10.0
        """
        if self.demand_per_s is not None:
            return self.demand_per_s
        return own_rate_per_s * (self.demand_scale or 1.0)

    def copies(self, demand_per_s: float, rate_per_s: float) -> int:
        """Copies that carry so many requests a second each, with head-room, for a demand.

        >>> PlanningSpec(head_room=0.2).copies(10.0, 5.0)
        3
        """
        # The head-room's own rounding must not ask for one copy more.
        return max(math.ceil(demand_per_s / (rate_per_s * (1 - self.head_room)) - 1e-9), 1)


@dataclass(frozen=True, slots=True)
class Fleet:
    """Copies of a deployment that serve a demand together, and what they cost.

    devices: all of them. load: share of the sustainable rate that each copy carries. cost_per_million_tokens: of output, at this
    demand. energy_per_token_j: joules of the devices per output token, from TDP and busy time at the sustainable rate: an
    estimate, (typical, least, most). Cost and energy are None without a price or a TDP.
    """

    copies: int
    devices: int
    load: float
    cost_per_hour: float | None
    cost_per_million_tokens: float | None
    energy_per_token_j: tuple[float, float, float] | None


@dataclass(frozen=True, slots=True)
class Copy:
    """One deployment at its sustainable rate: requests and output tokens a second, devices, busy share of its time, watts of TDP
    of all its devices together (None where a profile states none)."""

    rate_per_s: float
    output_tokens_per_s: float
    devices: int
    busy_fraction: float
    tdp_w: float | None

    @property
    def energy_per_token_j(self) -> tuple[float, float, float] | None:
        """(typical, least, most), by `BUSY_POWER_SHARE` and `IDLE_POWER_SHARE` of TDP."""
        if self.tdp_w is None or self.output_tokens_per_s <= 0:
            return None
        per_token_s = self.tdp_w / self.output_tokens_per_s
        typical, least, most = (
            per_token_s * (busy * self.busy_fraction + idle * (1 - self.busy_fraction))
            for busy, idle in zip(BUSY_POWER_SHARE, IDLE_POWER_SHARE, strict=True)
        )
        return typical, least, most

    def fleet(self, demand_per_s: float, mean_output_tokens: float, planning: PlanningSpec) -> Fleet:
        """As many copies as the demand needs, each with its head-room.

        >>> one = Copy(rate_per_s=5.0, output_tokens_per_s=1000.0, devices=4, busy_fraction=1.0, tdp_w=2800.0)
        >>> found = one.fleet(10.0, 200.0, PlanningSpec(head_room=0.2, price_per_gpu_hour=3.0))
        >>> found.copies, found.devices, found.cost_per_hour, found.cost_per_million_tokens
        (3, 12, 36.0, 5.0)
        >>> [round(joules, 2) for joules in found.energy_per_token_j]
        [2.41, 1.06, 2.72]
        """
        copies = planning.copies(demand_per_s, self.rate_per_s)
        devices = copies * self.devices
        price = planning.price_per_gpu_hour
        cost = None if price is None else price * devices
        tokens_per_hour = 3600 * demand_per_s * mean_output_tokens
        return Fleet(
            copies=copies,
            devices=devices,
            load=demand_per_s / copies / self.rate_per_s,
            cost_per_hour=cost,
            cost_per_million_tokens=None if cost is None else 1e6 * cost / tokens_per_hour,
            energy_per_token_j=self.energy_per_token_j,
        )
