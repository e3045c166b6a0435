"""Quantity: a number with its source and its doubt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field

from simulator.spec import Spec

Source = Literal["datasheet", "fitted", "measured", "published", "assumed", "override"]
NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
# One standard deviation of ln(value) where a profile states none: fits of kernel tables repeat to about 5 % between
# stacks on one GPU; what was never measured on the device is known to a fifth.
RELATIVE_STD: Mapping[Source, float] = {
    "datasheet": 0.0, "fitted": 0.05, "measured": 0.05, "published": 0.08, "assumed": 0.20, "override": 0.0,
}  # fmt: skip


class Quantity(Spec):
    """A number with its source. `relative_std`: one standard deviation of its logarithm."""

    value: NonNegative
    source: Source
    note: str = ""
    relative_std: Annotated[float, Field(ge=0, le=1)] | None = None

    @property
    def doubt(self) -> float:
        """One standard deviation of ln(value)."""
        return RELATIVE_STD[self.source] if self.relative_std is None else self.relative_std


def quantities_of(holder: Spec, fields: Iterable[str] = ()) -> Iterator[tuple[str, Quantity]]:
    """(name, quantity) of every Quantity of a spec, or of the `fields` named; those in a mapping as ``field.key``."""
    for name in fields or type(holder).model_fields:
        value = getattr(holder, name)
        if isinstance(value, Quantity):
            yield name, value
        elif isinstance(value, dict):
            yield from ((f"{name}.{key}", item) for key, item in value.items() if isinstance(item, Quantity))
