"""What an engine's file says of a run: every number with its field, its place and its conversion, and what is wrong with it.

Readers of the formats return `ObservedRun`; `judged` then says whether its acceptance numbers can be true together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

from simulator.acceptance.rates import AcceptanceCounters
from simulator.spec import Problem, SpecError, shown

MAX_FILE_BYTES = 512 * 2**20
# Values of a JSON file are held whole, in up to some twenty times its bytes.
MAX_JSON_BYTES = 128 * 2**20
MAX_LINE_CHARACTERS = 2**20
_MAX_PROBLEMS = 20
_MOST_DIGITS = 15
# Printed to two decimals over a short window, so that engines' own numbers differ by this much from their counters.
PRINTED_TOLERANCE = 0.03
# A server's counters that cover more tokens than the benchmark received were moved by other traffic.
CONTAMINATION = 1.05


@dataclass(frozen=True, slots=True)
class Reading:
    """One value of a file: `field` as the engine names it, `where` it stands, and how it was converted."""

    value: Any
    field: str
    where: str
    conversion: str = "as printed"


@dataclass(frozen=True)
class RequestArrays:
    """Per request: arrival (s from the first; empty where not said), prompt and output tokens."""

    arrival_s: tuple[float, ...]
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]


@dataclass(frozen=True)
class ObservedRun:
    """One measured run. `readings` by our names (see `docs/glossary.md`), SI units.

    counters: what the engine counted, where it did. requests: where the file lists them. notes: what a reader must know.
    """

    format: str
    where: str
    readings: Mapping[str, Reading]
    counters: AcceptanceCounters | None = None
    requests: RequestArrays | None = None
    notes: tuple[str, ...] = ()

    def value(self, name: str) -> Any:
        """The value of a reading, or None."""
        reading = self.readings.get(name)
        return None if reading is None else reading.value

    @property
    def speculative(self) -> bool:
        """Whether the file has any number about acceptance."""
        return self.counters is not None or self.value("mean_acceptance_length") is not None

    @property
    def mean_acceptance_length(self) -> float:
        """τ over rounds with a proposal: from the counters where there are any, else as printed. Of a speculative run only."""
        if self.counters is not None:
            return self.counters.mean_acceptance_length_of_proposals
        return float(self.value("mean_acceptance_length"))

    def with_note(self, *notes: str) -> ObservedRun:
        return replace(self, notes=(*self.notes, *(note for note in notes if note not in self.notes)))


@dataclass
class Collector:
    """Readings of one run as they are found, and the problems on the way."""

    where: str
    readings: dict[str, Reading] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def problem(self, key: str, must: str, got: object = "") -> None:
        """Notes a mistake of the file. Raises `SpecError` once there are too many to be worth listing."""
        self.problems.append(Problem(self.where, key, must, shown(got)))
        if len(self.problems) >= _MAX_PROBLEMS:
            raise SpecError(self.problems)

    def number(self, source: Mapping[str, Any], key: str, name: str, scale: float = 1.0, conversion: str = "as printed") -> None:
        """The number under `key`, times `scale`, as reading `name`. Null and absent are passed over; text and NaN are not."""
        value = source.get(key)
        if value is None:
            return
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.problem(key, "must be a number", value)
        elif not math.isfinite(value):
            self.problem(key, "must be a finite number", value)
        elif value < 0:
            self.problem(key, "must be at least 0", value)
        else:
            self.readings[name] = Reading(value * scale if scale != 1 else value, key, self.where, conversion)

    def derived(self, name: str, value: Any, fields: str, conversion: str) -> None:
        """A reading computed from several fields."""
        self.readings[name] = Reading(value, fields, self.where, conversion)

    def raise_problems(self) -> None:
        if self.problems:
            raise SpecError(self.problems)


def counters(
    collector: Collector, drafts: Any, draft_tokens: Any, accepted: Any, without_draft: int = 0
) -> AcceptanceCounters | None:
    """Counters from whole numbers of a file; None and a problem where they cannot be true together."""
    values = {"drafts": drafts, "draft tokens": draft_tokens, "accepted tokens": accepted}
    for name, value in values.items():
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value) or value != int(value):
            collector.problem(name, "must be a whole number", value)
            return None
    if drafts == 0:
        collector.problem(
            "drafts", "must be above 0: the engine counted no round with a proposal, so speculation was not running", 0
        )
        return None
    try:
        return AcceptanceCounters(int(drafts), int(draft_tokens), int(accepted), without_draft)
    except ValueError as error:
        collector.problem("counters", str(error).split(" (got")[0], f"{int(accepted)} of {int(draft_tokens)} in {int(drafts)}")
        return None


def whole_number(text: str, where: str, key: str) -> int:
    """A count that a line prints. Raises `SpecError` where it has more digits than any count."""
    if len(text) > _MOST_DIGITS:
        raise SpecError([Problem(where, key, f"must be a whole number of at most {_MOST_DIGITS} digits", shown(text))])
    return int(text)


def printed_number(text: str, where: str, key: str) -> float:
    """A number that a line prints, commas between thousands allowed. Raises `SpecError` where it is not finite or too large."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        value = math.nan
    if not abs(value) < 10.0**_MOST_DIGITS:
        raise SpecError([Problem(where, key, f"must be a finite number of at most {_MOST_DIGITS} digits", shown(text))])
    return value


