"""Plan: which cells a calibration visits, which of them are held out, and how long a round takes. Runs nothing; needs no torch.

The split is by design, before anything is measured. Held out are: one matrix of each model, some row counts, one context
length of attention, several batch × context planes of whole passes, and every pass of the last model.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from calibration.measurement import SHORTEST_SAMPLE_S, Cell, Kind, Split, Value
from simulator.calibrate.models import SHAPES, Config, Dimensions
from simulator.number_format import FORMATS

# Small rows one by one, since small batches take kernels of their own; then on and off the powers of two and around the edges of
# tiles of 16, 32, 64, 128 and 256 rows.
ROWS = (
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    12,
    16,
    17,
    24,
    32,
    33,
    48,
    64,
    65,
    96,
    128,
    129,
    160,
    192,
    256,
    257,
    384,
    512,
    1024,
    1536,
    2048,
)
HELD_OUT_ROWS = frozenset({12, 24, 33, 65, 129, 192, 384, 1536})
FEW_ROWS = (1, 2, 4, 5, 8, 16, 32, 64, 128, 256, 512, 2048)
PASS_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 24, 32, 48, 64, 96, 128)
HELD_OUT_PASS_ROWS = frozenset({12, 24, 48, 96})
# γ + 1 rows for γ = 0..8: all fitted, since small rows follow no law closely, and measured a second time on their own.
CHECKED_ROWS = range(1, 10)
# Compiling takes longer than measuring does.
COMPILED_ROWS = (1, 5)
VERIFIED_ROWS = (2, 3, 4, 5, 8, 9, 12, 16)
HELD_OUT_VERIFIED_ROWS = frozenset({3, 9, 12})
# Cells beyond the essential ones are taken while a round can be repeated this often.
LEAST_ROUNDS = 3
# Visits a round to the cells of rank 0, on whose times the answer turns.
VISITS_OF_FIRST_RANK = 3
# Of a Hugging Face decoder layer, run eagerly.
OPERATORS_OF_A_LAYER = 30
_COMPILING_S_PER_LAYER = 1.5
# First looks see a quieter machine and friendlier shapes than a run does.
_CAUTION = 1.5


@dataclass(frozen=True, slots=True)
class Rates:
    """What durations are estimated from. Bytes/s, FLOP/s by type, seconds of one operator, wall seconds per second of work."""

    bandwidth_bytes_per_s: float
    flops_per_s: Mapping[str, float]
    operator_s: float
    wall_factor: float = 1.0

    def flops(self, dtype: str) -> float:
        return self.flops_per_s.get(dtype) or min(self.flops_per_s.values())


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be measured. cache_bytes: the last cache. count: devices. modes: of passes. backends: attention kernels, by
    `decode` and `verify`."""

    device: str
    cache_bytes: int
    memory_bytes: int
    count: int
    gemm_dtypes: tuple[str, ...]
    pass_dtypes: tuple[str, ...]
    modes: tuple[str, ...]
    models: Mapping[str, Config]
    backends: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Planned:
    """A cell, how much it matters, estimated seconds per call, and once to build it. rank 0: visited more often; 1: always."""

    cell: Cell
    rank: int
    call_s: float
    setup_s: float = 0.0


