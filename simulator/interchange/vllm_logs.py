"""vLLM's server log: the speculation line of three generations, the engine line, and the memory lines of the start.

    current   SpecDecoding metrics: Mean acceptance length: …, Accepted: … tokens, Drafted: … tokens, Per-position …
    V1, 2025  SpecDecoding metrics: Draft acceptance rate: …%, Mean acceptance length: …, Accepted: …, Drafted: …, Per-position …
    V0        Speculative metrics: Draft acceptance rate: …, Number of speculative tokens: …, Number of emitted tokens: …

The first two count one period a line; V0 counts since the start, and its "accepted" holds tokens after the first rejection, so
that τ is emitted tokens over rounds. Fields are found by name, since their order changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from simulator.acceptance.rates import AcceptanceCounters
from simulator.interchange.observed import Collector, ObservedRun, Reading, counters, lines, printed_number, whole_number
from simulator.spec import Problem, SpecError

FORMAT = "vllm-log"
_NUMBER = r"([-+]?[\d,]*\.?\d+(?:[eE][-+]?\d+)?|nan|inf)"
_LENGTH = re.compile(r"Mean acceptance length: " + _NUMBER)
_ACCEPTED = re.compile(r"\bAccepted: " + _NUMBER + r" tokens")
_DRAFTED = re.compile(r"\bDrafted: " + _NUMBER + r" tokens")
_POSITIONS = re.compile(r"Per-position acceptance rate: ((?:[\d.]+|nan)(?:, (?:[\d.]+|nan))*)")
_V0 = {
    "gamma": re.compile(r"Number of speculative tokens: (\d+)"),
    "drafted": re.compile(r"Number of draft tokens: (\d+)"),
    "emitted": re.compile(r"Number of emitted tokens: (\d+)"),
}
_ENGINE = re.compile(
    r"Avg generation throughput: "
    + _NUMBER
    + r" tokens/s, Running: (\d+) reqs?, (?:Swapped: \d+ reqs, )?(?:Waiting|Pending): (\d+) reqs"
)
# Data-parallel ranks log a line each.
_RANK = re.compile(r"\bEngine (\d+): ")
_KV = {
    "kv_cache_bytes": (re.compile(r"Available KV cache memory: " + _NUMBER + " GiB"), 2.0**30, "GiB · 2^30"),
    "kv_cache_tokens": (re.compile(r"GPU KV cache size: " + _NUMBER + " tokens"), 1.0, "as printed"),
}


def is_log(line: str) -> bool:
    """Whether a line is one of the lines read here."""
    return "SpecDecoding metrics:" in line or "Speculative metrics:" in line or _ENGINE.search(line) is not None


def read(path: str | Path) -> Iterator[ObservedRun]:
    """One run: the whole log. Raises `SpecError` where it has no line that is known, or counts of nothing."""
    log = _Log(str(path))
    for number, text in lines(path):
        log.take(number, text)
    yield log.run()


class _Log:
    def __init__(self, source: str):
        self.source = source
        self.found = Collector(source)
        self.periods: list[_Period] = []
        self.since_start: tuple[int, dict[str, int]] | None = None
        self.restarts = 0
        self.busy: dict[str, _Busy] = {}  # by rank
        self.engine_lines = self.unreadable = 0

    def take(self, number: int, text: str) -> None:
        where = f"{self.source}:{number}"
        if "SpecDecoding metrics:" in text:
            period = _period(text, where)
            if period is None:
                self.unreadable += 1
            else:
                self.periods.append(period)
        elif "Speculative metrics:" in text:
            values = {name: pattern.search(text) for name, pattern in _V0.items()}
            if all(values.values()):
                counted = {name: whole_number(match[1], where, "Speculative metrics") for name, match in values.items() if match}
                if self.since_start is not None and counted["emitted"] < self.since_start[1]["emitted"]:
                    self.restarts += 1
                self.since_start = number, counted
        elif match := _ENGINE.search(text):
            self.engine_lines += 1
            if (running := whole_number(match[2], where, "Running")) > 0:
                rank = _RANK.search(text)
                throughput = printed_number(match[1], where, "Avg generation throughput")
                self.busy.setdefault(rank[1] if rank else "", _Busy()).add(running, throughput)
        else:
            for ours, (pattern, scale, how) in _KV.items():
                if match := pattern.search(text):
                    self.found.readings[ours] = Reading(
                        printed_number(match[1], where, "start-up line") * scale, "start-up line", where, how
                    )

    def run(self) -> ObservedRun:
        notes = [f"{self.unreadable} periods without drafts (nan) were left out"] if self.unreadable else []
        if self.restarts:
            notes.append(f"the server was started anew {self.restarts} times: its counts are those since the last start")
        counts = None
        if self.since_start is not None and (self.periods or self.unreadable):
            must = "must not stand beside lines of V1 (SpecDecoding metrics): give the log of one server"
            self.found.problem("Speculative metrics", must, f"line {self.since_start[0]}")
        elif self.periods:
            counts = self._sum_of_periods()
        elif self.since_start is not None:
            counts = self._of_v0(*self.since_start)
        elif self.unreadable:
            self.found.problem("SpecDecoding metrics", "must have a period in which something was drafted", "nan only")
        elif not self.engine_lines:
            must = "must hold lines of vLLM such as 'SpecDecoding metrics: …' or 'Avg generation throughput: …'"
            raise SpecError([Problem(self.source, "", must)])
        self.found.raise_problems()
        if self.busy:
            ranks = self.busy.values()
            how = f"mean of {sum(rank.lines for rank in ranks)} lines with running requests"
            how += f", added up over {len(ranks)} engines" if len(ranks) > 1 else ""
            self.found.derived("concurrency_mean", sum(rank.running / rank.lines for rank in ranks), "Running", how)
            throughput = sum(rank.throughput / rank.lines for rank in ranks)
            self.found.derived("output_tokens_per_s", throughput, "Avg generation throughput", how)
        return ObservedRun(FORMAT, self.source, self.found.readings, counts, None, tuple(notes))

    def _sum_of_periods(self) -> AcceptanceCounters | None:
        gammas = {len(period.positions) for period in self.periods if period.positions}
        if len(gammas) > 1:
            self.found.problem("Per-position acceptance rate", "must have one number of positions in a log", sorted(gammas))
            return None
        gamma = next(iter(gammas), None)
        rounds = [period.rounds(gamma) for period in self.periods]
        drafts, drafted = sum(rounds), sum(period.drafted for period in self.periods)
        accepted = sum(period.accepted for period in self.periods)
        how = f"summed over {len(self.periods)} periods"
        self.found.derived("mean_acceptance_length", 1 + accepted / drafts, "Accepted, Drafted", how)
        if gamma is not None:
            rates = tuple(
                sum(n * period.positions[i] for n, period in zip(rounds, self.periods, strict=True)) / drafts
                for i in range(gamma)
            )
            self.found.derived("acceptance_rates_per_position", rates, "Per-position acceptance rate", f"unconditional, {how}")
            self.found.derived("num_speculative_tokens", gamma, "Per-position acceptance rate", "its number of positions")
        return counters(self.found, min(round(drafts), drafted), drafted, accepted)

    def _of_v0(self, number: int, values: dict[str, int]) -> AcceptanceCounters | None:
        gamma, drafted, emitted = values["gamma"], values["drafted"], values["emitted"]
        if gamma == 0 or drafted < gamma:
            self.found.problem("Number of draft tokens", "must be above 0: speculation was not running", drafted)
            return None
        rounds = drafted // gamma
        if not rounds <= emitted <= rounds * (gamma + 1):
            self.found.problem("Number of emitted tokens", f"must be from {rounds} to {rounds * (gamma + 1)}", emitted)
            return None
        how = "emitted tokens / (draft tokens / speculative tokens), since the start"
        self.found.derived("mean_acceptance_length", emitted / rounds, f"line {number}", how)
        self.found.derived("num_speculative_tokens", gamma, "Number of speculative tokens", "as printed")
        return AcceptanceCounters(rounds, drafted, emitted - rounds)


class _Busy:
    """Sums over the lines of one rank on which requests run."""

    __slots__ = ("lines", "running", "throughput")

    def __init__(self) -> None:
        self.lines = self.running = 0
        self.throughput = 0.0

    def add(self, running: int, throughput: float) -> None:
        self.lines, self.running, self.throughput = self.lines + 1, self.running + running, self.throughput + throughput


class _Period:
    """One line's counters."""

    __slots__ = ("accepted", "drafted", "length", "positions")

    def __init__(self, length: float, accepted: int, drafted: int, positions: tuple[float, ...]):
        self.length, self.accepted, self.drafted, self.positions = length, accepted, drafted, positions

    def rounds(self, gamma: int | None) -> float:
        """Rounds of the period: not printed. Drafted / γ where that gives the printed length, else accepted / (length - 1)."""
        if gamma and abs(1 + self.accepted * gamma / self.drafted - self.length) <= 0.011:
            return self.drafted / gamma
        return self.accepted / (self.length - 1) if self.length > 1 else self.drafted / (gamma or 1)


def _period(text: str, where: str) -> _Period | None:
    """The counters of a line; None where a number is missing or nan, as in a period without drafts. Raises `SpecError`."""
    length, accepted, drafted = (pattern.search(text) for pattern in (_LENGTH, _ACCEPTED, _DRAFTED))
    if length is None or accepted is None or drafted is None or "nan" in (length[1], accepted[1], drafted[1]):
        return None
    mean, taken, proposed = (
        printed_number(match[1], where, key)
        for match, key in ((length, "Mean acceptance length"), (accepted, "Accepted"), (drafted, "Drafted"))
    )
    if proposed < 1:
        return None
    if not 0 <= taken <= proposed or mean < 1:
        must = "must be possible: from 0 to Drafted accepted, a mean acceptance length of at least 1"
        raise SpecError([Problem(where, "SpecDecoding metrics", must, f"{taken:g} of {proposed:g}, {mean:g}")])
    positions = _POSITIONS.search(text)
    listed = positions[1].split(", ") if positions and "nan" not in positions[1] else []
    rates = tuple(printed_number(rate, where, "Per-position acceptance rate") for rate in listed)
    return _Period(mean, round(taken), round(proposed), rates)
