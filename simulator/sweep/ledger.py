"""What a sweep keeps: one line of JSON for each finished cell, appended whole, so that a kill loses no finished cell.

A line that a kill cut short is taken off before the next is written. Two sweeps never write one file at a time.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from simulator.spec import Problem, SpecError

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a cell: its rows, or why it has none. passing: a fault of the moment (memory, a lost machine), to be tried
    again."""

    cell: str
    rows: list[dict[str, Any]]
    failed: str = ""
    passing: bool = False


class Ledger:
    """The open file. `outcomes`: what it held when it was opened, by the cell's name."""

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self.outcomes = self._read()

    def add(self, outcome: Outcome, settings: dict[str, Any]) -> None:
        """One whole line, in one write at the file's end. Raises `SpecError` where the disk is full."""
        entry = {"schema_version": SCHEMA_VERSION, "set": settings, **asdict(outcome)}
        line = json.dumps(entry, ensure_ascii=False, default=str, allow_nan=False) + "\n"
        data = line.encode()
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            raise SpecError([Problem("--out", "", f"cannot be written: {error.strerror}; what is there is kept")]) from None
        self.outcomes[outcome.cell] = outcome

    def _read(self) -> dict[str, Outcome]:
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            file.seek(0)
            content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.ftruncate(self._descriptor, whole)
        found = {}
        for line in content[:whole].splitlines():
            try:
                entry = json.loads(line)
                outcome = Outcome(entry["cell"], entry["rows"], entry["failed"], entry["passing"])
            except (ValueError, KeyError, TypeError):
                continue  # not ours, or damaged: its cell is computed again
            if not outcome.passing:
                found[outcome.cell] = outcome
        return found


@contextmanager
def opened(path: Path) -> Iterator[Ledger]:
    """The ledger for this sweep alone. Raises `SpecError` where it cannot be written or another sweep has it open."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise SpecError([Problem("--out", "", f"must be a folder that can be written: {error.strerror}", str(path))]) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SpecError([Problem("--out", "", "must be a folder that no other sweep is writing", str(path.parent))]) from None
        yield Ledger(descriptor)
    finally:
        os.close(descriptor)
