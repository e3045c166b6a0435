"""Planning: the demand to serve, the room to keep, what a device costs; and the fleet that follows from a sustainable rate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, model_validator

from simulator.spec import Spec

Positive = Annotated[float, Field(gt=0, le=1e9)]
HEAD_ROOM = 0.2
# What an idle device draws of its TDP; data-centre devices with loaded weights are seen at 10 to 20 %. Assumed, as the whole
# estimate of energy is: a decoding device draws less than its TDP.
IDLE_POWER_SHARE = 0.15


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


@dataclass(frozen=True, slots=True)
class Fleet:
    """Copies of a deployment that serve a demand together, and what they cost.

    devices: all of them. load: share of the sustainable rate that each copy carries. cost_per_million_tokens: of output, at this
    demand. energy_per_token_j: an estimate, joules per output token from TDP and busy time at the sustainable rate; cost and
    energy are None without a price or a TDP.
    """

    copies: int
    devices: int
    load: float
    cost_per_hour: float | None
    cost_per_million_tokens: float | None
    energy_per_token_j: float | None


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
    def energy_per_token_j(self) -> float | None:
        """Busy at TDP, idle at `IDLE_POWER_SHARE` of it: an estimate, high for decoding, which is bound by memory."""
        if self.tdp_w is None or self.output_tokens_per_s <= 0:
            return None
        return self.tdp_w * (self.busy_fraction + IDLE_POWER_SHARE * (1 - self.busy_fraction)) / self.output_tokens_per_s

    def fleet(self, demand_per_s: float, mean_output_tokens: float, planning: PlanningSpec) -> Fleet:
        """As many copies as the demand needs, each with its head-room.

        >>> one = Copy(rate_per_s=5.0, output_tokens_per_s=1000.0, devices=4, busy_fraction=1.0, tdp_w=2800.0)
        >>> found = one.fleet(10.0, 200.0, PlanningSpec(head_room=0.2, price_per_gpu_hour=3.0))
        >>> found.copies, found.devices, found.cost_per_hour, found.cost_per_million_tokens, found.energy_per_token_j
        (3, 12, 36.0, 5.0, 2.8)
        """
        # The head-room's own rounding must not ask for one copy more.
        copies = max(math.ceil(demand_per_s / (self.rate_per_s * (1 - planning.head_room)) - 1e-9), 1)
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
