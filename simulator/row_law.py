"""RowLaw: what an engine's kernels for few rows, and for many, pay for a row."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field, model_validator

from simulator.hardware import Kind, Quantity
from simulator.spec import Spec

Count = Annotated[int, Field(ge=1)]


def computed_rows(rows: float, tile_rows: float) -> float:
    """Rows that dense kernels compute: whole tiles. Small batches run in small tiles, whose padding never shows behind the stream
    of weights."""
    return math.ceil(rows / tile_rows) * tile_rows if rows > tile_rows else rows


class RowLaw(Spec):
    """How a small-row kernel pays for rows: each further one reads `weight_reads_per_row` of the weights again, and each beyond
    `kink_after_rows` as much as `weight_reads_per_row_beyond`, up to `largest_rows`.
    arithmetic_fraction: of the dense kernels' rate, where weights are expanded or no matrix unit helps.

    Above, the matrix kernel runs, in tiles of `matrix_tile_rows` rows (any number where absent). It takes the time of
    `matrix_weight_reads` of them for each tile that it starts; or, where `matrix_arithmetic_fraction` is given, of those and of
    computing its tiles whole at this share of the dense kernels' rate, which is above one where matrix units beat the datasheet's
    peak.

    Experts: `expert_reads`. For these `formats`, on devices of these `vendors`, `kinds` and `architectures` (all where empty)."""

    formats: tuple[str, ...]
    vendors: tuple[str, ...] = ()
    kinds: tuple[Kind, ...] = ()
    architectures: tuple[str, ...] = ()
    largest_rows: Count
    weight_reads_per_row: Quantity
    kink_after_rows: Count | None = None
    weight_reads_per_row_beyond: Quantity | None = None
    matrix_weight_reads: Quantity | None = None
    matrix_tile_rows: Count | None = None
    matrix_arithmetic_fraction: Quantity | None = None
    expert_weight_reads_per_row: Quantity | None = None
    expert_largest_tokens: Count | None = None
    arithmetic_fraction: Quantity | None = None

    def weight_reads(self, rows: float) -> float:
        """How often `rows` rows read the weights.

        >>> once, thrice = Quantity(value=0.5, source="assumed"), Quantity(value=3.0, source="assumed")
        >>> law = RowLaw(formats=("int4",), largest_rows=8, weight_reads_per_row=once, matrix_weight_reads=thrice)
        >>> law.weight_reads(3), law.weight_reads(8), law.weight_reads(9)
        (2.0, 4.5, 3.0)
        """
        if rows <= 1:
            return 1.0
        if rows > self.largest_rows:
            streamed = self.matrix_tile_rows is not None and self.matrix_arithmetic_fraction is None
            tiles = math.ceil(rows / self.matrix_tile_rows) if streamed and self.matrix_tile_rows is not None else 1
            return tiles * (self.matrix_weight_reads.value if self.matrix_weight_reads else 1.0)
        slope, kink = self.weight_reads_per_row_beyond, self.kink_after_rows
        beyond = max(rows - kink, 0.0) if slope is not None and kink is not None else 0.0
        reads = 1.0 + self.weight_reads_per_row.value * (rows - 1 - beyond)
        return reads + (slope.value * beyond if slope is not None else 0.0)

    @model_validator(mode="after")
    def _both_or_neither(self) -> RowLaw:
        if (self.kink_after_rows is None) != (self.weight_reads_per_row_beyond is None):
            raise ValueError("kink_after_rows and weight_reads_per_row_beyond must be given together")
        if (self.expert_weight_reads_per_row is None) != (self.expert_largest_tokens is None):
            raise ValueError("expert_weight_reads_per_row and expert_largest_tokens must be given together")
        if self.matrix_arithmetic_fraction is not None and self.matrix_tile_rows is None:
            raise ValueError("matrix_arithmetic_fraction needs matrix_tile_rows: how many rows a tile computes")
        return self

    def expert_reads(self, tokens: float, rows_per_expert: float) -> float:
        """How often the touched experts of `tokens` tokens are read, `rows_per_expert` rows each on average.

        Where a vector kernel runs for each row (`expert_largest_tokens`), further rows of an expert read
        `expert_weight_reads_per_row` of it again. Elsewhere rows are spread too thin for a vector kernel to share weights: only
        the step up to a matrix kernel counts that is slower than the vector kernel at its limit.
        """
        again, largest = self.expert_weight_reads_per_row, self.expert_largest_tokens
        if again is not None and largest is not None and tokens <= largest:
            return 1.0 + again.value * max(rows_per_expert - 1.0, 0.0)
        if self.matrix_weight_reads is None or tokens <= self.largest_rows:
            return 1.0
        return max(self.matrix_weight_reads.value / self.weight_reads(self.largest_rows), 1.0)

    def arithmetic(self, rows: float) -> float:
        """Share of the dense rate at which `rows` rows are computed."""
        fraction = self.arithmetic_fraction if rows <= self.largest_rows else self.matrix_arithmetic_fraction
        return fraction.value if fraction is not None else 1.0

    def computed_rows(self, rows: float, dense_tile_rows: float) -> float:
        """Rows that are computed for `rows`: whole tiles of the matrix kernel, or as dense kernels do.

        >>> once, share = Quantity(value=0.0, source="assumed"), Quantity(value=0.8, source="assumed")
        >>> law = RowLaw(formats=("int4",), largest_rows=8, weight_reads_per_row=once)
        >>> law = law.model_copy(update={"matrix_tile_rows": 32, "matrix_arithmetic_fraction": share})
        >>> law.computed_rows(8, 64), law.computed_rows(9, 64), law.computed_rows(33, 64)
        (8, 32, 64)
        """
        if rows > self.largest_rows and self.matrix_arithmetic_fraction is not None and self.matrix_tile_rows is not None:
            return math.ceil(rows / self.matrix_tile_rows) * self.matrix_tile_rows
        return computed_rows(rows, dense_tile_rows)
