"""CPU time of the two engines on one core. `LIMITS` hold on an idle machine; ratios within a run hold anywhere."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import time
from typing import Any

import pytest

from benchmarks.conftest import ROWS
from benchmarks.loads import Measurement, measure

DRAFTS = (0, 4, "by_batch")


@pytest.mark.benchmark(timer=time.process_time)
@pytest.mark.parametrize("drafts", DRAFTS)
@pytest.mark.parametrize("load", ["A", "B", "C"])
def test_fast_engine(benchmark: Any, load: str, drafts: int | str) -> None:
    _measured(benchmark, load, drafts, readable=False, rounds=1 if load == "C" else 5)


@pytest.mark.benchmark(timer=time.process_time)
@pytest.mark.parametrize("drafts", DRAFTS[:2])
@pytest.mark.parametrize("load", ["A", "B", "C"])
def test_readable_engine(benchmark: Any, load: str, drafts: int | str) -> None:
    _measured(benchmark, load, drafts, readable=True, rounds=1 if load == "C" else 3)


@pytest.mark.parametrize("drafts", DRAFTS[:2])
@pytest.mark.parametrize("load", ["A", "B"])
def test_fast_engine_is_several_times_as_fast_as_the_readable_one(load: str, drafts: int) -> None:
    """Taken in turn, so that a busy machine slows both."""
    ratios = []
    for _ in range(3):
        fast, readable = measure(load, drafts)[0], measure(load, drafts, readable=True)[0]
        ratios.append(readable.serve_s / fast.serve_s)
    print(f"\n{load}, γ = {drafts}: readable / fast = {statistics.median(ratios):.2f}")
    assert statistics.median(ratios) >= 2.5
    assert fast.wakes_per_request <= 3


def test_choosing_drafts_by_batch_costs_little() -> None:
    by_batch, fixed = measure("A", "by_batch")[0], measure("A", 4)[0]
    print(f"\nγ by batch / fixed γ = {by_batch.serve_s / fixed.serve_s:.2f}")
    assert by_batch.serve_s <= 3 * fixed.serve_s


def test_cpu_time_grows_in_proportion_to_requests() -> None:
    small, large = (measure("D", 0, requests=count)[0] for count in (10_000, 40_000))
    exponent = math.log(large.cpu_s / small.cpu_s) / math.log(large.requests / small.requests)
    print(f"\ngrowth exponent {exponent:.3f}")
    assert exponent < 1.15


@pytest.mark.parametrize(("load", "cpu_s", "mib"), [("D", 15, 400), ("E", 90, 1024)])
def test_large_loads_stay_small(request: pytest.FixtureRequest, load: str, cpu_s: float, mib: float) -> None:
    if not request.config.getoption("--large"):
        pytest.skip("asked for by --large")
    found = json.loads(
        subprocess.run([sys.executable, "-m", "benchmarks.loads", load, "0"], capture_output=True, check=True).stdout
    )
    ROWS.append(found)
    print(f"\n{load}: {found['cpu_s']:.1f} CPU seconds (limit {cpu_s}), {found['peak_mib']:.0f} MiB (limit {mib})")
    assert found["peak_mib"] <= mib
    assert found["cpu_s"] <= cpu_s


def _measured(benchmark: Any, load: str, drafts: int | str, readable: bool, rounds: int) -> None:
    found: list[Measurement] = []
    benchmark.pedantic(lambda: found.append(measure(load, drafts, readable)[0]), rounds=rounds, warmup_rounds=int(rounds > 1))
    middle = sorted(found, key=lambda one: one.serve_s)[len(found) // 2]
    benchmark.extra_info.update(middle.as_row())
    ROWS.append(middle.as_row())
    print(
        f"\n{load} γ = {drafts} {middle.engine}: {middle.requests_per_cpu_s:,.0f} requests per CPU second, "
        f"{middle.wakes_per_request:.2f} wakes per request of {middle.us_per_wake:.0f} µs, {middle.cpu_s:.2f} CPU s in all"
    )
