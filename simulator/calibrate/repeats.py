"""How well the measurement repeats: the ratio t(γ+1 rows)/t(1 row) of the main model, and the same from a second measurement.

Both series are taken in one process, each with samples of its own spread over the whole run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calibration.measurement import Measurement, MeasurementFile


@dataclass(frozen=True, slots=True)
class RepeatedRatio:
    """t(γ+1)/t(1), γ = `num_speculative_tokens`, by two independent measurements; samples: of the poorest of the four times."""

    num_speculative_tokens: int
    first: float
    second: float
    samples: int

    @property
    def difference(self) -> float:
        """|first / second - 1|."""
        return abs(self.first / self.second - 1)


def repeated_ratios(file: MeasurementFile) -> tuple[str, list[RepeatedRatio]]:
    """(what was measured twice, its ratios); empty where the time was too short for a second measurement."""
    again = file.of("forward", split="check")
    if not again:
        return "", []
    where = {name: again[0].inputs[name] for name in ("model", "dtype", "mode", "batch", "context")}
    second = _by_rows(again, where)
    first = _by_rows([each for each in file.of("forward") if each.split != "check"], where)
    found = [
        RepeatedRatio(
            rows - 1,
            first[rows].median_s / first[1].median_s,
            second[rows].median_s / second[1].median_s,
            min(len(each[number].seconds) for each in (first, second) for number in (1, rows)),
        )
        for rows in sorted(first.keys() & second.keys() - {1})
        if 1 in first and 1 in second
    ]
    words = "{model} {dtype}, {mode}, batch {batch}, context {context}".format(**where)
    return words, found


def _by_rows(measured: Sequence[Measurement], where: dict[str, int | float | str]) -> dict[int, Measurement]:
    return {
        int(each.inputs["rows"]): each for each in measured if all(each.inputs[name] == value for name, value in where.items())
    }


def repeat_lines(file: MeasurementFile) -> list[str]:
    """The two measurements side by side, as lines of text."""
    where, ratios = repeated_ratios(file)
    if not ratios:
        return ["No second measurement of the ratio t(γ+1)/t(1): more --minutes are needed."]
    worst = max(ratios, key=lambda ratio: ratio.difference)
    lines = [
        f"Ratio t(γ+1 rows)/t(1 row) measured twice, {where}",
        f"  γ       {'  '.join(f'{ratio.num_speculative_tokens:5d}' for ratio in ratios)}",
        f"  first   {'  '.join(f'{ratio.first:5.2f}' for ratio in ratios)}",
        f"  second  {'  '.join(f'{ratio.second:5.2f}' for ratio in ratios)}",
    ]
    few = min(ratio.samples for ratio in ratios)
    lines.append(
        f"  The two differ by at most {worst.difference:.1%} (γ = {worst.num_speculative_tokens}); {few} samples or more each."
    )
    return lines
