"""The step-cost table that SGLang reads for DSpark: seconds of a step by what it verifies.

    step = bias_seconds + alpha(sequences) + theta(rows verified)

alpha over `bs_probes`, theta over `m_probes`; linear between probes, the end values beyond them. Rows are sequences plus drafts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from simulator.interchange.observed import json_objects
from simulator.spec import Problem, SpecError, shown

FORMAT = "step-costs"
_KEYS = ("bias_seconds", "bs_probes", "alpha_seconds", "m_probes", "theta_seconds")
_LONGEST = 65536


@dataclass(frozen=True)
class StepCosts:
    """The table: seconds; sequences and rows ascending, with as many seconds as probes."""

    bias_s: float
    sequences: tuple[int, ...]
    alpha_s: tuple[float, ...]
    rows: tuple[int, ...]
    theta_s: tuple[float, ...]
    where: str = ""

    def step_s(self, sequences: float, rows: float) -> float:
        """Seconds of one step that verifies `rows` rows of so many sequences.

        >>> StepCosts(0.004, (1, 3), (0.0, 0.002), (1, 9), (0.001, 0.003)).step_s(2, 5)
        0.007
        """
        by_sequences = float(np.interp(sequences, self.sequences, self.alpha_s))
        return self.bias_s + by_sequences + float(np.interp(rows, self.rows, self.theta_s))

    def as_json(self) -> str:
        """The file's text, seconds to six digits."""
        values = (self.bias_s, self.sequences, self.alpha_s, self.rows, self.theta_s)
        return json.dumps({key: _digits(value) for key, value in zip(_KEYS, values, strict=True)}) + "\n"


def is_table(value: object) -> bool:
    """Whether a JSON value has the keys of the table."""
    return isinstance(value, dict) and set(_KEYS) <= value.keys()


def read(path: str | Path) -> Iterator[StepCosts]:
    """Each table of a file. Raises `SpecError` with everything that is wrong with it."""
    for line, value in json_objects(path):
        where = f"{path}:{line}"
        if not is_table(value):
            raise SpecError([Problem(where, "", f"must be a step-cost table with {', '.join(_KEYS)}")])
        problems = [*_problems(value, where)]
        if problems:
            raise SpecError(problems)
        probes = [tuple(int(each) for each in value[key]) for key in ("bs_probes", "m_probes")]
        seconds = [tuple(float(each) for each in value[key]) for key in ("alpha_seconds", "theta_seconds")]
        yield StepCosts(float(value["bias_seconds"]), probes[0], seconds[0], probes[1], seconds[1], where)


def _problems(value: Mapping[str, Any], where: str) -> Iterator[Problem]:
    if not _is_seconds(value["bias_seconds"]):
        yield Problem(where, "bias_seconds", "must be a finite number of seconds, at least 0", shown(value["bias_seconds"]))
    for probes, seconds in (("bs_probes", "alpha_seconds"), ("m_probes", "theta_seconds")):
        counts, times = value[probes], value[seconds]
        if not isinstance(counts, list) or not counts or len(counts) > _LONGEST or not _rising(counts):
            yield Problem(where, probes, "must be a list of rising whole numbers, each at least 1", shown(counts))
        if not isinstance(times, list) or not all(map(_is_seconds, times)):
            yield Problem(where, seconds, "must be a list of finite seconds, each at least 0", shown(times))
        elif isinstance(counts, list) and len(times) != len(counts):
            yield Problem(where, seconds, f"must be as long as {probes} ({len(counts)})", str(len(times)))


def _is_seconds(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e9 and math.isfinite(value)


def _rising(counts: Sequence[Any]) -> bool:
    whole = all(isinstance(each, int) and not isinstance(each, bool) and 1 <= each < 10**9 for each in counts)
    return whole and all(before < after for before, after in pairwise(counts))


def _digits(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_digits(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
