"""Device: what PyTorch runs on, its facts, its clock, and how one sample is taken.

A CPU is timed by the thread's CPU time, which leaves out time spent descheduled, with wall time beside it; a GPU by events
on its own stream. Short kernels of a GPU are timed inside a CUDA graph, since a kernel of a few microseconds launched one
by one shows the host and not the device.
"""

from __future__ import annotations

import itertools
import math
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from calibration.measurement import SHORTEST_SAMPLE_S, Clock

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.float8_e4m3fn}
DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
_MOST_CALLS = 4096
_MOST_CALLS_OF_A_GRAPH = 256
_SHORT_S = 0.01
_MOST_COPIES = 256
_ALIGNED = 256
_RANDOM_BLOCK = 2**20 + 1


class UnsupportedError(RuntimeError):
    """The device or this PyTorch cannot do what a cell asks."""


@dataclass(frozen=True, slots=True)
class Work:
    """Something to time: `functions` do the same on different data, in turn, so that caches keep only what a model finds there.

    prepare: undoes a call, before every sample and untimed; then a sample is one call. capture: goes into a CUDA graph.
    """

    functions: Sequence[Callable[[], object]]
    prepare: Callable[[], object] | None = None
    capture: bool = True


@dataclass(frozen=True, slots=True)
class Samples:
    """Seconds per call: `calls` of them to a sample; wall seconds only where the clock is another."""

    calls: int
    seconds: tuple[float, ...]
    wall_seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """What the device is. Bytes. cache_bytes: its last level of cache; compute_units: multiprocessors, or cores in use."""

    name: str
    driver: str
    compute_capability: str
    memory_bytes: int
    cache_bytes: int
    compute_units: int
    count: int


