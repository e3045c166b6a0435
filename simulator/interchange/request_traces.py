"""Recorded request traces.

Formats are told apart by their first line:
 - Azure LLM inference traces: CSV with ``TIMESTAMP``, ``ContextTokens``, ``GeneratedTokens``;
 - BurstGPT: CSV with ``Timestamp`` (seconds), ``Request tokens``, ``Response tokens``; all its models are kept;
 - Mooncake: JSON lines with ``timestamp`` (milliseconds), ``input_length``, ``output_length``, and ``hash_ids``, which name the
   blocks of 512 tokens that a prompt is made of, so that prompts that begin with the same ids share that beginning;
 - any other: CSV with ``arrival_s``, ``prompt_tokens``, ``output_tokens``, or with the columns that the scenario names.
Further columns are ignored. A request without prompt or output tokens (a failed call) is left out, and the trace's `notes`
say how many. Reading is a stream: a request costs 24 bytes of memory, and 8 for each of its hash ids, whatever its line holds.
"""

from __future__ import annotations

import csv
import json
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from simulator import resources
from simulator.interchange.arrival_times import (
    NANOSECONDS,
    from_milliseconds,
    from_seconds,
    from_seconds_or_timestamp,
    from_timestamp,
)
from simulator.interchange.untimed_requests import is_untimed, read_untimed
from simulator.spec import Problem, SpecError, nearest, shown, unique_keys, why_unreadable
from simulator.workload import MAX_TOKENS, Floats, Integers, PromptTexts, RequestTrace, WorkloadProfile, load_workload_profile

AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOONCAKE = ("timestamp", "input_length", "output_length")
BURST_GPT = ("Timestamp", "Request tokens", "Response tokens")
GENERIC = ("arrival_s", "prompt_tokens", "output_tokens")
_MAX_PROBLEMS = 20
_WHOLE = re.compile(r"[+-]?[0-9]{1,400}")
_BLOCK = 4096
# Tokens that a hash id stands for.
HASH_BLOCK_TOKENS = 512
Row = tuple[int, int, int, Sequence[int]]  # arrival in nanoseconds, prompt tokens, output tokens, hash ids
Fields = Sequence[tuple[str, Any]]  # (name, value as read) of arrival, prompt, output


def request_source(
    name: str,
    base: Path | None = None,
    where: str = "",
    key: str = "workload.requests.trace",
    columns: Mapping[str, str] | None = None,
    tokenizer: str | None = None,
) -> RequestTrace | WorkloadProfile:
    """What `requests.trace` means: the path of a trace or profile, or the id of a shipped profile.

    A path is taken from the working directory or else from `base`, the folder of the file that holds it. Raises `SpecError`;
    `where` and `key` say whose mistake an unknown name is. columns: as for `read_request_trace`. tokenizer: as for
    `untimed_requests.read_untimed`, a path found in the same places.
    """
    for path in (Path(name), (base or Path()) / name):
        if resources.is_file(path):
            profile = path.suffix in (".yaml", ".yml")
            if not profile and columns is None and is_untimed(path):
                return read_untimed(path, None if tokenizer is None else _beside(tokenizer, base))
            if tokenizer is not None:
                must = "must be left out: the trace holds numbers of tokens, and no text to count"
                raise SpecError([Problem(where, "workload.requests.tokenizer", must, shown(tokenizer))])
            if profile and columns is not None:
                raise SpecError([Problem(where, key, "must be a trace in CSV to take columns, not a profile", shown(name))])
            return load_workload_profile(str(path), where, key) if profile else read_request_trace(path, columns)
    if columns is not None:
        raise SpecError([Problem(where, key, "must be the path of a trace in CSV to take columns", shown(name))])
    if tokenizer is not None:
        raise SpecError([Problem(where, key, "must be the path of a trace of texts to take a tokenizer", shown(name))])
    if "/" in name or Path(name).suffix in (".csv", ".jsonl", ".json", ".yml"):
        raise SpecError([Problem(where, key, "must be the path of a file that exists", shown(name))])
    return load_workload_profile(name, where, key)


