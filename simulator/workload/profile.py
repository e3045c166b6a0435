"""WorkloadProfile: what a recorded trace was like, in numbers small enough to ship."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from simulator import resources
from simulator.spec import Spec, check, load_yaml
from simulator.workload.dataset_lengths import DATASETS_FILE
from simulator.workload.quantities import Floats, Integers, NonNegative, Rate, Seconds, Tokens, whole_tokens
from simulator.workload.request_trace import RequestTrace

Fraction = Annotated[float, Field(ge=0, le=1)]


class ProfileArrivals(Spec):
    """How requests of a profile arrive: a rate curve with random gaps on top.

    Requests are expected at `rate_per_s` times `relative_rates`[k] in the k-th window of `window_s` seconds; after the last
    window the curve starts over. Measured in expected requests, gaps have the quantiles `gap_quantiles` (at the profile's
    levels; their mean is taken as 1); left out, gaps are exponential. `tick_s` means that the recorder noted arrivals only
    every so many seconds, so that all requests of one tick arrive together.
    """

    rate_per_s: Rate
    window_s: Seconds
    relative_rates: Annotated[tuple[NonNegative, ...], Field(min_length=1)]
    gap_quantiles: tuple[NonNegative, ...] | None = None
    tick_s: Seconds | None = None

    def times_s(self, expected_requests: Floats) -> Floats:
        """Clock time at which that many requests are expected to have arrived."""
        per_window = np.asarray(self.relative_rates) / np.mean(self.relative_rates) * self.rate_per_s * self.window_s
        total = np.concatenate([[0.0], np.cumsum(per_window)])
        rounds, rest = np.divmod(expected_requests, total[-1])
        edges_s = np.arange(len(total)) * self.window_s
        time_s: Floats = rounds * edges_s[-1] + np.interp(rest, total, edges_s)
        return time_s if self.tick_s is None else np.floor(time_s / self.tick_s) * self.tick_s


class WorkloadProfile(Spec):
    """What a recorded trace was like, in numbers small enough to ship.

    `quantile_levels` are the levels of all quantiles in the file. `prompt_tokens` and `output_tokens` are the quantiles of
    the two lengths, interpolated between levels. `output_share_by_prompt` ties the two together: of the requests whose prompt
    ranks in the i-th of equally large groups, the share (on any scale) whose output ranks in the j-th. Lengths of successive
    requests are taken as independent.
    """

    title: str
    source: str
    citation: str
    licence: str
    changes: str
    quantile_levels: Annotated[tuple[Fraction, ...], Field(min_length=2)]
    arrivals: ProfileArrivals
    prompt_tokens: tuple[Tokens, ...]
    output_tokens: tuple[Tokens, ...]
    output_share_by_prompt: Annotated[tuple[tuple[NonNegative, ...], ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _consistent(self) -> WorkloadProfile:
        levels = self.quantile_levels
        wrong = []
        if levels[0] != 0 or levels[-1] != 1 or any(high <= low for low, high in pairwise(levels)):
            wrong.append("quantile_levels must rise from 0 to 1")
        gaps = self.arrivals.gap_quantiles
        quantiles = {"prompt_tokens": self.prompt_tokens, "output_tokens": self.output_tokens, "arrivals.gap_quantiles": gaps}
        for name, values in quantiles.items():
            if values is not None and (len(values) != len(levels) or any(high < low for low, high in pairwise(values))):
                wrong.append(f"{name} must hold one value for each of quantile_levels and never fall")
        if not sum(self.arrivals.relative_rates) > 0 or (gaps is not None and not sum(gaps) > 0):
            wrong.append("arrivals must have a relative rate and a gap above 0")
        groups = len(self.output_share_by_prompt)
        if any(len(row) != groups or not sum(row) > 0 for row in self.output_share_by_prompt):
            wrong.append("output_share_by_prompt must be square, with a share above 0 in each row")
        if wrong:
            raise ValueError("; ".join(wrong))
        return self

    def sample_lengths(self, n: int, rng: np.random.Generator) -> tuple[Integers, Integers]:
        """(prompt tokens, output tokens) of n requests, by inverse transform of three uniform numbers a request."""
        return self.lengths_at(rng.random((n, 3)))

    def lengths_at(self, uniform: Floats) -> tuple[Integers, Integers]:
        """The same of three numbers from 0 to 1 for each request, (requests, 3)."""
        share = np.asarray(self.output_share_by_prompt, dtype=float)
        up_to = np.cumsum(share / share.sum(axis=1, keepdims=True), axis=1)[:, :-1]
        row = (uniform[:, 0] * len(share)).astype(np.int64)
        column = (uniform[:, 1, None] >= up_to[row]).sum(axis=1)
        output_rank = (column + uniform[:, 2]) / len(share)
        return (
            whole_tokens(np.interp(uniform[:, 0], self.quantile_levels, self.prompt_tokens)),
            whole_tokens(np.interp(output_rank, self.quantile_levels, self.output_tokens)),
        )

    def sample_arrivals(self, n: int, rng: np.random.Generator) -> Floats:
        """Arrival times in seconds of n requests, the first at 0."""
        levels, quantiles = self.quantile_levels, self.arrivals.gap_quantiles
        if quantiles is None:
            gaps = rng.exponential(size=n)
        else:
            gaps = np.interp(rng.random(n), levels, quantiles) / np.trapezoid(quantiles, levels)
        times_s = self.arrivals.times_s(np.cumsum(gaps))
        first: Floats = times_s - times_s[0]
        return first


RequestSource = RequestTrace | WorkloadProfile


def profile_ids() -> tuple[str, ...]:
    """Ids of the shipped workload profiles."""
    return tuple(name for name in resources.ids("workload") if name != DATASETS_FILE)


def load_workload_profile(name: str, where: str = "", key: str = "workload.requests.trace") -> WorkloadProfile:
    """A profile by id or path. Raises `SpecError`; `where` and `key` say whose mistake an unknown name is."""
    path = resources.file_of("workload", name)
    if path is None or path.stem == DATASETS_FILE:
        raise resources.unknown(where, key, "workload profile", name, profile_ids())
    return _read_workload_profile(path)


@resources.once_per_file
def _read_workload_profile(path: str | Path) -> WorkloadProfile:
    return check(WorkloadProfile, load_yaml(path))
