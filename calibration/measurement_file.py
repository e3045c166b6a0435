"""Files of measurements: JSON lines in and out, each line on the disk before the next is measured.

One JSON object a line, told apart by `record`:

    header   first: device, versions, clock, budget, seed, hash of the plan, configs of the models measured (`Header`)
    visit    one stay at one cell: its samples, taken one right after the other (`Visit`)
    resumed  where a run that was cut off, or a finished one that is to have more minutes, goes on
    end      last: the number of lines before it; a file without one is unfinished

`read_measurements` joins the visits of a cell to one `Measurement`. Each line ends in `chain`, the first 16 hexadecimal digits of
SHA-256 over the previous line's chain and this line without its own: an edited, missing or moved line breaks the chain, a missing
tail lacks the `end` line. Lines are flushed to the disk one by one; a kill leaves at worst one partial last line, which `resume`
drops.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from pydantic import ValidationError

from calibration.measurement import (
    SCHEMA_VERSION,
    Header,
    Measurement,
    MeasurementError,
    MeasurementFile,
    Visit,
    canonical,
)


def read_measurements(path: Path, unfinished: bool = False) -> MeasurementFile:
    """Reads and verifies a file. Raises `MeasurementError` for one that is edited, foreign or, unless `unfinished`, truncated."""
    return _parse(path, _read_bytes(path), unfinished)[0]


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise MeasurementError(path, 0, "no such file") from None
    except OSError as error:
        raise MeasurementError(path, 0, f"cannot be read: {error.strerror}") from None


def _parse(path: Path, data: bytes, unfinished: bool) -> tuple[MeasurementFile, str, int, int]:
    """(file, chain of the last line, bytes up to its end, lines)."""
    lines = data.split(b"\n")
    tail = lines.pop()  # empty where the last line is whole
    if not lines:
        raise MeasurementError(path, 1, "must begin with a header line of measurements")
    header: Header | None = None
    visits: list[Visit] = []
    chain, finished, minutes = "", False, 0.0
    for number, line in enumerate(lines, 1):
        record, chain = _verified(path, number, line, chain)
        kind = record.pop("record", None)
        if finished and kind != "resumed":
            raise MeasurementError(path, number, "nothing but a resumed run may follow the end line")
        if (number == 1) != (kind == "header"):
            raise MeasurementError(path, number, "must begin with a header line, and hold only one")
        try:
            if kind == "header":
                header = _header(path, record)
                minutes = header.minutes
            elif kind == "visit":
                visits.append(Visit.model_validate(record))
            elif kind == "end":
                finished = record == {"lines": number - 1}
            elif kind == "resumed":
                finished, minutes = False, float(record.get("minutes", minutes))
            else:
                raise MeasurementError(path, number, f"record must be header, visit, resumed or end (got {kind!r})")
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise MeasurementError(path, number, f"{where}: {first['msg'].lower()}") from None
    assert header is not None
    if tail and finished and not unfinished:
        raise MeasurementError(path, len(lines) + 1, "nothing but a resumed run may follow the end line")
    if not finished and not unfinished:
        raise MeasurementError(path, 0, "is unfinished or truncated: its end line is missing; `--resume` goes on measuring")
    result = MeasurementFile(
        header,
        _joined(visits),
        hashlib.sha256(data).hexdigest(),
        finished and not tail,
        bool(tail),
        max((visit.at_s for visit in visits), default=0.0),
        max((visit.round for visit in visits), default=-1),
        minutes,
    )
    return result, chain, len(data) - len(tail), len(lines)


def _verified(path: Path, number: int, line: bytes, chain: str) -> tuple[dict[str, Any], str]:
    """The record without its chain, and that chain, recomputed and found equal."""
    try:
        record = json.loads(line)
        given = record.pop("chain")
    except (ValueError, KeyError, AttributeError, TypeError):
        raise MeasurementError(path, number, "must be a JSON object with a chain; this is no file of measurements") from None
    expected = _chain(chain, record)
    if given != expected:
        raise MeasurementError(path, number, "its chain does not match: this line or one before it was edited, moved or lost")
    return record, expected


def _header(path: Path, record: dict[str, Any]) -> Header:
    version = record.get("schema_version")
    if version != SCHEMA_VERSION:
        raise MeasurementError(path, 1, f"schema_version must be {SCHEMA_VERSION} (got {version!r})")
    return Header.model_validate(record)


def _joined(visits: Sequence[Visit]) -> tuple[Measurement, ...]:
    """One `Measurement` a cell, in the order of first visits."""
    by_cell: dict[str, list[Visit]] = {}
    for visit in visits:
        by_cell.setdefault(visit.cell.key, []).append(visit)
    joined = []
    for stays in by_cell.values():
        cell, refused = stays[0].cell, next((stay for stay in stays if stay.status != "ok"), None)
        samples = [(stay, index) for stay in stays for index in range(len(stay.seconds))]
        joined.append(
            Measurement(
                cell.kind,
                cell.inputs,
                cell.split,
                tuple(stay.seconds[index] for stay, index in samples),
                tuple(stay.wall_seconds[index] for stay, index in samples if stay.wall_seconds),
                tuple(stay.round for stay, _ in samples),
                tuple(stay.at_s for stay, _ in samples),
                refused.status if refused else "ok",
                refused.reason if refused else "",
                cell.key,
            )
        )
    return tuple(joined)


class MeasurementWriter:
    """Appends to a file of measurements, each line on the disk before the next is measured. A context manager."""

    def __init__(self, path: Path, stream: BinaryIO, chain: str, lines: int):
        self.path, self._stream, self._chain, self._lines = path, stream, chain, lines

    @classmethod
    def create(cls, path: Path, header: Header) -> MeasurementWriter:
        """A new file. Raises FileExistsError where there is one."""
        writer = cls(path, path.open("xb"), "", 0)
        writer._append("header", header.model_dump(mode="json"))
        return writer

    @classmethod
    def resume(cls, path: Path, load_average: float, minutes: float) -> tuple[MeasurementWriter, MeasurementFile]:
        """A file that goes on, finished or not, its partial last line cut off; `minutes`: of all parts together. Raises
        `MeasurementError` where it is unsound."""
        file, chain, length, lines = _parse(path, _read_bytes(path), unfinished=True)
        stream = path.open("r+b")
        stream.truncate(length)
        stream.seek(length)
        writer = cls(path, stream, chain, lines)
        writer._append("resumed", {"at_s": file.elapsed_s, "load_average": load_average, "minutes": minutes})
        return writer, file

    def append(self, visit: Visit) -> None:
        """Writes one visit and waits until the disk has it."""
        self._append("visit", visit.model_dump(mode="json"))

    def finish(self) -> None:
        """Writes the end line."""
        self._append("end", {"lines": self._lines})

    def _append(self, record: str, content: Mapping[str, Any]) -> None:
        # As read back: JSON has lists, no tuples.
        line: dict[str, Any] = json.loads(json.dumps({"record": record, **content}))
        self._chain = _chain(self._chain, line)
        self._stream.write(json.dumps({**line, "chain": self._chain}, separators=(",", ":")).encode() + b"\n")
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._lines += 1

    def __enter__(self) -> MeasurementWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stream.close()


def _chain(before: str, record: Mapping[str, Any]) -> str:
    return hashlib.sha256(before.encode() + canonical(record)).hexdigest()[:16]