def judged(run: ObservedRun, num_speculative_tokens: int | None = None) -> ObservedRun:
    """The run with γ settled (the file's, or the one given) and notes on what does not fit together.

    Raises `SpecError` where the acceptance is impossible: τ above γ + 1, rates above 1, γ given and another in the file.
    """
    if not run.speculative:
        return run
    gamma = _settled_gamma(run, num_speculative_tokens)
    length = run.mean_acceptance_length
    problems: list[Problem] = []
    notes: list[str] = []
    if gamma is not None and length > gamma + 1 + 1e-9:
        problems.append(Problem(run.where, "mean_acceptance_length", f"must be at most γ + 1 = {gamma + 1}", f"{length:.4g}"))
    if length < 1:
        problems.append(Problem(run.where, "mean_acceptance_length", "must be at least 1, the bonus token", f"{length:.4g}"))
    rates = run.value("acceptance_rates_per_position") or ()
    if any(not 0 <= rate <= 1 for rate in rates):
        problems.append(Problem(run.where, "acceptance_rates_per_position", "must be from 0 to 1", shown(list(rates))))
    if gamma is not None and len(rates) > gamma:
        must = f"must have at most γ = {gamma} positions"
        problems.append(Problem(run.where, "acceptance_rates_per_position", must, str(len(rates))))
    if any(after > before + PRINTED_TOLERANCE for before, after in pairwise(rates)):
        must = "must fall: a draft is accepted only after all before it"
        problems.append(Problem(run.where, "acceptance_rates_per_position", must, shown(list(rates))))
    if problems:
        raise SpecError(problems)
    notes += _against_counters(run, gamma)
    if rates and abs(1 + sum(rates) - length) > PRINTED_TOLERANCE * length:
        notes.append(
            f"the rates per position add up to τ = {1 + sum(rates):.2f} and the mean acceptance length is {length:.2f}: "
            "they were not counted over the same rounds"
        )
    settled = dict(run.readings)
    if gamma is not None and "num_speculative_tokens" not in settled:
        settled["num_speculative_tokens"] = Reading(gamma, "--num-speculative-tokens", "command line", "given")
    return replace(run, readings=settled).with_note(*notes)


def _settled_gamma(run: ObservedRun, given: int | None) -> int | None:
    own = run.value("num_speculative_tokens")
    if own is not None and given is not None and own != given:
        reading = run.readings["num_speculative_tokens"]
        must = f"must be {given}, as --num-speculative-tokens says ({reading.field}, {reading.conversion})"
        raise SpecError([Problem(run.where, "num_speculative_tokens", must, str(own))])
    return int(own) if own is not None else given


