"""Requests without arrival times: ShareGPT conversations, and lengths that were counted before.

 - ShareGPT: a JSON array, or JSON lines, of ``{"conversations": [{"from": …, "value": …}, …]}`` (or ``conversation``). The first
   turn is the prompt, the second the answer, as benchmarks take them; later turns are not used. Tokens are counted by a tokenizer
   that is given, else a token is taken as `BYTES_PER_TOKEN` bytes of UTF-8.
 - lengths: CSV with ``prompt_tokens`` and ``output_tokens``.
An entry without both turns, or with an empty one, is left out, and the trace's `notes` say how many. Reading is a stream: a file
costs two numbers a request and one conversation at a time.
"""

from __future__ import annotations

import csv
import json
import math
import re
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from simulator.extra import not_installed
from simulator.spec import Problem, SpecError, shown, why_unreadable
from simulator.workload import MAX_TOKENS, RequestTrace

# English chat and explanations: 4.0 to 4.3 bytes a token by the tokenizer of SmolLM2 (49,152 tokens), code 3.5 to 3.9, lists of
# numbers 3.0, all on this project's own prompts; larger vocabularies make longer tokens.
BYTES_PER_TOKEN = 4.0
_CHUNK = 2**15
_LONGEST = 2**24  # characters of one conversation
_TURNS = ("conversations", "conversation")
_LENGTHS = ("prompt_tokens", "output_tokens")
_MAX_PROBLEMS = 20
_WHOLE = re.compile(r"[0-9]{1,12}")
Counter = Callable[[str], int]


def is_untimed(path: Path) -> bool:
    """Whether a file holds conversations, or lengths without arrivals, by its beginning. False where it cannot be read."""
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            start = file.read(_CHUNK).lstrip()
    except OSError:
        return False
    header = [name.strip() for name in start.partition("\n")[0].split(",")]
    if start.startswith("["):
        return True
    if start.startswith("{"):
        return any(f'"{name}"' in start for name in _TURNS) and '"timestamp"' not in start
    return set(_LENGTHS) <= set(header) and "arrival_s" not in header


def read_untimed(path: Path, tokenizer: Path | None = None) -> RequestTrace:
    """Its requests in the file's order, all at 0 s. Raises `SpecError` with file:line of each mistake.

    tokenizer: a `tokenizer.json` of Hugging Face, which needs the package tokenizers.
    """
    prompts, outputs, left_out = array("q"), array("q"), 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            conversations = file.read(_CHUNK).lstrip().startswith(("[", "{"))
            file.seek(0)
            if not conversations and tokenizer is not None:
                must = "must be left out: the file holds numbers of tokens, and no text to count"
                raise SpecError([Problem(str(path), "tokenizer", must)])
            pairs = _conversations(file, str(path), _counter(tokenizer)) if conversations else _lengths(file, str(path))
            for prompt, output in pairs:
                if prompt and output:
                    prompts.append(min(prompt, MAX_TOKENS))
                    outputs.append(min(output, MAX_TOKENS))
                else:
                    left_out += 1
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SpecError([Problem(str(path), "", f"must be a readable text file: {why_unreadable(error)}")]) from None
    if not prompts:
        raise SpecError([Problem(str(path), "", "must hold at least one request with prompt and output tokens")])
    notes = [f"{left_out} requests without a prompt or an answer were left out"] if left_out else []
    if conversations and tokenizer is None:
        notes.append(f"tokens are estimated: {BYTES_PER_TOKEN:g} bytes of UTF-8 each; a tokenizer would count them")
    lengths = [np.frombuffer(column, dtype=np.int64) for column in (prompts, outputs)]
    return RequestTrace(np.zeros(len(prompts)), lengths[0], lengths[1], source=str(path), notes=tuple(notes), timed=False)


def _counter(tokenizer: Path | None) -> Counter:
    """How tokens of a text are counted. Raises `SpecError` where the tokenizer cannot be used."""
    if tokenizer is None:
        return lambda text: math.ceil(len(text.encode("utf-8", "replace")) / BYTES_PER_TOKEN)
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise not_installed(str(tokenizer), ["tokenizers"], "tokenizer") from None
    try:
        counting = Tokenizer.from_file(str(tokenizer))
    except Exception as error:  # the library raises Exception itself
        must = f"must be a tokenizer.json of Hugging Face: {str(error)[:120]}"
        raise SpecError([Problem(str(tokenizer), "tokenizer", must)]) from None
    return lambda text: len(counting.encode(text, add_special_tokens=False).ids)


