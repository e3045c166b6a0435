"""What a verb prints is in its JSON: every number of its tables, in SI units, and every sentence, note and setting, word for word."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import yaml

from simulator import console
from simulator.__main__ import main
from simulator.text_table import TextTable
from tests.test_alternatives import NGRAM
from tests.test_capacity import BASE

FEW = {**BASE, "workload": {**BASE["workload"], "num_requests": 40}, "limits": {"max_num_seqs": 16}}
SEVERAL = {**FEW, "alternatives": [NGRAM]}
TREES = {
    **FEW,
    "speculation": {"method": "eagle3", "tree": "steps=3,topk=4,draft_tokens=12"},
    "acceptance": {"mean_acceptance_length": 2.4},
}
OPEN = {key: value for key, value in FEW.items() if key not in ("acceptance", "service_level")}
POINT = "--hardware l40s --engine sglang --target Qwen/Qwen3-8B --method eagle3 --num-speculative-tokens 3 --batch 8"
ACCEPTED = "--context-len 2000 --mean-acceptance-length 2.4"
CASES: dict[str, tuple[dict[str, Any] | None, str]] = {
    "run": (FEW, "run S"),
    "run of several methods": (SEVERAL, "run S"),
    "run of trees": (TREES, "run S"),
    "run with open acceptance": (OPEN, "run S"),
    "capacity": (FEW | {"planning": {"demand_per_s": 40, "price_per_gpu_hour": 2.5}}, "capacity S --repetitions 1"),
    "schedule": (SEVERAL, "schedule S"),
    "break-even": (SEVERAL, "break-even S"),
    "break-even with open acceptance": (OPEN, "break-even S"),
    "explain": (FEW, "explain S"),
    "explain with open acceptance": (OPEN, "explain S"),
    "compare": (FEW, "compare S --by quantize"),
    "predict": (None, f"predict {POINT} {ACCEPTED}"),
    "predict a break-even": (None, f"predict {POINT}"),
}
NUMBER = re.compile(r"(?<![A-Za-z])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
SCALES = {"(ms)": 1e3, "(%": 100.0, "(k tokens)": 1e-3, "(GB)": 1e-9, "(kB": 1e-3}
UNITS = {" ms": 1e3, " %": 100.0}
TITLES = ("Break-even acceptance", "Best method, γ", "γ to run at", "Gain (×)", "Each method at its best")


@pytest.mark.parametrize("case", CASES)
def test_every_number_and_every_sentence_on_the_console_is_in_the_json(case, tmp_path, capsys, monkeypatch):
    data, command = CASES[case]
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(data))
    words = [str(path) if word == "S" else word for word in command.split()]
    tables: list[tuple[list[str], list[list[str]]]] = []

    def kept(header: list[str], rows: list[list[str]], width: int) -> Iterator[TextTable]:
        tables.append((list(header), rows))
        return iter(())

    monkeypatch.setenv("COLUMNS", "100000")
    with monkeypatch.context() as patched:
        patched.setattr(console, "text_tables", kept)
        assert main(words) == 0
    told = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip() and not line.startswith(TITLES)]
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    numbers, texts = np.abs(list(_numbers(document))), "\n".join(_texts(document))
    assert tables
    assert told
    missing = [
        f"{row[0]} | {header[place]}: {cell}"
        for header, rows in tables
        for row in rows
        for place, cell in enumerate(row[1:], start=1)
        if not all(_held(token, _scale(f"{row[0]} {header[place]}", cell), numbers) for token in NUMBER.findall(_plain(cell)))
    ]
    assert not missing, "\n".join(missing)
    lost = [line for line in told if _bare(line) not in _bare(texts)]
    assert not lost, "\n".join(lost)


def _plain(cell: str) -> str:
    """Without names of γ and trees, whose numbers are read elsewhere, and with dashes between bounds apart."""
    return re.sub(r"[\d.]+/\d+/\d+", " ", cell).replace("–", " ")


def _bare(text: str) -> str:
    return re.sub(r"^(Note: |# \S+.*)", "", re.sub(r"\s+", " ", text.replace("\\n", " ")))


def _scale(where: str, cell: str) -> float:
    found = [scale for unit, scale in UNITS.items() if cell.endswith(unit)]
    return next(iter(found + [scale for mark, scale in SCALES.items() if mark in where]), 1.0)


def _held(token: str, scale: float, numbers: np.ndarray) -> bool:
    """Whether a number of the document is this one, as it was rounded for people."""
    value = abs(float(token.replace(",", "")))
    decimals = len(token.partition(".")[2].partition("e")[0])
    unit = 10.0**-decimals
    if value:
        unit = max(unit, 10.0 ** (math.floor(math.log10(value)) - 2)) if decimals == 0 or "e" in token else unit
    return bool((np.abs(numbers * scale - value) <= 0.501 * unit).any())


def _numbers(node: Any) -> Iterator[float]:
    if isinstance(node, bool) or node is None:
        return
    if isinstance(node, (int, float)):
        yield float(node)
    elif isinstance(node, dict):
        for key, item in node.items():
            yield from _numbers(item)
            if key.isdigit():
                yield float(key)
    elif isinstance(node, list):
        for item in node:
            yield from _numbers(item)


def _texts(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, (dict, list)):
        for item in node.values() if isinstance(node, dict) else node:
            yield from _texts(item)