def _beside(name: str, base: Path | None) -> Path:
    """A path from the working directory, or else from `base`."""
    return Path(name) if base is None or resources.is_file(Path(name)) else base / name


def read_request_trace(path: str | Path, columns: Mapping[str, str] | None = None) -> RequestTrace:
    """All requests of a trace in order of arrival, the first at 0 s. Raises `SpecError` with file:line of each mistake.

    columns: the file's own names of `arrival_s` (seconds, or dates with a time), `prompt_tokens` and `output_tokens`.
    """
    names = None if columns is None else tuple(columns.get(name, name) for name in GENERIC)
    return _reader_of(names)(path)


@cache
def _reader_of(names: tuple[str, ...] | None) -> Callable[[str | Path], RequestTrace]:
    """The reader of traces with these columns."""
    return resources.once_per_file(lambda path: _read_request_trace(path, names))


def _read_request_trace(path: str | Path, names: tuple[str, ...] | None) -> RequestTrace:
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            return _trace(_Reader(str(path), names), file)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SpecError([Problem(str(path), "", f"must be a readable text file: {why_unreadable(error)}")]) from None


class _Reader:
    """Turns lines into rows and collects the mistakes in them."""

    def __init__(self, source: str, names: Sequence[str] | None = None):
        self.source, self.names = source, names
        self.problems: list[Problem] = []
        self._hash_ids: Any = None  # of the line read last
        self._hashed: bool | None = None  # whether lines have them

    def problem(self, line: int, key: str, must: str, got: object = "", near: str = "") -> None:
        self.problems.append(Problem(f"{self.source}:{line}", key, must, shown(got), near))
        if len(self.problems) >= _MAX_PROBLEMS:
            raise SpecError(self.problems)

    def rows(self, file: TextIO) -> Iterator[Row]:
        first = next((line for line in file if line.strip()), "")
        file.seek(0)
        json_lines = self.names is None and first.lstrip().startswith("{")
        records, arrival_ns = (self._json_lines(file), from_milliseconds) if json_lines else self._csv_lines(file)
        for line, fields in records:
            (arrival_name, arrival), (prompt_name, prompt), (output_name, output) = fields
            time_ns = arrival_ns(arrival)
            if isinstance(time_ns, str):
                self.problem(line, arrival_name, time_ns, arrival)
                continue
            tokens = self._tokens(line, prompt_name, prompt), self._tokens(line, output_name, output)
            yield (time_ns, *tokens, self._texts(line, tokens[0]))

    def _texts(self, line: int, prompt_tokens: int) -> Sequence[int]:
        """The hash ids of a prompt, as many as it has blocks; none where the trace has none."""
        ids, self._hash_ids = self._hash_ids, None
        if self._hashed is None:
            self._hashed = ids is not None
        if ids is None and not self._hashed:
            return ()
        blocks = -(-prompt_tokens // HASH_BLOCK_TOKENS)
        if not isinstance(ids, list) or not all(type(one) is int and 0 <= one < 2**62 for one in ids):
            self.problem(line, "hash_ids", "must be a list of whole numbers from 0, on every line or on none", ids)
            return ()
        if len(ids) != blocks:
            must = f"must hold {blocks} ids, one for each {HASH_BLOCK_TOKENS} of the {prompt_tokens} tokens"
            self.problem(line, "hash_ids", must, len(ids))
        return ids

    def _tokens(self, line: int, name: str, value: Any) -> int:
        if not _WHOLE.fullmatch(str(value)):
            self.problem(line, name, "must be a whole number", value)
            return 0
        number = int(value)
        if not 0 <= number <= MAX_TOKENS:
            self.problem(line, name, f"must be from 0 to {MAX_TOKENS}", value)
        return number

    def _csv_lines(self, file: TextIO) -> tuple[Iterator[tuple[int, Fields]], Callable[[Any], int | str]]:
        reader = csv.reader(file)
        header = [name.strip() for name in next((row for row in reader if row), [])]
        known = ", ".join(AZURE) + " (Azure), " + ", ".join(BURST_GPT) + " (BurstGPT), or " + ", ".join(GENERIC)
        names = self.names or max((GENERIC, AZURE, BURST_GPT), key=lambda names: len(set(names) & set(header)))
        for name in names:
            if name not in header:
                must = "must be a column of the header" + ("" if self.names else f"; known: {known}")
                self.problem(max(1, reader.line_num), name, must, ", ".join(header), nearest(name, header))
        if self.problems:
            raise SpecError(self.problems)
        arrival_ns = from_timestamp if names is AZURE else from_seconds if self.names is None else from_seconds_or_timestamp
        return self._csv_rows(reader, names, [header.index(name) for name in names]), arrival_ns

    def _csv_rows(self, reader: Any, names: Sequence[str], columns: Sequence[int]) -> Iterator[tuple[int, Fields]]:
        for row in reader:
            if not row or row == [""]:
                continue
            if len(row) <= max(columns):
                self.problem(reader.line_num, "", f"must have at least {max(columns) + 1} fields", len(row))
            else:
                yield reader.line_num, [(name, row[column].strip()) for name, column in zip(names, columns, strict=True)]

    def _json_lines(self, file: TextIO) -> Iterator[tuple[int, Fields]]:
        for line, text in enumerate(file, start=1):
            if not text.strip():
                continue
            try:
                record = json.loads(text, object_pairs_hook=unique_keys)
            except (ValueError, RecursionError) as error:
                broken = isinstance(error, (json.JSONDecodeError, RecursionError))
                self.problem(line, "", "must be one JSON object" if broken else str(error), text.strip())
                continue
            missing = [name for name in MOONCAKE if not isinstance(record, dict) or name not in record]
            for name in missing:
                self.problem(line, name, "must be given")
            if not missing:
                self._hash_ids = record.get("hash_ids")
                yield line, [(name, record[name]) for name in MOONCAKE]


def _trace(reader: _Reader, file: TextIO) -> RequestTrace:
    """Rows go into flat arrays as they are read, so that a trace of gigabytes needs no list of its rows."""
    arrival_ns, prompts, outputs, texts, text_ends = array("q"), array("q"), array("q"), array("q"), array("q")
    left_out = 0
    for arrival, prompt, output, ids in reader.rows(file):
        if reader.problems:  # go on for the mistakes alone
            continue
        if prompt > 0 and output > 0:
            arrival_ns.append(arrival)
            prompts.append(prompt)
            outputs.append(output)
            if ids:
                texts.extend(ids)
                text_ends.append(len(texts))
        else:
            left_out += 1
    if reader.problems:
        raise SpecError(reader.problems)
    if not arrival_ns:
        raise SpecError([Problem(reader.source, "", "must hold at least one request with prompt and output tokens")])
    notes = [f"{left_out} requests without prompt or output tokens were left out"] if left_out else []
    columns = [np.frombuffer(column, dtype=np.int64) for column in (arrival_ns, prompts, outputs)]
    shared = _shared(texts, text_ends) if texts else None
    if (columns[0][1:] < columns[0][:-1]).any():
        notes.append("requests were not in order of arrival and have been sorted")
        order = np.argsort(columns[0], kind="stable")
        for column in columns:  # one copy at a time
            column[:] = column[order]
        if shared is not None:
            each = np.split(shared.texts, shared.ends[:-1])
            shared = replace(
                shared, texts=np.concatenate([each[i] for i in order]), ends=np.cumsum(np.diff(shared.ends, prepend=0)[order])
            )
    return RequestTrace(_seconds_in_place(columns[0]), columns[1], columns[2], reader.source, tuple(notes), prompt_texts=shared)


def _shared(texts: array[int], ends: array[int]) -> PromptTexts:
    return PromptTexts(np.frombuffer(texts, dtype=np.int64), np.frombuffer(ends, dtype=np.int64), HASH_BLOCK_TOKENS)


def _seconds_in_place(arrival_ns: Integers) -> Floats:
    """Seconds since the first arrival, in the memory of the nanoseconds."""
    first = int(arrival_ns[0])
    arrival_s = arrival_ns.view(np.float64)
    for start in range(0, len(arrival_ns), _BLOCK):
        block = slice(start, start + _BLOCK)
        arrival_s[block] = (arrival_ns[block] - first) / NANOSECONDS
    return arrival_s
