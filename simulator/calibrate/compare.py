"""What moved between two profiles of one device: coefficients with intervals, and whether the difference means anything."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from simulator.hardware import Hardware, quantities_of

_Z95 = 1.9600


@dataclass(frozen=True)
class Moved:
    """One number in both profiles; effective rates, so that a different peak alone moves nothing. ratio: second over first, with
    its 95 % interval; significant: that interval leaves 1 out."""

    name: str
    first: float
    second: float
    ratio: float | None
    low: float | None
    high: float | None
    significant: bool


def compare(first: Hardware, second: Hardware) -> list[Moved]:
    """Every number that either profile measured."""
    one, other = _effective(first), _effective(second)
    names = dict.fromkeys([*_measured(first), *_measured(second)])
    return [_moved(name, *one[name], *other[name]) for name in names if name in one and name in other]


def _moved(name: str, first: float, first_doubt: float, second: float, second_doubt: float) -> Moved:
    if first <= 0 or second <= 0:
        # A time fitted as nothing has no ratio.
        return Moved(name, first, second, None, None, None, False)
    change, spread = math.log(second / first), _Z95 * math.hypot(first_doubt, second_doubt)
    low, high = math.exp(change - spread), math.exp(change + spread)
    return Moved(name, first, second, second / first, low, high, low > 1 or high < 1)


def _measured(hardware: Hardware) -> Iterator[str]:
    """Names of what was fitted or measured."""
    for name, quantity in quantities_of(hardware.coefficients):
        if quantity.source in ("fitted", "measured"):
            yield _rate_name(name)
    for dtype, factors in hardware.profile.gemm_row_factors.items():
        yield from (f"gemm_row_factors.{dtype}.{rows}" for rows in factors.by_rows)


def _effective(hardware: Hardware) -> dict[str, tuple[float, float]]:
    """name → (value, one standard deviation of its logarithm); fractions as the rates that they stand for."""
    found = {}
    for name, quantity in quantities_of(hardware.coefficients):
        found[_rate_name(name)] = (quantity.value * _peak(name, hardware), quantity.doubt)
    for dtype, factors in hardware.profile.gemm_row_factors.items():
        for rows, value in factors.by_rows.items():
            found[f"gemm_row_factors.{dtype}.{rows}"] = (value, factors.doubt)
    return found


def _rate_name(name: str) -> str:
    if "bandwidth_fraction" in name and not name.startswith("expert"):
        return name.replace("_fraction", "_bytes_per_s")
    return name.replace("flops_fraction", "flops_per_s")


def _peak(name: str, hardware: Hardware) -> float:
    profile = hardware.profile
    if "bandwidth_fraction" in name and not name.startswith("expert"):
        return profile.memory_bandwidth_bytes_per_s.value
    if name.startswith("flops_fraction"):
        return profile.peak_flops_per_s[name.partition(".")[2]].value
    if name == "attention_flops_fraction":
        return profile.peak_flops_per_s[hardware.wide_dtype].value
    return 1.0


def comparison_lines(moved: Sequence[Moved], first: str, second: str) -> list[str]:
    """The table as text, what moved significantly marked."""
    rows = [
        (
            each.name, f"{each.first:.4g}", f"{each.second:.4g}", "-" if each.ratio is None else f"{each.ratio:.3f}",
            "-" if each.low is None else f"{each.low:.3f} … {each.high:.3f}", "moved" if each.significant else "",
        )
        for each in moved
    ]  # fmt: skip
    header = ("", first, second, "ratio", "95 % interval", "")
    widths = [max(len(row[index]) for row in (header, *rows)) for index in range(len(header))]
    count = sum(each.significant for each in moved)
    summary = f"{count} of {len(moved)} moved beyond their intervals." if moved else "Neither profile was measured."
    table = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in (header, *rows)]
    return [*(table if moved else []), summary]
