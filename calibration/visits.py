"""One visit to one cell: build its work, sample it, and turn what goes wrong into a status instead of an end of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch

from calibration.device import Device, UnsupportedError, Work, first_line, linear
from calibration.forwards import Forwards, ModelSource
from calibration.measurement import Cell, Status, Visit
from calibration.microbench import attention_backend, micro_work

_OUT_OF_MEMORY_WORDS = ("out of memory", "not enough memory", "can't allocate memory")


class Visitor:
    """Measures cells on one device."""

    def __init__(self, device: Device, models: Mapping[str, ModelSource]):
        self.device, self.forwards = device, Forwards(device, models)
        self._seen: set[str] = set()

    def visit(self, cell: Cell, round_number: int, at_s: float, samples: int, longest_s: float) -> Visit:
        """Up to `samples` samples within about `longest_s`; out of memory, an unsupported type or a failing kernel gives none."""
        found = self._tried(cell, round_number, at_s, samples, longest_s)
        if found.status == "out_of_memory":
            # What earlier cells left behind may have been in the way.
            self.forwards.drop_all()
            found = self._tried(cell, round_number, at_s, samples, longest_s)
        if found.status in ("out_of_memory", "failed"):
            self.forwards.drop_all()
        return found

    def _tried(self, cell: Cell, round_number: int, at_s: float, samples: int, longest_s: float) -> Visit:
        try:
            with torch.inference_mode():
                work = self.forwards.work(cell) if cell.kind == "forward" else micro_work(self.device, cell)
                taken = self.device.sample(work, samples, longest_s, warm=_kin(cell) in self._seen)
        except (UnsupportedError, NotImplementedError) as error:
            return _refused(cell, round_number, at_s, "unsupported", error)
        except Exception as error:  # compilers and drivers fail in their own ways, and one cell must not end the run
            return _refused(cell, round_number, at_s, "out_of_memory" if _is_out_of_memory(error) else "failed", error)
        self._seen.add(_kin(cell))
        return Visit(
            cell=cell,
            round=round_number,
            at_s=at_s,
            calls=taken.calls,
            seconds=taken.seconds,
            wall_seconds=taken.wall_seconds,
        )


def _kin(cell: Cell) -> str:
    """Cells that warm each other up: passes over one cache, whatever their rows."""
    if cell.kind != "forward":
        return cell.key
    return " ".join(str(cell.inputs[name]) for name in ("model", "dtype", "mode", "batch", "context"))


def _refused(cell: Cell, round_number: int, at_s: float, status: Status, error: BaseException) -> Visit:
    return Visit(cell=cell, round=round_number, at_s=at_s, status=status, reason=first_line(error))


def _is_out_of_memory(error: BaseException) -> bool:
    text = str(error).casefold()
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(words in text for words in _OUT_OF_MEMORY_WORDS)


@dataclass(frozen=True, slots=True)
class Probe:
    """A first look at the device: bytes/s of a copy, FLOP/s of GEMM by type, seconds of the smallest operator, and wall
    seconds per second of the clock."""

    bandwidth_bytes_per_s: float
    flops_per_s: Mapping[str, float]
    operator_s: float
    wall_factor: float


def probe(device: Device, dtypes: tuple[str, ...]) -> Probe:
    """Also the discarded start of a run: caches, clocks and memory allocation settle here. Takes a second or two."""
    rows, width = (64, 1024) if device.kind == "cpu" else (2048, 4096)
    factors, flops = [], {}
    with torch.inference_mode():
        for dtype in dtypes:
            if device.refusal(dtype):
                continue
            left, right = device.random(rows, width, dtype=dtype), device.random(width, width, dtype=dtype)
            work = Work([partial(linear, left, right, device.unit_scale())])
            for _ in range(3):
                taken = device.sample(work, 5, 0.2)
                factors.append(sum(taken.wall_seconds) / sum(taken.seconds) if taken.wall_seconds else 1.0)
            flops[dtype] = 2.0 * rows * width * width / min(taken.seconds)
        size = min(4 * device.facts.cache_bytes, device.facts.memory_bytes // 16)
        source = device.random(size // 4, dtype="fp32")
        target = torch.zeros_like(source)
        copied = device.sample(Work([lambda: target.copy_(source)]), 5, 0.5)
        one = torch.zeros(1, device=device.torch_device)
        launched = device.sample(Work([lambda: one.add_(1.0)], capture=False), 5, 0.1)
    return Probe(2.0 * size / min(copied.seconds), flops, min(launched.seconds), max(sum(factors) / len(factors), 1.0))


def backends(device: Device, heads: int, kv_heads: int, head_dim: int, dtype: str) -> dict[str, str]:
    """The attention kernel that PyTorch dispatches a plain step and a verification to."""
    return {
        name: attention_backend(device, heads, kv_heads, head_dim, rows, dtype) for name, rows in (("decode", 1), ("verify", 5))
    }


def versions() -> tuple[str, str]:
    """(torch, transformers)."""
    import transformers

    return str(torch.__version__), str(transformers.__version__)
