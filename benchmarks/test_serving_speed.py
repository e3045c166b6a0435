"""CPU time of the two engines on one core. `LIMITS` hold on an idle machine; ratios within a run hold anywhere."""

from __future__ import annotations

import json
import math
import os
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from benchmarks.conftest import ROWS
from benchmarks.loads import Measurement, measure, scenario
from simulator.serving import RouterName
from simulator.simulation import Server

DRAFTS = (0, 4, "by_batch")
PREDICT = [
    *("predict", "--hardware", "h100_sxm", "--target", "llama-3.1-8b", "--method", "eagle3", "--num-speculative-tokens", "3")
]


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


def test_a_run_keeps_to_one_thread() -> None:
    """CPU time counts every thread of the program: idle ones of a library must not spin meanwhile."""
    measure("B", 0)  # what is left of others is over by now
    all_before, own_before = time.process_time(), time.thread_time()
    measure("B", 0)
    own_s = time.thread_time() - own_before
    others_s = time.process_time() - all_before - own_s
    print(f"\nother threads: {others_s:.3f} CPU seconds beside {own_s:.3f}")
    assert others_s <= 0.02 * own_s


@pytest.mark.parametrize("router", get_args(RouterName))
def test_eight_replicas_cost_little_more_than_one(router: RouterName) -> None:
    ratios = []
    for _ in range(3):
        eight, one = (measure("C", 0, requests=4_000, replicas=replicas, router=router)[0] for replicas in (8, 1))
        ratios.append(eight.serve_s / one.serve_s)
    print(f"\n8 replicas / 1, {router} = {statistics.median(ratios):.2f}")
    assert statistics.median(ratios) <= 1.3


def test_a_request_of_a_large_load_costs_no_more_than_one_of_an_hour() -> None:
    hour, large = measure("C", 0)[0], measure("D", 0, requests=40_000)[0]
    ratio = (large.cpu_s / large.requests) / (hour.cpu_s / hour.requests)
    print(f"\nCPU per request, D / C = {ratio:.2f}")
    assert ratio <= 1.15


def test_run_answers_quickly(tmp_path: Path) -> None:
    """From the start of Python to the table. As installed, that is with compiled modules, which the first run leaves behind."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(tmp_path)
    cpu_s = [_cpu_s([sys.executable, "-m", "simulator", "run", "quickstart"], environment) for _ in range(4)][1:]
    print(f"\nrun quickstart: {min(cpu_s):.2f} CPU seconds")
    assert min(cpu_s) <= 1.5


@pytest.mark.parametrize(("arguments", "most_s"), [(["--help"], 0.4), (["list"], 0.8), (PREDICT, 0.6)])
def test_short_questions_are_answered_at_once(arguments: list[str], most_s: float) -> None:
    cpu_s = [_cpu_s([sys.executable, "-m", "simulator", *arguments], dict(os.environ)) for _ in range(3)]
    print(f"\n{arguments[0]}: {min(cpu_s):.2f} CPU seconds")
    assert min(cpu_s) <= most_s


def _cpu_s(command: list[str], environment: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_cpu_time_grows_in_proportion_to_requests() -> None:
    small, large = (measure("D", 0, requests=count)[0] for count in (10_000, 40_000))
    exponent = math.log(large.cpu_s / small.cpu_s) / math.log(large.requests / small.requests)
    print(f"\ngrowth exponent {exponent:.3f}")
    assert exponent < 1.15


@pytest.mark.parametrize("time_out_s", [None, 60.0])
def test_a_request_costs_no_more_in_a_long_queue_or_where_many_give_up(time_out_s: float | None) -> None:
    """All come within a tenth of the time that it takes to serve them."""

    def cpu_s_per_request(count: int) -> float:
        asked = scenario("C", 0, count)
        server = Server.of(asked)
        burst = tuple(replace(request, arrival_s=request.arrival_s / 14) for request in asked.requests())
        begin = time.process_time()
        server.serve(burst, server.path, time_out_s=time_out_s)
        return (time.process_time() - begin) / count

    ratios = [cpu_s_per_request(12_000) / cpu_s_per_request(3_000) for _ in range(3)]
    print(f"\nCPU per request, 12,000 / 3,000 at once = {statistics.median(ratios):.2f}")
    assert statistics.median(ratios) <= 1.15


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
