"""Prompts already traced, one JSON line each beside the trace to be, so that a killed run goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from calibration.tracing import Numbers, PromptTrace

# Of what a line holds: a log of another version is begun anew.
_VERSION = 2


class TraceLog:
    """The log of one run. Its first line says what is traced and how; a log of anything else is begun anew."""

    def __init__(self, path: Path, settings: Mapping[str, Any]):
        self.path = path
        self._header = json.dumps({"settings": settings, "version": _VERSION}, sort_keys=True)
        self.finished: dict[int, PromptTrace] = {}
        lines = path.read_bytes().split(b"\n") if path.is_file() else []
        # What follows the last line end was being written when the run was killed.
        if len(lines) > 1 and lines[0] == self._header.encode():
            for line in lines[1:-1]:
                try:
                    entry = json.loads(line)
                    self.finished[entry.pop("index")] = _prompt_trace(entry)
                except (ValueError, KeyError, TypeError, AttributeError):
                    break  # damaged: this prompt and those after it are traced again
        kept = [line + b"\n" for line in (lines[: 1 + len(self.finished)] if self.finished else [self._header.encode()])]
        path.write_bytes(b"".join(kept))

    def append(self, index: int, trace: PromptTrace) -> None:
        """Adds the trace of the prompt with this number."""
        self.finished[index] = trace
        with self.path.open("ab") as file:
            file.write(json.dumps({"index": index, **asdict(trace)}).encode() + b"\n")

    def remove(self) -> None:
        """Once the trace itself is written."""
        self.path.unlink(missing_ok=True)


def _prompt_trace(entry: Mapping[str, Any]) -> PromptTrace:
    acceptance, confidence = _numbers(entry["acceptance"]), _numbers(entry["confidence"])
    assert acceptance is not None
    proposed = None if entry["proposed"] is None else tuple(entry["proposed"])
    return PromptTrace(tuple(entry["tokens"]), acceptance, proposed, entry["prompt_sha256"], confidence)


def _numbers(values: list[Any] | None) -> Numbers | None:
    return None if values is None else tuple(tuple(value) if isinstance(value, list) else value for value in values)
