"""Arrival times of traces as whole nanoseconds, so that seven decimals survive a date's 1.7e9 s.

A time that is wrong is answered by what it must be.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?")
NANOSECONDS = 1_000_000_000


def from_timestamp(text: str) -> int | str:
    """A date with a time, in UTC where it names no zone."""
    match = _TIMESTAMP.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        whole, fraction, zone = match.groups()
        since_1970_ns = _nanoseconds(datetime.fromisoformat(whole + (zone or "Z")).timestamp(), 1)
    except (ValueError, OverflowError):
        since_1970_ns = ""
    if isinstance(since_1970_ns, str):
        return "must be a time such as 2023-11-16 18:15:46.6805900, from 1970 to 2255"
    return since_1970_ns + int((fraction or "0").ljust(9, "0"))


def from_seconds(text: str) -> int | str:
    """Seconds since the trace began."""
    try:
        return _nanoseconds(float(text), 1.0)
    except ValueError:
        return "must be a number of seconds"


def from_seconds_or_timestamp(text: str) -> int | str:
    """Whichever of the two it is."""
    found = from_seconds(text)
    found = from_timestamp(text) if isinstance(found, str) else found
    return "must be a number of seconds, or a time such as 2023-11-16 18:15:46.68" if isinstance(found, str) else found


def from_milliseconds(value: Any) -> int | str:
    """Milliseconds since the trace began, as read from JSON."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "must be a number of milliseconds"
    return _nanoseconds(value, 1e-3)


def _nanoseconds(value: float, unit_s: float) -> int | str:
    try:
        seconds = float(value) * unit_s
    except OverflowError:  # a whole number of hundreds of digits
        seconds = float("inf")
    # As nanoseconds, 9e9 s still fit into 64 bits.
    return round(seconds * NANOSECONDS) if 0 <= seconds <= 9e9 else "must be a time from 0 to 9e9 s"