@dataclass(frozen=True)
class Plan:
    """Cells in the order of the first round. round_s: estimated wall seconds of a round; setup_s: once, for building models,
    capturing and compiling. dropped: cells that did not fit."""

    cells: tuple[Planned, ...]
    minutes: float
    round_s: float
    setup_s: float
    dropped: int

    @property
    def rounds(self) -> float:
        """How many rounds the minutes are expected to hold."""
        return max(self.minutes * 60 - self.setup_s, 0.0) / max(self.round_s, 1e-9)

    @property
    def hash(self) -> str:
        """Of the cells, so that a resumed run is known to be the same one."""
        text = json.dumps([planned.cell.model_dump() for planned in self.cells], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def counts(self) -> list[tuple[Kind, dict[Split, int], float]]:
        """(kind, cells by split, estimated seconds of one visit to each)."""
        kinds: dict[Kind, list[Planned]] = {}
        for planned in self.cells:
            kinds.setdefault(planned.cell.kind, []).append(planned)
        rows: list[tuple[Kind, dict[Split, int], float]] = []
        for kind, group in kinds.items():
            splits: dict[Split, int] = {"fit": 0, "held_out": 0, "check": 0}
            for planned in group:
                splits[planned.cell.split] += 1
            rows.append((kind, splits, sum(visit_seconds(planned) for planned in group)))
        return rows


def samples_of(kind: Kind) -> tuple[int, float]:
    """(samples of one visit, seconds that they may take)."""
    return (2, 0.6) if kind == "forward" else (5, 0.05)


def visit_seconds(planned: Planned) -> float:
    """The samples, and calls to warm up where they are short."""
    samples, longest_s = samples_of(planned.cell.kind)
    taken = min(max(longest_s, 2 * planned.call_s), samples * max(planned.call_s, SHORTEST_SAMPLE_S))
    return taken + (0.0 if planned.cell.kind == "forward" else 4 * planned.call_s + 1e-3)


def plan(target: Target, rates: Rates, minutes: float) -> Plan:
    """All cells that fit memory and time: the essential ones always, the others in a random order while there is time."""
    unique = {cell.key: (cell, rank) for cell, rank in reversed(list(_cells(target)))}
    cells = [
        Planned(cell, rank, call_seconds(cell, target.models, rates), setup_seconds(cell, target.models, rates))
        for cell, rank in reversed(unique.values())
        if _fits(cell, target)
    ]
    cells.sort(key=lambda planned: (planned.rank, planned.cell.key if planned.rank > 1 else ""))
    models_s = rates.wall_factor * sum(building_seconds(config, rates) for config in target.models.values())
    room_s, longest_s = minutes * 60 - models_s, minutes * 60 / 15
    kept = []
    for planned in cells:
        cost_s = LEAST_ROUNDS * round_seconds([planned], rates) + planned.setup_s
        # No single cell may eat what many others could use.
        if planned.rank <= 1 or cost_s <= min(room_s, longest_s):
            kept.append(planned)
            room_s -= cost_s
    # What is short comes first, so that even a first round cut off leaves something to fit.
    kept.sort(key=lambda planned: (planned.rank > 1, planned.cell.kind == "forward", planned.rank))
    setup_s = models_s + sum(planned.setup_s for planned in kept)
    return Plan(tuple(kept), minutes, round_seconds(kept, rates), setup_s, len(cells) - len(kept))


def round_seconds(cells: Sequence[Planned], rates: Rates) -> float:
    """Wall seconds of a round of these cells."""
    return (
        rates.wall_factor
        * _CAUTION
        * sum(visit_seconds(planned) * (VISITS_OF_FIRST_RANK if planned.rank == 0 else 1) for planned in cells)
    )


def _fits(cell: Cell, target: Target) -> bool:
    if cell.kind != "forward":
        return True
    model = Dimensions.of(target.models[str(cell.inputs["model"])])
    each = FORMATS[str(cell.inputs["dtype"])].bytes
    tokens = int(cell.inputs["batch"]) * (int(cell.inputs["context"]) + int(cell.inputs["rows"]))
    # Types below 16 bit are made from 16 bit.
    return model.parameters * max(each, 2) + 3 * tokens * model.kv_elements_per_token * max(each, 2) < 0.6 * target.memory_bytes


# ---------------------------------------------------------------------------------------------------------------- cells


def _cells(target: Target) -> Iterator[tuple[Cell, int]]:
    """(cell, rank)."""
    yield from _memory_cells(target)
    yield from _gemm_cells(target)
    yield from _attention_cells(target)
    yield from _forward_cells(target)
    yield from _other_cells(target)


def _cell(kind: Kind, split: Split, **inputs: Value) -> Cell:
    return Cell(kind=kind, inputs=inputs, split=split)


def _memory_cells(target: Target) -> Iterator[tuple[Cell, int]]:
    """From a fraction of the last cache to eight times its size, within an eighth of the memory."""
    arrays: tuple[tuple[Kind, int], ...] = (("copy", 2), ("read", 1), ("triad", 3))
    for factor in (1 / 32, 1 / 8, 1 / 2, 2, 4, 8):
        size = min(_power_of_two(target.cache_bytes * factor), _power_of_two(target.memory_bytes / 8))
        for kind, count in arrays:
            yield _cell(kind, "fit", bytes=size, moved_bytes=count * size, dtype=target.pass_dtypes[0]), 1 if factor >= 2 else 2


def _power_of_two(size: float) -> int:
    return int(2 ** round(math.log2(size)))


def _gemm_cells(target: Target) -> Iterator[tuple[Cell, int]]:
    """Two weight sizes: the main model's matrices and those of another width. `down` is held out whole."""
    main, *others = (Dimensions.of(config) for config in target.models.values())
    other = Dimensions.of(SHAPES["llama-1b"]) if target.device == "cpu" else others[0] if others else main
    for index, dtype in enumerate(target.gemm_dtypes):
        seen: set[tuple[int, int]] = set()
        for dimensions, names in ((main, ("up", "q", "down", "head", "k")), (other, ("up", "down"))):
            for name in names:
                n, k = dimensions.matrices[name]
                if (n, k) in seen:
                    continue
                seen.add((n, k))
                full = name == "up" and index == 0
                for m in ROWS if full else FEW_ROWS:
                    if name == "head" and m > 256:
                        continue
                    split: Split = "held_out" if name == "down" or m in HELD_OUT_ROWS else "fit"
                    core = name != "head" and (m <= 8 or m in (16, 64, 256)) and index < 2
                    yield _cell("gemm", split, m=m, n=n, k=k, dtype=dtype), 1 if core else 2 if m <= 128 and not index else 3


def _attention_cells(target: Target) -> Iterator[tuple[Cell, int]]:
    """Decode over batch × context, verification over rows × context; one context is held out, and some row counts."""
    dtype = next((each for each in target.pass_dtypes if each != "fp8"), "bf16")
    contexts = (256, 1024, 2048, 4096) if target.device == "cpu" else (512, 2048, 4096, 8192, 16384, 32768)
    held_out_context = 2048 if target.device == "cpu" else 4096
    batches = (1, 4, 8) if target.device == "cpu" else (1, 4, 8, 16, 32, 64)
    for index, config in enumerate(list(target.models.values())[:2]):
        model = Dimensions.of(config)
        heads: dict[str, Value] = {"heads": model.heads, "kv_heads": model.kv_heads, "head_dim": model.head_dim, "dtype": dtype}
        if index and (model.heads, model.kv_heads, model.head_dim) == _heads_of_first(target):
            continue
        for batch in batches:
            for context in contexts:
                if batch * context > (16384 if target.device == "cpu" else 2**19):
                    continue
                held_out: Split = "held_out" if context == held_out_context else "fit"
                decode = {"batch": batch, "rows": 1, "context": context, **heads, "backend": target.backends["decode"]}
                yield _cell("decode_attention", held_out, **decode), (1 if batch <= 4 else 2) + index
                if batch > 4:
                    continue
                for rows in VERIFIED_ROWS if batch == 1 else (4, 8):
                    split: Split = "held_out" if context == held_out_context or rows in HELD_OUT_VERIFIED_ROWS else "fit"
                    asked = {"batch": batch, "rows": rows, "context": context, **heads, "backend": target.backends["verify"]}
                    rank = 1 if rows in (2, 8) and batch == 1 and not index else 2 if rows in (2, 4, 8, 16) else 3
                    yield _cell("verify_attention", split, **asked), rank


def _heads_of_first(target: Target) -> tuple[int, int, int]:
    first = Dimensions.of(next(iter(target.models.values())))
    return first.heads, first.kv_heads, first.head_dim


def _forward_cells(target: Target) -> Iterator[tuple[Cell, int]]:
    """Whole passes. Rows at one sequence are the backbone, measured twice up to nine; planes of batch × context beside it."""
    names = list(target.models)
    main, last = names[0], names[-1] if len(names) > 2 else None
    small = target.device == "cpu"
    backbone = 512 if small else 2048
    fitted = ((1, 1024, (1, 4, 16)), (4, 256, (1, 2, 4))) if small else ((16, 1024, (1, 2, 4, 8)), (1, 16384, (1, 4, 8)))
    held = (
        ((1, 64, (1, 2, 5, 9, 32)), (2, 512, (1, 3, 5)), (8, 128, (1, 2, 5)))
        if small
        else ((1, 512, (1, 2, 5, 9, 32)), (4, 4096, (1, 3, 5)), (64, 512, (1, 2, 5)), (32, 4096, (1, 4)))
    )
    for dtype_index, dtype in enumerate(target.pass_dtypes):
        for mode in target.modes:
            later = min(dtype_index + (mode == "compile"), 1)
            common: dict[str, Value] = {"dtype": dtype, "mode": mode}
            for name in names:
                judge = name == last
                if mode == "compile" and name != main:
                    continue
                for rows in COMPILED_ROWS if mode == "compile" else PASS_ROWS if name == main else (1, 2, 4, 5, 8, 9, 16, 64):
                    split: Split = "held_out" if judge or rows in HELD_OUT_PASS_ROWS else "fit"
                    essential = name == main and rows <= 9 and mode != "compile"
                    rank = (0 if essential else 1 if rows in (1, 4, 5, 8, 16, 64) else 2) + 2 * later
                    yield _cell("forward", split, model=name, batch=1, rows=rows, context=backbone, **common), rank
                if name == main and not later:
                    for rows in CHECKED_ROWS:
                        yield _cell("forward", "check", model=name, batch=1, rows=rows, context=backbone, **common), 0
                if mode == "compile":
                    continue
                for planes, kind in ((fitted, "fit"), (held, "held_out")):
                    for batch, context, plane_rows in planes if name == main else planes[:1]:
                        for rows in plane_rows:
                            split = "held_out" if judge or kind == "held_out" else "fit"
                            asked = {"model": name, "batch": batch, "rows": rows, "context": context, **common}
                            yield _cell("forward", split, **asked), (1 if name == main and rows in (1, 4, 5) else 2) + 2 * later


def _other_cells(target: Target) -> Iterator[tuple[Cell, int]]:
    model = Dimensions.of(next(iter(target.models.values())))
    dtype = next((each for each in target.pass_dtypes if each != "fp8"), "bf16")
    yield _cell("launch", "fit"), 1
    yield _cell("synchronize", "fit"), 1
    for rows in (1, 4, 8, 16, 64):
        for method in ("greedy", "multinomial"):
            asked: dict[str, Value] = {"rows": rows, "vocab_size": model.vocabulary, "dtype": dtype, "method": method}
            yield _cell("sampling", "held_out" if rows == 4 else "fit", **asked), 2 if rows <= 8 else 3
    for batch, context in ((1, 1024), (8, 1024)):
        shape = {"layers": model.layers, "batch": batch, "kv_heads": model.kv_heads, "head_dim": model.head_dim}
        yield _cell("kv_crop", "fit", **shape, context=context, removed=4, dtype=dtype), 2
    devices = 2
    while devices <= target.count:
        for power in (13, 16, 18, 20, 23, 26):
            split: Split = "held_out" if power == 18 else "fit"
            yield _cell("all_reduce", split, devices=devices, bytes=2**power, dtype=dtype), 2
        devices *= 2


# ------------------------------------------------------------------------------------------------------------ durations


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