class Device:
    """A device of PyTorch: `cpu`, `cuda` or `mps`. Sets the number of CPU threads.

    Raises UnsupportedError where PyTorch has no such device.
    """

    def __init__(self, kind: str, threads: int = 1):
        available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        if not available.get(kind, False):
            raise UnsupportedError(f"this PyTorch ({torch.__version__}) finds no {kind} device")
        torch.set_num_threads(threads)
        self.kind, self.threads = kind, threads
        self._refusals: dict[str, str] = {}
        self._stores: dict[str, torch.Tensor] = {}
        self.torch_device = torch.device(kind)
        self.facts = _cpu_facts(threads) if kind == "cpu" else _cuda_facts() if kind == "cuda" else _mps_facts()
        # The thread's clock counts the calling thread only.
        self.clock: Clock = "device" if kind == "cuda" else "thread_cpu" if kind == "cpu" and threads == 1 else "wall"

    def synchronize(self) -> None:
        """Waits until the device is idle."""
        if self.kind == "cuda":
            torch.cuda.synchronize()
        elif self.kind == "mps":
            torch.mps.synchronize()

    def free_memory(self) -> None:
        """Drops operands and gives cached memory back."""
        self._stores.clear()
        if self.kind == "cuda":
            torch.cuda.empty_cache()
        elif self.kind == "mps":
            torch.mps.empty_cache()

    def random(self, *shape: int, dtype: str) -> torch.Tensor:
        """Normal numbers of standard deviation 0.02, as of weights: one block of them repeated, since drawing takes time."""
        numbers = math.prod(shape)
        block = torch.empty(min(numbers, _RANDOM_BLOCK), device=self.torch_device).normal_(0.0, 0.02).to(DTYPES[dtype])
        return block.repeat(math.ceil(numbers / block.numel()))[:numbers].view(shape) if numbers else block.view(shape)

    def unit_scale(self) -> torch.Tensor:
        """The factor that leaves 8-bit numbers as they are."""
        return torch.ones((), device=self.torch_device)

    def operands(self, *shape: int, dtype: str, least: int = 1) -> list[torch.Tensor]:
        """Different tensors of `shape`, together more than twice the last cache; all cells share one store of numbers."""
        item = -(-math.prod(shape) // _ALIGNED) * _ALIGNED
        count = max(min(math.ceil(2 * self.facts.cache_bytes / (item * DTYPE_BYTES[dtype])), _MOST_COPIES), least)
        store = self._stores.get(dtype)
        if store is None or store.numel() < count * item:
            self._stores.pop(dtype, None)
            store = self._stores[dtype] = self.random(count * item, dtype=dtype)
        return [store[start * item :][: math.prod(shape)].view(shape) for start in range(count)]

    def refusal(self, dtype: str) -> str:
        """Why GEMM in `dtype` does not run here, or "". A CPU without the instructions emulates small types slowly."""
        if dtype not in self._refusals:
            self._refusals[dtype] = self._tried(dtype)
        return self._refusals[dtype]

    def _tried(self, dtype: str) -> str:
        try:
            linear(self.random(16, 64, dtype=dtype), self.random(32, 64, dtype=dtype), self.unit_scale())
            self.synchronize()
        except (RuntimeError, TypeError, NotImplementedError, ValueError) as error:
            return first_line(error)
        return ""

    def captured(self, run: Callable[[], object]) -> Callable[[], object]:
        """`run` as one CUDA graph; as it is on devices without graphs."""
        if self.kind != "cuda":
            return run
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        replay: Callable[[], object] = graph.replay
        return replay

    def seconds_of(self, run: Callable[[], object]) -> tuple[float, float]:
        """(seconds by the device's clock, wall seconds) of one call, waited for."""
        if self.kind == "cuda":
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self.synchronize()
            wall = time.perf_counter()
            start.record()
            run()
            end.record()
            self.synchronize()
            return start.elapsed_time(end) / 1e3, time.perf_counter() - wall
        self.synchronize()
        wall, thread = time.perf_counter(), time.thread_time()
        run()
        self.synchronize()
        thread, wall = time.thread_time() - thread, time.perf_counter() - wall
        return (thread if self.clock == "thread_cpu" else wall), wall

    def sample(self, work: Work, samples: int, visit_s: float, warm: bool = False) -> Samples:
        """A call to warm up, discarded; then `samples` samples, or as many as `visit_s` allows, two at least.

        warm: the work ran before and its calls are long. On a CPU its first call then takes as long as any other
        (medians of 8 visits to 8 kinds of pass: within 2 %), so that none is discarded.
        """
        if work.prepare is not None:
            return self._prepared_samples(work.functions[0], work.prepare, samples, visit_s, warm and self.kind == "cpu")
        once_s, _ = self.seconds_of(work.functions[0])
        if once_s < _SHORT_S:  # the first calls of a short one still find memory unmapped
            once_s = min(self.seconds_of(function)[0] for function in itertools.islice(itertools.cycle(work.functions), 3))
        graph = self.kind == "cuda" and work.capture
        calls = min(max(math.ceil(SHORTEST_SAMPLE_S / max(once_s, 1e-7)), 1), _MOST_CALLS)
        if graph:
            calls = max(min(calls, _MOST_CALLS_OF_A_GRAPH), len(work.functions))
        turn = itertools.cycle(work.functions)
        burst: Callable[[], object] = lambda: [next(turn)() for _ in range(calls)]  # noqa: E731
        if graph:
            burst = self.captured(burst)
            burst()
        taken = [self.seconds_of(burst) for _ in range(_fitting(samples, calls * once_s, visit_s))]
        return self._per_call(calls, taken)

    def _prepared_samples(
        self, run: Callable[[], object], prepare: Callable[[], object], samples: int, visit_s: float, warm: bool
    ) -> Samples:
        taken: list[tuple[float, float]] = []
        discarded, wanted = not warm, samples
        while len(taken) < wanted:
            prepare()
            took = self.seconds_of(run)
            wanted = _fitting(samples, took[0], visit_s)
            if discarded:
                discarded = False
            else:
                taken.append(took)
        prepare()
        return self._per_call(1, taken)

    def _per_call(self, calls: int, taken: Sequence[tuple[float, float]]) -> Samples:
        seconds, wall = ([_rounded(item[part] / calls) for item in taken] for part in (0, 1))
        return Samples(calls, tuple(seconds), () if self.clock == "wall" else tuple(wall))


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes on this thread alone: others are not on its clock, and on a busy machine they wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def best_kind() -> str:
    """cuda where there is one, else mps, else cpu."""
    return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"


def linear(rows: torch.Tensor, weights: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
    """rows[m, k] · weights[n, k]ᵀ; 8-bit ones by `scale` (of either factor), with 16-bit output."""
    if rows.dtype == torch.float8_e4m3fn:
        return torch._scaled_mm(rows, weights.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)
    return torch.nn.functional.linear(rows, weights)


def first_line(error: BaseException) -> str:
    """The first line of an error's text, short."""
    text = str(error).strip().split("\n", 1)[0] or type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."


def _fitting(samples: int, each_s: float, visit_s: float) -> int:
    return max(min(samples, int(visit_s / max(each_s, 1e-9))), min(samples, 2))


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.6g}")


def _cpu_facts(threads: int) -> Facts:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Facts(_cpu_name(), "", "", memory, _cpu_cache_bytes(), threads, 1)


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _cpu_cache_bytes() -> int:
    """The largest cache that Linux reports; 32 MiB where it reports none."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text[:-1]) * {"K": 2**10, "M": 2**20}.get(text[-1:], 1) if text[-1:] in "KM" else int(text))
    return max(sizes, default=32 * 2**20)


def _cuda_facts() -> Facts:
    found = torch.cuda.get_device_properties(0)
    return Facts(
        found.name,
        _nvidia_driver(),
        f"{found.major}.{found.minor}",
        found.total_memory,
        getattr(found, "L2_cache_size", 50 * 2**20),
        found.multi_processor_count,
        torch.cuda.device_count(),
    )


def _nvidia_driver() -> str:
    """The driver's version, with the CUDA version of this PyTorch."""
    version = f"CUDA {torch.version.cuda}"
    if shutil.which("nvidia-smi"):
        asked = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True, check=False
        )
        if asked.returncode == 0 and asked.stdout.strip():
            return f"{asked.stdout.split()[0]}, {version}"
    return version


def _mps_facts() -> Facts:
    memory = int(torch.mps.recommended_max_memory())
    return Facts(_cpu_name(), platform.mac_ver()[0], "", memory, 32 * 2**20, 1, 1)
