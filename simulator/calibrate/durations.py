"""How long a cell is expected to take: bytes over bandwidth, FLOPs over FLOP/s, operators; as far as a plan must know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from calibration.measurement import Cell, Value
from simulator.calibrate.models import Config, Dimensions
from simulator.number_format import FORMATS

# Of a Hugging Face decoder layer, run eagerly.
OPERATORS_OF_A_LAYER = 30
_COMPILING_S_PER_LAYER = 1.5


@dataclass(frozen=True, slots=True)
class Rates:
    """What durations are estimated from. Bytes/s, FLOP/s by type, seconds of one operator, wall seconds per second of work."""

    bandwidth_bytes_per_s: float
    flops_per_s: Mapping[str, float]
    operator_s: float
    wall_factor: float = 1.0

    def flops(self, dtype: str) -> float:
        return self.flops_per_s.get(dtype) or min(self.flops_per_s.values())


def call_seconds(cell: Cell, models: Mapping[str, Config], rates: Rates) -> float:
    """A rough time of one call: bytes over bandwidth and FLOPs over FLOP/s, added, and operators."""
    inputs, dtype = cell.inputs, str(cell.inputs.get("dtype", "fp32"))
    each = FORMATS[dtype].bytes if dtype in FORMATS else 2
    if cell.kind in ("copy", "read", "triad"):
        moved, flops, operators = float(inputs["moved_bytes"]), 0.0, 1
    elif cell.kind == "gemm":
        m, n, k = (float(inputs[name]) for name in ("m", "n", "k"))
        moved, flops, operators = each * n * k, 2 * m * n * k, 1
    elif cell.kind in ("decode_attention", "verify_attention"):
        moved, flops = _attention_work(inputs, each)
        operators = 3
    elif cell.kind == "forward":
        moved, flops, operators = _pass_work(inputs, Dimensions.of(models[str(inputs["model"])]), each)
    elif cell.kind == "sampling":
        moved, flops, operators = 16.0 * float(inputs["rows"]) * float(inputs["vocab_size"]), 0.0, 3
    elif cell.kind == "kv_crop":
        moved, flops, operators = 0.0, 0.0, 2 * int(inputs["layers"])
    else:
        moved, flops, operators = 2.0 * float(inputs.get("bytes", 0)), 0.0, 2
    return moved / rates.bandwidth_bytes_per_s + flops / rates.flops(dtype) + operators * rates.operator_s


def setup_seconds(cell: Cell, models: Mapping[str, Config], rates: Rates) -> float:
    """Seconds spent once: a capture runs the pass a few times by the host's pace, a compiler takes seconds a layer."""
    mode = cell.inputs.get("mode", "eager")
    if mode == "eager":
        return 0.0
    model = Dimensions.of(models[str(cell.inputs["model"])])
    capture_s = 4 * OPERATORS_OF_A_LAYER * model.layers * rates.operator_s
    return capture_s + (_COMPILING_S_PER_LAYER * model.layers if mode == "compile" else 0.0)


def building_seconds(config: Config, rates: Rates) -> float:
    """Random weights are drawn, written and converted: a few times their bytes in 32 bit."""
    return 12 * 4 * Dimensions.of(config).parameters / rates.bandwidth_bytes_per_s


def _attention_work(inputs: Mapping[str, Value], each: float) -> tuple[float, float]:
    batch, rows, context, heads, kv_heads, dim = (
        float(inputs[name]) for name in ("batch", "rows", "context", "heads", "kv_heads", "head_dim")
    )
    # With several rows the keys and values are copied out for every head first.
    read = kv_heads if rows == 1 else 2 * heads
    return 2 * batch * context * read * dim * each, 4 * batch * rows * context * heads * dim


def _pass_work(inputs: Mapping[str, Value], model: Dimensions, each: float) -> tuple[float, float, int]:
    batch, rows, context = (float(inputs[name]) for name in ("batch", "rows", "context"))
    weights = model.layers * model.layer_parameters + model.vocabulary * model.hidden
    # Lengthening a cache copies it: read, written, and read again by attention.
    cached = 3 * batch * (context + rows) * model.kv_elements_per_token
    flops = 2 * batch * rows * weights + 4 * batch * rows * context * model.layers * model.heads * model.head_dim
    captured = inputs["mode"] != "eager"
    return each * (weights + cached), flops, (3 if captured else OPERATORS_OF_A_LAYER) * model.layers
