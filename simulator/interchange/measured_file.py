"""`measured.yaml` as `import` writes it, read again: the same runs, each number with the field it once came from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from simulator.acceptance.rates import AcceptanceCounters
from simulator.interchange.observed import ObservedRun, Reading
from simulator.spec import Document, Problem, SpecError, load_yaml

FORMAT = "specsim-measured"
_COUNTS = ("drafts", "draft_tokens", "accepted_tokens", "rounds_without_draft")


def is_measured(path: Path) -> bool:
    """Whether a YAML file says that it holds measured runs."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            start = file.read(400)
    except OSError:
        return False
    return start.startswith("# Imported by specsim") and "schema_version" in start


def read(path: str | Path) -> Iterator[ObservedRun]:
    """Each run of the file. Raises `SpecError` with the line of each mistake."""
    document = load_yaml(path)
    runs = document.data.get("runs") if isinstance(document.data, dict) else None
    if not isinstance(runs, tuple) or not runs:
        raise SpecError([document.problem(("runs",), "must be a list of measured runs")])
    if document.data.get("schema_version") != 1:
        raise SpecError([document.problem(("schema_version",), "must be 1", document.data.get("schema_version"))])
    for place, run in enumerate(runs):
        problems: list[Problem] = []
        found = _run(run, document, ("runs", place), problems)
        if problems or found is None:
            raise SpecError(problems)
        yield found


def _run(run: Any, document: Document, at: tuple[str | int, ...], problems: list[Problem]) -> ObservedRun | None:
    stated = run if isinstance(run, Mapping) else {}
    readings, notes = stated.get("readings"), stated.get("notes", ())
    if not isinstance(readings, Mapping) or not all(isinstance(stated.get(key), str) for key in ("format", "where")):
        problems.append(document.problem(at, "must have format, where and readings"))
        return None
    found: dict[str, Reading] = {}
    counters = None
    for name, reading in readings.items():
        value = reading.get("value") if isinstance(reading, Mapping) else None
        if name == "counters":
            counters = _counters(value, document, (*at, "readings", name), problems)
        elif not _is_value(value) or not all(isinstance(reading.get(key), str) for key in ("field", "conversion")):
            must = "must have a value (text, a finite number or a list of them), field and conversion"
            problems.append(document.problem((*at, "readings", name), must, value))
        else:
            found[name] = Reading(value, reading["field"], stated["where"], reading["conversion"])
    told = tuple(notes) if isinstance(notes, tuple) and all(isinstance(note, str) for note in notes) else ()
    return ObservedRun(stated["format"], stated["where"], found, counters, None, told)


def _is_value(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(isinstance(each, (int, float)) and _is_value(each) for each in value)
    if isinstance(value, bool):
        return False
    return isinstance(value, str) or (isinstance(value, (int, float)) and abs(value) < 1e18 and math.isfinite(value))


def _counters(value: Any, document: Document, at: tuple[str | int, ...], problems: list[Problem]) -> AcceptanceCounters | None:
    counts = [value.get(name) for name in _COUNTS] if isinstance(value, Mapping) else [None]
    if not all(isinstance(count, int) and not isinstance(count, bool) for count in counts):
        problems.append(document.problem(at, f"must have whole numbers of {', '.join(_COUNTS)}"))
        return None
    try:
        return AcceptanceCounters(*counts)
    except ValueError as error:
        problems.append(document.problem(at, str(error)))
        return None
