"""RowFactors: what the GEMM law misses on one device, by rows."""

from __future__ import annotations

import bisect
import math
from typing import Annotated

from pydantic import Field

from simulator.hardware.quantity import RELATIVE_STD, Positive, Source
from simulator.spec import Spec


class RowFactors(Spec):
    """What the GEMM law misses, by rows: factors on a GEMM's busy time, interpolated in log rows, held beyond the ends.

    {1: 0.55, 2: 1.0} is a level of its own for one row (a matrix-vector kernel); two neighbouring rows that differ are a step
    (a tile's edge). `source`, `note` and `relative_std` (of the step from one row to several) as in `Quantity`.
    """

    source: Source
    note: str = ""
    relative_std: Annotated[float, Field(ge=0, le=1)] | None = None
    by_rows: dict[int, Positive]

    @property
    def doubt(self) -> float:
        """One standard deviation of ln(factor)."""
        return RELATIVE_STD[self.source] if self.relative_std is None else self.relative_std

    def at(self, rows: float) -> float:
        """The factor for `rows`.

        >>> round(RowFactors(source="measured", by_rows={1: 0.5, 4: 2.0}).at(2), 6)
        1.0
        """
        knots = sorted(self.by_rows)
        if rows <= knots[0] or rows >= knots[-1]:
            return self.by_rows[knots[0] if rows <= knots[0] else knots[-1]]
        above = bisect.bisect_right(knots, rows)
        low, high = knots[above - 1], knots[above]
        share = math.log(rows / low) / math.log(high / low)
        return float(self.by_rows[low] ** (1 - share) * self.by_rows[high] ** share)

    def raised_above_one_row(self, factor: float) -> RowFactors:
        """The same with every factor but that of one row multiplied."""
        return self.model_copy(
            update={"by_rows": {rows: value * (factor if rows > 1 else 1.0) for rows, value in self.by_rows.items()}}
        )