def _against_counters(run: ObservedRun, gamma: int | None) -> Iterator[str]:
    counts = run.counters
    if counts is None:
        return
    per_round = counts.draft_tokens / counts.drafts
    if gamma is not None and per_round < gamma * 0.99:
        yield (
            f"rounds drafted {per_round:.2f} tokens on average, not γ = {gamma}: draft lengths are mixed, so rates are of "
            "tokens drafted and say little of a fixed γ"
        )
    elif gamma is not None and per_round > gamma * 1.01:
        yield f"rounds drafted {per_round:.2f} tokens on average, more than γ = {gamma}: the counters are of another setting"
    printed = run.value("mean_acceptance_length")
    own = counts.mean_acceptance_length_of_proposals
    if printed is not None and abs(printed / own - 1) > PRINTED_TOLERANCE:
        yield f"the file prints a mean acceptance length of {printed:.2f} and its counters give {own:.2f}; the counters are used"
    rate, counted = run.value("draft_acceptance_rate"), counts.accepted_tokens / counts.draft_tokens
    if rate is not None and abs(rate - counted) > PRINTED_TOLERANCE:
        yield (
            f"the file prints {100 * rate:.1f} % of the drafts accepted and its counters give {100 * counted:.1f} %; the "
            "counters are used"
        )
    produced = run.value("output_tokens_total")
    if produced:
        emitted = counts.emitted_tokens
        if emitted > CONTAMINATION * produced:
            yield (f"the counters cover {emitted} emitted tokens and the run produced {produced:.0f}: other traffic is in them")


# ------------------------------------------------------------------------------------------------------------- reading


def opened(path: str | Path, most_bytes: int | None = None) -> TextIO:
    """A text file to read, in UTF-8 or, by its first bytes, in UTF-16 (what a shell of Windows writes). Raises `SpecError` where
    it is missing, a folder, larger than `MAX_FILE_BYTES` or `most_bytes`, or cannot be read."""
    file, most = Path(path), most_bytes or MAX_FILE_BYTES
    try:
        size = file.stat().st_size
        if file.is_dir():
            raise SpecError([Problem(str(path), "", "must be a file, not a folder")])
        if size > most:
            raise SpecError([Problem(str(path), "", f"must be at most {most // 2**20} MiB", f"{size / 2**20:.0f} MiB")])
        with file.open("rb") as beginning:
            wide = beginning.read(2) in (b"\xff\xfe", b"\xfe\xff")
        return file.open(encoding="utf-16" if wide else "utf-8-sig", errors="replace", newline=None)
    except FileNotFoundError:
        raise SpecError([Problem(str(path), "", "no such file")]) from None
    except OSError as error:
        raise SpecError([Problem(str(path), "", f"cannot be read: {error.strerror}")]) from None


def lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """(number, text) of each line, cut at a million characters, so that no line fills the memory."""
    with opened(path) as file:
        number = 0
        while text := file.readline(MAX_LINE_CHARACTERS):
            number += 1
            rest = text
            while len(rest) == MAX_LINE_CHARACTERS and not rest.endswith("\n"):
                rest = file.readline(MAX_LINE_CHARACTERS)
            yield number, text.rstrip("\n")


def json_objects(path: str | Path) -> Iterator[tuple[int, Any]]:
    """(line, value) of each JSON value of a file: one value, one a line, or several one after the other.

    Raises `SpecError` at the first that is no JSON, with its line.
    """
    import json

    with opened(path, MAX_JSON_BYTES) as file:
        text = file.read()
    decoder, position, line, counted = json.JSONDecoder(), 0, 1, 0
    while True:
        while position < len(text) and text[position] in " \t\r\n,":
            position += 1
        if position >= len(text):
            return
        line, counted = line + text.count("\n", counted, position), position
        try:
            value, position = decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:
            where = f"{path}:{line + text.count(chr(10), counted, error.pos)}"
            raise SpecError([Problem(where, "", f"must be JSON: {error.msg}")]) from None
        except RecursionError:
            raise SpecError([Problem(f"{path}:{line}", "", "must be JSON that is less deeply nested")]) from None
        except ValueError:  # a whole number of thousands of digits
            raise SpecError([Problem(f"{path}:{line}", "", "must be JSON with numbers of ordinary length")]) from None
        yield line, value
