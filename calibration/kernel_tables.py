"""Kernel tables that others published, as measurements: one sample a cell. Lines that begin with # say source and licence.

gemm_aic_*                n, k, m, us                                        aiconfigurator: single GEMMs
attn_generation_aic_*     heads, kv_heads, batch, q_len, kv_len, us          aiconfigurator: decode attention, head_dim 128
llmservingsim_*_dense     layer, tokens, time_us                             LLMServingSim: operators of one layer
llmservingsim_*_attention prefill_chunk, kv_prefill, n_decode, kv_decode, time_us
vidur_layer_ops_*         gpu, model, tp, m, milliseconds of each operator   vidur: operators of one layer
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from calibration.measurement import Kind, Measurement, MeasurementError, Split, Value

Row = Mapping[str, str]
# (n, k) of each matrix of a layer, by the table's name for it.
Shapes = Mapping[str, tuple[int, int]]
Rule = Callable[[Mapping[str, Value]], Split | None]
AIC_HEAD_DIM = 128


def table_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a table. Raises `MeasurementError` where it cannot be read."""
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            return list(csv.DictReader(line for line in lines if not line.startswith("#")))
    except OSError as error:
        raise MeasurementError(path, 0, f"cannot be read: {error.strerror}") from None


def gemm_table(path: Path, dtype: str, rule: Rule) -> tuple[Measurement, ...]:
    """Single GEMMs; `rule` says what a cell serves for, None leaves it out."""
    cells: Iterator[tuple[dict[str, Value], float]] = (
        ({"m": int(r["m"]), "n": int(r["n"]), "k": int(r["k"]), "dtype": dtype}, float(r["us"]) * 1e-6) for r in table_rows(path)
    )
    return tuple(_measurements("gemm", cells, rule))


def decode_attention_table(path: Path, rule: Rule) -> tuple[Measurement, ...]:
    """Decode attention of one query row a sequence; `context` counts the new token's KV too."""
    cells = (
        (_attention(int(r["batch"]), int(r["kv_len"]), int(r["heads"]), int(r["kv_heads"]), AIC_HEAD_DIM), float(r["us"]) * 1e-6)
        for r in table_rows(path)
        if int(r["q_len"]) == 1
    )
    return tuple(_measurements("decode_attention", cells, rule))


def mixed_attention_table(path: Path, heads: int, kv_heads: int, head_dim: int, rule: Rule) -> tuple[Measurement, ...]:
    """Decodes, and a prompt's chunk beside them (`chunk` rows over `before` cached tokens)."""
    cells = (
        (
            {
                **_attention(int(r["n_decode"]), int(r["kv_decode"]), heads, kv_heads, head_dim),
                "chunk": int(r["prefill_chunk"]),
                "before": int(r["kv_prefill"]),
            },
            float(r["time_us"]) * 1e-6,
        )
        for r in table_rows(path)
    )
    return tuple(_measurements("decode_attention", cells, rule))


def operator_table(path: Path, shapes: Shapes, dtype: str, rule: Rule) -> tuple[Measurement, ...]:
    """Matrices of one layer by tokens; `layer` is the operator's name."""
    cells = (
        (_matrix(r["layer"], int(r["tokens"]), shapes[r["layer"]], dtype), float(r["time_us"]) * 1e-6)
        for r in table_rows(path)
        if r["layer"] in shapes
    )
    return tuple(_measurements("gemm", cells, rule))


def vidur_table(path: Path, gpu: str, shapes_by_tp: Mapping[int, Shapes], dtype: str, rule: Rule) -> tuple[Measurement, ...]:
    """Matrices of one layer by tokens and number of devices (`tp`)."""
    cells = (
        ({**_matrix(layer, int(r["m"]), shape, dtype), "tp": int(r["tp"])}, float(r[layer]) * 1e-3)
        for r in table_rows(path)
        if r["gpu"] == gpu and int(r["tp"]) in shapes_by_tp
        for layer, shape in shapes_by_tp[int(r["tp"])].items()
    )
    return tuple(_measurements("gemm", cells, rule))


def _attention(batch: int, tokens: int, heads: int, kv_heads: int, head_dim: int) -> dict[str, Value]:
    return {
        "batch": batch,
        "rows": 1,
        "context": tokens,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "dtype": "bf16",
    }


def _matrix(layer: str, tokens: int, shape: tuple[int, int], dtype: str) -> dict[str, Value]:
    return {"layer": layer, "m": tokens, "n": shape[0], "k": shape[1], "dtype": dtype}


def _measurements(kind: Kind, cells: Iterator[tuple[dict[str, Value], float]], rule: Rule) -> Iterator[Measurement]:
    for inputs, seconds in cells:
        split = rule(inputs)
        if split is not None and seconds > 0:
            yield Measurement(kind, inputs, split, (seconds,), (), (0,), (0.0,))
