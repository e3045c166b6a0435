"""The loads, and one measurement of each: CPU seconds, engine wakes and memory.

An 8B model on one H100 under vLLM, requests as in the Azure conversation hour of 2023. A: 1,000 requests at 6.45 a second.
B: 2,000 at 2.0. C: the hour itself at 70 % of what the replica can finish (26.3 a second when saturated), from the recorded
trace where `TRACE` is there, else from the profile derived from it. D and E: 200,000 and a million of the profile at that rate.

    python -m benchmarks.loads D 0        one measurement in a process of its own, as JSON
"""

from __future__ import annotations

import json
import resource
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from simulator.scenario import Scenario, scenario_of
from simulator.serving import RouterName, ServingResult, serve_on_replicas, summarise
from simulator.simulation import Server
from simulator.spec import Document

TRACE = Path(__file__).parents[2] / "shared/traces/AzureLLMInferenceTrace_conv.csv"
SEVENTY_PER_CENT = 18.4  # requests a second
LOADS: dict[str, tuple[float, int]] = {
    "A": (6.45, 1_000),
    "B": (2.0, 2_000),
    "C": (SEVENTY_PER_CENT, 19_366),
    "D": (SEVENTY_PER_CENT, 200_000),
    "E": (SEVENTY_PER_CENT, 1_000_000),
}
BY_BATCH = ((1, 8, 5), (9, 64, 2), (65, 512, 0))


@dataclass(frozen=True)
class Measurement:
    """One run: CPU seconds of making, serving and summarising the requests; wakes of the engine; peak memory of the process."""

    load: str
    speculative_tokens: str
    engine: str
    requests: int
    generate_s: float
    serve_s: float
    summarise_s: float
    wakes: int
    steps: int
    peak_mib: float

    @property
    def cpu_s(self) -> float:
        return self.generate_s + self.serve_s + self.summarise_s

    @property
    def requests_per_cpu_s(self) -> float:
        return self.requests / self.serve_s

    @property
    def wakes_per_request(self) -> float:
        return self.wakes / self.requests

    @property
    def us_per_wake(self) -> float:
        return 1e6 * self.serve_s / self.wakes

    def as_row(self) -> dict[str, Any]:
        derived = ("cpu_s", "requests_per_cpu_s", "wakes_per_request", "us_per_wake")
        return asdict(self) | {name: getattr(self, name) for name in derived}


def scenario(load: str, gamma: int | str, requests: int | None = None) -> Scenario:
    """gamma: drafts a round, 0 for no speculation, or ``by_batch``."""
    rate, count = LOADS[load]
    recorded = load == "C" and TRACE.exists()
    arrivals = {"process": "trace" if recorded else "poisson", "rate_per_s": rate}
    data: dict[str, Any] = {
        "hardware": "h100_sxm",
        "engine": "vllm",
        "target": {"model": "meta-llama/Llama-3.1-8B-Instruct"},
        "workload": {
            "arrivals": arrivals,
            "requests": {"trace": str(TRACE) if recorded else "azure_conv_2023"},
            "num_requests": requests or count,
        },
        "seed": 1,
    }
    if gamma:
        drafts = {"by_batch": BY_BATCH} if gamma == "by_batch" else {"num_speculative_tokens": gamma}
        data["speculation"] = {"method": "eagle3", "drafter": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", **drafts}
        data["acceptance"] = {"acceptance_rate": 0.7}
    return scenario_of(Document("benchmark", data, {}))


def measure(
    load: str,
    gamma: int | str,
    readable: bool = False,
    requests: int | None = None,
    replicas: int = 1,
    router: RouterName = "round_robin",
) -> tuple[Measurement, ServingResult]:
    """Runs a load once. Several replicas share as many requests, which come as many times faster."""
    asked = scenario(load, gamma, requests)
    server = Server.of(asked, max(asked.shapes, key=lambda shape: shape.nodes, default=None))
    begin = time.process_time()
    arriving = asked.requests()
    if replicas > 1:
        arriving = tuple(replace(request, arrival_s=request.arrival_s / replicas) for request in arriving)
    generated = time.process_time()

    engines = [server.engine() for _ in range(replicas)]
    expect = {} if server.paths is None else {"expect": server.paths.expect}
    result = serve_on_replicas(arriving, engines, server.path, router=router, readable=readable, **expect)
    served = time.process_time()
    summarise(result)
    end = time.process_time()
    return Measurement(
        load, str(gamma), "readable" if readable else "fast", len(arriving), generated - begin, served - generated, end - served,
        result.statistics.wakes, result.statistics.steps, peak_mib(),
    ), result  # fmt: skip


def peak_mib() -> float:
    """The most memory that this program had. On Linux `getrusage` would also count that of the program that started it."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return next(float(line.split()[1]) / 1024 for line in status.read_text().splitlines() if line.startswith("VmHWM:"))


if __name__ == "__main__":
    drafts = sys.argv[2]
    print(json.dumps(measure(sys.argv[1], int(drafts) if drafts.isdigit() else drafts)[0].as_row()))
