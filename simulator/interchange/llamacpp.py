"""llama.cpp: the counters of its command-line tools and server log, and the `timings` of server responses.

No file counts rounds: each emits one token of the target's own, so rounds = generated - accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from simulator.acceptance.rates import AcceptanceCounters
from simulator.interchange.observed import (
    PRINTED_TOLERANCE,
    Collector,
    ObservedRun,
    json_objects,
    lines,
    printed_number,
    whole_number,
)
from simulator.spec import Problem, SpecError

TEXT_FORMAT, RESPONSE_FORMAT = "llamacpp-log", "llamacpp-responses"
_TOOL = {name: re.compile(rf"^\s*{name}\s*=\s*(\d+)\s*$") for name in ("n_predict", "n_drafted", "n_accept")}
_TOOL_RATE = re.compile(r"^\s*accept\s*=\s*([\d.]+)\s*%\s*$")
_RATE = re.compile(r"draft acceptance rate = [\d.]+%? \(\s*(\d+)(?: accepted)? */\s*(\d+)(?: generated)?\)")
_EVAL = re.compile(r"(?<!prompt )\beval time =\s*([\d.]+) ms /\s*(\d+) (?:tokens|runs)")


def is_text(line: str) -> bool:
    """Whether a line holds counters read here."""
    return bool(_RATE.search(line) or _EVAL.search(line)) or any(pattern.match(line) for pattern in _TOOL.values())


def timings(value: object) -> Mapping[str, Any] | None:
    """The timings of one server response, or None."""
    inner = value.get("timings", value) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) and {"predicted_n", "predicted_ms"} <= inner.keys() else None


class _Sum:
    """Counters summed over requests."""

    def __init__(self, found: Collector):
        self.found = found
        self.generated = self.drafted = self.accepted = self.requests = 0
        self.seconds = 0.0
        self.printed_rate: float | None = None

    def add(self, generated: int, seconds: float, drafted: int = 0, accepted: int = 0) -> None:
        if generated == drafted == 0:
            return  # a request that was answered with nothing
        if not 0 <= accepted <= drafted or (drafted and accepted >= generated):
            must = "must have accepted at most equal to drafted and below the tokens generated"
            self.found.problem("counters", must, f"{accepted} of {drafted}, {generated} generated")
            return
        self.generated, self.seconds = self.generated + generated, self.seconds + seconds
        self.drafted, self.accepted, self.requests = self.drafted + drafted, self.accepted + accepted, self.requests + 1

    def run(self, format: str) -> ObservedRun:
        """The run, with a single sequence's decode time per token."""
        found, counters, notes = self.found, None, []
        if not self.requests:
            found.problem(
                "", "must hold counters of llama.cpp: n_predict, n_drafted and n_accept, or 'eval time' lines, or timings"
            )
        found.raise_problems()
        how = f"summed over {self.requests} request{'s' if self.requests > 1 else ''}"
        if self.drafted:
            counters = AcceptanceCounters.from_llama_cpp(self.generated, self.drafted, self.accepted)
            length, rate = counters.mean_acceptance_length, counters.draft_acceptance_rate
            found.derived("mean_acceptance_length", length, "generated, accepted", f"generated / rounds, {how}")
            found.derived("draft_acceptance_rate", rate, "accepted, drafted", how)
            if self.printed_rate is not None and abs(self.printed_rate - rate) > PRINTED_TOLERANCE:
                notes.append(
                    f"the file prints {100 * self.printed_rate:.1f} % of the drafts accepted and its counters give "
                    f"{100 * rate:.1f} %; the counters are used"
                )
            notes.append("llama.cpp counts no rounds: those without a proposal are in τ, which is tokens per pass")
        if self.seconds:
            found.derived("tpot_mean_s", self.seconds / self.generated, "eval time", f"decode seconds / tokens, {how}")
        found.derived("output_tokens_total", self.generated, "generated", how)
        return ObservedRun(format, found.where, found.readings, counters, None, tuple(notes))


def read_text(path: str | Path) -> Iterator[ObservedRun]:
    """One run: a tool's output or a server's log. Raises `SpecError`."""
    total = _Sum(Collector(str(path)))
    tool: dict[str, int] = {}
    pending: tuple[int, float] | None = None
    for number, text in lines(path):
        where = f"{path}:{number}"
        for name, pattern in _TOOL.items():
            if match := pattern.match(text):
                tool[name] = whole_number(match[1], where, name)
        if match := _TOOL_RATE.match(text):
            total.printed_rate = printed_number(match[1], where, "accept") / 100
        if match := _EVAL.search(text):
            if pending is not None:
                total.add(*pending)
            pending = whole_number(match[2], where, "eval time"), printed_number(match[1], where, "eval time") / 1000
        elif (match := _RATE.search(text)) and pending is not None:
            drafted, accepted = (whole_number(match[group], where, "draft acceptance rate") for group in (2, 1))
            total.add(*pending, drafted=drafted, accepted=accepted)
            pending = None
    if {"n_predict", "n_drafted", "n_accept"} <= tool.keys():
        seconds = pending[1] if pending is not None else 0.0
        total.add(tool["n_predict"], seconds, tool["n_drafted"], tool["n_accept"])
    elif pending is not None:
        total.add(*pending)
    return iter([total.run(TEXT_FORMAT)])


def read_responses(path: str | Path) -> Iterator[ObservedRun]:
    """One run: server responses with timings, one JSON object a line or in a list. Raises `SpecError`."""
    found = Collector(str(path))
    total = _Sum(found)
    for line, value in json_objects(path):
        found.where = f"{path}:{line}"
        for each in value if isinstance(value, list) else [value]:
            timing = timings(each)
            if timing is None:
                raise SpecError([Problem(found.where, "", "must be a response with timings (predicted_n, predicted_ms)")])
            _add_timing(total, timing)
    found.where = str(path)
    return iter([total.run(RESPONSE_FORMAT)])


def _add_timing(total: _Sum, timing: Mapping[str, Any]) -> None:
    counts = [timing.get("predicted_n"), timing.get("draft_n") or 0, timing.get("draft_n_accepted") or 0]
    milliseconds = timing.get("predicted_ms")
    whole = all(isinstance(count, int) and not isinstance(count, bool) and count >= 0 for count in counts)
    if not whole or not isinstance(milliseconds, (int, float)) or not 0 <= milliseconds < 1e12:
        total.found.problem("timings", "must have whole counts and finite milliseconds", [*counts, milliseconds])
        return
    generated, drafted, accepted = counts
    total.add(generated, milliseconds / 1000, drafted, accepted)  # type: ignore[arg-type]
