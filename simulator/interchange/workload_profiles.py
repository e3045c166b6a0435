"""Deriving a workload profile from a recorded trace, to be shipped in its stead."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simulator.workload import Floats, ProfileArrivals, RequestTrace, WorkloadProfile

QUANTILE_LEVELS = (0, 0.01, 0.02, *(k / 20 for k in range(1, 20)), 0.96, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999, 1)
_GROUPS = 10


def profile_of(
    trace: RequestTrace,
    *,
    title: str,
    source: str,
    citation: str,
    licence: str,
    window_s: float | None = None,
    tick_s: float | None = None,
) -> WorkloadProfile:
    """The workload profile of a trace; `profile_yaml` of it is a file that `requests.trace` accepts.

    `window_s` is the resolution of the rate curve (left out: one constant rate); choose it so that the `index_of_dispersion`
    of samples follows that of the trace. `tick_s` states that arrivals were recorded only at multiples of it: what happens
    inside a tick is unknown then, and gaps are taken as exponential. Raises ValueError for a trace shorter than the window.
    """
    span_s = float(trace.arrival_s[-1])
    window_s = span_s if window_s is None else window_s
    windows = int(span_s // window_s) if window_s > 0 else 0
    if windows < 1:
        raise ValueError(f"the trace must be longer than the window (got {span_s:g} s and {window_s:g} s)")
    edges_s = np.arange(windows + 1) * window_s
    inside = trace.arrival_s[trace.arrival_s <= edges_s[-1]]
    counts = np.histogram(inside, edges_s)[0]
    arrivals = ProfileArrivals(
        rate_per_s=_digits(counts.sum() / edges_s[-1], 4),
        window_s=window_s,
        relative_rates=tuple(_digits(rate, 3) for rate in counts / counts.mean()),
        gap_quantiles=None if tick_s else _gap_quantiles(inside, edges_s, counts),
        tick_s=tick_s,
    )
    return WorkloadProfile(
        title=title,
        source=source,
        citation=citation,
        licence=licence,
        changes=f"{len(trace)} requests over {span_s:.0f} s reduced to a rate curve, quantiles and a table of ranks",
        quantile_levels=QUANTILE_LEVELS,
        arrivals=arrivals,
        prompt_tokens=_quantiles(trace.prompt_tokens),
        output_tokens=_quantiles(trace.output_tokens),
        output_share_by_prompt=_share(trace),
    )


def _gap_quantiles(arrival_s: Any, edges_s: Any, counts: Any) -> tuple[float, ...]:
    """Quantiles of the gaps in units of expected requests, which takes the rate curve out of them."""
    expected = np.interp(arrival_s, edges_s, np.concatenate([[0], np.cumsum(counts)]))
    return tuple(_digits(gap, 3) for gap in np.quantile(np.diff(expected), QUANTILE_LEVELS))


def _quantiles(tokens: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in np.rint(np.quantile(tokens, QUANTILE_LEVELS)))


def _share(trace: RequestTrace) -> tuple[tuple[float, ...], ...]:
    """Requests in thousandths of a row: by prompt rank (rows) and output rank (columns), in tenths of the requests each."""
    groups = []
    for tokens in (trace.prompt_tokens, trace.output_tokens):
        rank = np.empty(len(tokens), dtype=np.int64)
        rank[np.argsort(tokens, kind="stable")] = np.arange(len(tokens))
        groups.append(rank * _GROUPS // len(tokens))
    table = np.zeros((_GROUPS, _GROUPS))
    np.add.at(table, tuple(groups), 1)
    return tuple(tuple(row) for row in np.rint(1000 * table / table.sum(axis=1, keepdims=True)).tolist())


def index_of_dispersion(arrival_s: Floats, window_s: float) -> float:
    """Variance over mean of the number of arrivals per window: 1 for a Poisson process, and larger the burstier."""
    counts = np.histogram(arrival_s, np.arange(0.0, float(arrival_s[-1]), window_s))[0]
    return float(counts.var() / counts.mean())


def profile_yaml(profile: WorkloadProfile) -> str:
    """The text of a profile's file, lists wrapped at 130 columns."""
    comment = "# Statistics derived from a request trace by simulator.interchange.workload_profiles.profile_of"
    return "\n".join([comment, *_mapping(profile.model_dump(exclude_none=True)), ""])


def _mapping(values: Mapping[str, Any], indent: str = "") -> list[str]:
    lines: list[str] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            lines += [f"{indent}{key}:", *_mapping(value, indent + "  ")]
        elif isinstance(value, tuple) and isinstance(value[0], tuple):
            lines += [f"{indent}{key}:", *(f"{indent}  - {_flow(row)}" for row in value)]
        elif isinstance(value, tuple):
            lines += [
                f"{indent}{key}:",
                *textwrap.wrap(_flow(value), 130, initial_indent=indent + "  ", subsequent_indent=indent + "   "),
            ]
        else:
            lines.append(f"{indent}{key}: {json.dumps(value, ensure_ascii=False) if isinstance(value, str) else _number(value)}")
    return lines


def _flow(values: Sequence[float]) -> str:
    return "[" + ", ".join(map(_number, values)) + "]"


def _number(value: float) -> str:
    return f"{value:.12g}"


def _digits(value: float, digits: int) -> float:
    """Rounded to significant digits."""
    return float(f"{value:.{digits}g}")
