"""What varies in a sweep: keys of a scenario, each with its values, as a list or a range.

`1..8` counts up by one, `0.5..0.9:0.1` by a step, `1..256:x2` by a factor; ends included. Keys with commas between them change
together, and each of their values is a list: `target.model,speculation.drafter=[A,B],[C,D]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from simulator.spec import Problem, SpecError, parse_yaml, shown

_NUMBER = r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(?::(x?)({_NUMBER}))?")
# More values than this on one axis are taken for a slip.
MOST_VALUES = 100_000


@dataclass(frozen=True, slots=True)
class Axis:
    """Keys that change together, and their values: as many in each entry as there are keys. where: for messages."""

    keys: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]
    where: str = "--set"

    def settings(self) -> Iterator[dict[str, Any]]:
        """Each value as key → value."""
        for entry in self.values:
            yield dict(zip(self.keys, entry, strict=True))


def read_axis(text: str, where: str = "--set") -> Axis:
    """``key=a,b,c`` as a flag gives it. Raises `SpecError`.

    >>> read_axis("speculation.num_speculative_tokens=1..8:x2").values
    ((1,), (2,), (4,), (8,))
    >>> read_axis("workload.arrivals.rate_per_s=0.1..0.3:0.1,5").values
    ((0.1,), (0.2,), (0.3,), (5,))
    """
    key, equals, values = text.partition("=")
    if not equals or not key.strip() or not values.strip():
        raise SpecError([Problem(where, "", "must be a key and its values, as in engine=vllm,sglang", repr(text))])
    found = parse_yaml(f"[{values}]", where).data
    return axis_of(key, found, where)


def axis_of(key: str, values: object, where: str) -> Axis:
    """The axis of a key and its values, one or a list, as YAML holds them. Raises `SpecError`."""
    keys = tuple(part.strip() for part in key.split(","))
    entries = tuple(entry for value in _listed(values) for entry in _expanded(value, keys, where))
    if not entries:
        raise SpecError([Problem(where, key, "must have at least one value")])
    seen: set[str] = set()
    for entry in entries:
        if repr(entry) in seen:
            raise SpecError([Problem(where, key, "must hold each value once", shown(entry[0] if len(keys) == 1 else entry))])
        seen.add(repr(entry))
    return Axis(keys, entries, where)


def _listed(values: object) -> Sequence[object]:
    return values if isinstance(values, (list, tuple)) else (values,)


def _expanded(value: object, keys: tuple[str, ...], where: str) -> Iterator[tuple[Any, ...]]:
    if len(keys) > 1:
        if not isinstance(value, (list, tuple)) or len(value) != len(keys):
            raise SpecError(
                [Problem(where, ",".join(keys), f"must have lists of {len(keys)} values, one for each key", shown(value))]
            )
        yield tuple(value)
        return
    match = _RANGE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        yield (value,)
        return
    yield from ((number,) for number in _numbers(match, keys[0], where))


def _numbers(match: re.Match[str], key: str, where: str) -> Iterator[int | float]:
    """Start to stop, both included, in decimal arithmetic: 0.1 steps stay 0.1 steps."""
    start, stop = Decimal(match[1]), Decimal(match[2])
    by_factor, step = match[3] == "x", Decimal(match[4] or (1 if stop >= start else -1))
    if by_factor and (step <= 1 or start <= 0 or stop < start):
        raise SpecError([Problem(where, key, "must rise from above 0 by a factor above 1, as in 1..64:x2", match[0])])
    if not by_factor and (step == 0 or (stop - start) * step < 0):
        raise SpecError([Problem(where, key, "must have a step that leads from the first to the last value", match[0])])
    if not by_factor and (stop - start) / step > MOST_VALUES:
        raise SpecError([Problem(where, key, f"must be at most {MOST_VALUES:,} values", match[0])])
    whole = all(number == number.to_integral_value() for number in (start, step)) and "." not in match[1]
    value, slack = start, abs(stop) * Decimal("1e-9")
    while (value <= stop + slack) if step > 0 else (value >= stop - slack):
        yield int(value) if whole else float(value)
        value = value * step if by_factor else value + step