# -------------------------------------------------------------------------------------------------------- conversations


def _conversations(file: TextIO, source: str, tokens: Counter) -> Iterator[tuple[int, int]]:
    """(prompt, output) tokens of each conversation; (0, 0) of one without two turns of text."""
    for line, entry in _entries(file, source):
        if not isinstance(entry, dict) or not any(name in entry for name in _TURNS):
            raise SpecError([Problem(f"{source}:{line}", "", "must be an object with conversations", shown(entry))])
        turns = next(entry[name] for name in _TURNS if name in entry)
        if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
            must = 'must be a list of turns such as {"from": "human", "value": "…"}'
            raise SpecError([Problem(f"{source}:{line}", "conversations", must, shown(turns))])
        texts = [turn.get("value") for turn in turns[:2]]
        if len(texts) < 2 or not all(isinstance(text, str) for text in texts):
            yield 0, 0
        else:
            prompt, output = (tokens(text) for text in texts if isinstance(text, str))
            yield prompt, output


def _entries(file: TextIO, source: str) -> Iterator[tuple[int, Any]]:
    """(line, value) of each value of a JSON array, or of one value after the other, holding one of them at a time.

    Raises `SpecError` at the first that is no JSON, is cut short or is longer than 16 million characters.
    """
    decoder, text, line, inside, ended = json.JSONDecoder(), "", 1, False, False
    while True:
        stripped = text.lstrip(" \t\r\n" if not inside else " \t\r\n,")
        line += text.count("\n", 0, len(text) - len(stripped))
        text = stripped
        if not text:
            text = file.read(_CHUNK)
            if not text:
                break
            continue
        if ended:
            raise SpecError([Problem(f"{source}:{line}", "", "must hold nothing after the end of its array", shown(text[:40]))])
        if text[0] in "[]" and (text[0] == "]") is inside:
            inside, ended, text = not inside, inside, text[1:]
            continue
        value, end, text = _next(decoder, text, file, f"{source}:{line}")
        yield line, value
        line += text.count("\n", 0, end)
        text = text[end:]
    if inside:
        raise SpecError([Problem(f"{source}:{line}", "", "must be a whole JSON array: the file is cut short")])


def _next(decoder: json.JSONDecoder, text: str, file: TextIO, where: str) -> tuple[Any, int, str]:
    """(value, end, text) of the value that text begins with, reading on until it is whole."""
    wanted = _CHUNK
    while True:
        try:
            value, end = decoder.raw_decode(text)
            return value, end, text
        except RecursionError:
            raise SpecError([Problem(where, "", "must be JSON that is less deeply nested")]) from None
        except ValueError as error:
            more = file.read(wanted) if len(text) < _LONGEST else ""
            if not more:
                what = "of at most 16 million characters each" if len(text) >= _LONGEST else f"{error}"[:120]
                raise SpecError([Problem(where, "", f"must be whole JSON objects: {what}")]) from None
            text, wanted = text + more, 2 * wanted


# -------------------------------------------------------------------------------------------------------------- lengths


def _lengths(file: TextIO, source: str) -> Iterator[tuple[int, int]]:
    """(prompt, output) tokens of each row."""
    reader, problems = csv.reader(file), []
    header = [name.strip() for name in next(reader, [])]
    places = [header.index(name) for name in _LENGTHS]
    for row in reader:
        if not row:
            continue
        cells = [row[place].strip() if place < len(row) else "" for place in places]
        for name, cell in zip(_LENGTHS, cells, strict=True):
            if not _WHOLE.fullmatch(cell) or int(cell) > MAX_TOKENS:
                must = f"must be a whole number from 0 to {MAX_TOKENS}"
                problems.append(Problem(f"{source}:{reader.line_num}", name, must, shown(cell)))
        if len(problems) >= _MAX_PROBLEMS:
            break
        if not problems:
            yield int(cells[0]), int(cells[1])
    if problems:
        raise SpecError(problems)
