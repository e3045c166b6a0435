"""`--large` adds the loads of 200,000 and a million requests; `--record NOTE` appends the measurements to `history.csv`."""

from __future__ import annotations

import csv
import platform
from pathlib import Path
from typing import Any

import pytest

HISTORY = Path(__file__).with_name("history.csv")
ROWS: list[dict[str, Any]] = []
COLUMNS = (
    "note", "python", "load", "speculative_tokens", "engine", "requests", "cpu_s", "generate_s", "serve_s", "summarise_s",
    "requests_per_cpu_s", "wakes_per_request", "us_per_wake", "steps", "peak_mib",
)  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--large", action="store_true", help="also 200,000 and a million requests")
    parser.addoption("--record", metavar="NOTE", help="append the measurements to benchmarks/history.csv under this note")


def pytest_sessionfinish(session: pytest.Session) -> None:
    note = session.config.getoption("--record")
    if not note or not ROWS:
        return
    new = not HISTORY.exists()
    with HISTORY.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        if new:
            writer.writeheader()
        for row in ROWS:
            rounded = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in row.items()}
            writer.writerow({"note": note, "python": platform.python_version(), **rounded})
