"""AllReduceTable: what an all-reduce costs, by number of devices."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from simulator.hardware.quantity import RELATIVE_STD, NonNegative, Positive, Source
from simulator.spec import Spec


class AllReduceCost(Spec):
    """``alpha_s + message_bytes / bandwidth_bytes_per_s`` for one kind and one number of devices."""

    alpha_s: NonNegative
    bandwidth_bytes_per_s: Positive
    large_message_bandwidth_bytes_per_s: Positive | None = None

    def slower(self, factor: float) -> AllReduceCost:
        """The same taking `factor` times as long."""
        large = self.large_message_bandwidth_bytes_per_s
        return AllReduceCost(
            alpha_s=self.alpha_s * factor,
            bandwidth_bytes_per_s=self.bandwidth_bytes_per_s / factor,
            large_message_bandwidth_bytes_per_s=None if large is None else large / factor,
        )


class AllReduceTable(Spec):
    """All-reduce of one kind by number of devices; `source`, `note` and `relative_std` (of the whole time) as in `Quantity`."""

    source: Source
    note: str = ""
    relative_std: Annotated[float, Field(ge=0, le=1)] | None = None
    by_devices: dict[int, AllReduceCost]

    @property
    def doubt(self) -> float:
        """One standard deviation of ln(time); fits of all-reduce err by up to 15 % (docs/model.md)."""
        if self.relative_std is not None:
            return self.relative_std
        return 0.10 if self.source in ("fitted", "measured") else RELATIVE_STD[self.source]


AllReduceKind = Literal["custom", "nccl", "pcie"]
