"""Prompts to trace: the built-in set, or a file of JSON lines."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BUILTIN = Path(__file__).parent / "prompt_sets" / "builtin.jsonl"
# `turns`, `question_id` and `reference` are how the common question files spell it: their first turn is the prompt.
_KEYS = ("prompt", "category", "turns", "question_id", "reference")


class PromptError(ValueError):
    """A prompt file that cannot be used: file and line, and what must be there."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Text to continue, and the kind of text it is ("" where nobody said)."""

    text: str
    category: str = ""


def read_prompts(path: str | Path) -> list[Prompt]:
    """One prompt per line: `{"prompt": "...", "category": "code"}`, or `{"turns": ["..."], "category": ...}`.

    Raises PromptError with the line of the first mistake.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").split("\n")  # not at the other ends of line that a text may hold
    except FileNotFoundError:
        raise PromptError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise PromptError(f"{path}: must be a file, not a folder") from None
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(f"{path}: cannot be read: {error}") from None
    prompts = [_prompt(f"{path}:{number}", line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not prompts:
        raise PromptError(f"{path}: must hold at least one prompt, one JSON object per line")
    if len({bool(prompt.category) for prompt in prompts}) > 1:
        raise PromptError(f"{path}: category: must stand on every line or on none")
    return prompts


def _prompt(where: str, line: str) -> Prompt:
    try:
        data: Any = json.loads(line, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise PromptError(f"{where}: must be one JSON object per line: {getattr(error, 'msg', error)}") from None
    if not isinstance(data, dict):
        raise PromptError(f"{where}: must be a JSON object with a prompt (got {line[:40]!r})")
    unknown = sorted(set(data) - set(_KEYS))
    if unknown:
        raise PromptError(f"{where}: {unknown[0]}: unknown key; known here: {', '.join(_KEYS)}")
    if ("prompt" in data) == ("turns" in data):
        raise PromptError(f"{where}: must have exactly one of prompt, turns")
    turns = data.get("turns")
    text = turns[0] if isinstance(turns, list) and turns else data.get("prompt")
    if not isinstance(text, str) or not text.strip():
        raise PromptError(f"{where}: prompt: must be text that is not empty")
    if not _is_unicode(text):
        raise PromptError(f"{where}: prompt: must be text in Unicode (it holds half of a surrogate pair)")
    category = data.get("category", "")
    if not isinstance(category, str) or not _is_unicode(category):
        raise PromptError(f"{where}: category: must be text (got {category!r})")
    return Prompt(text, category)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """One of two prompts on a line would be lost."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)}: must stand only once")
    return found


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
