"""The best method and γ over batch and context, as a table and in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.plots.method_map import letters, method_map_title
from simulator.printed_numbers import times
from simulator.questions.method_map import MethodCell, MethodMap
from simulator.reports.page import Block, Figure, Table, Text
from simulator.reports.summary import SCHEMA_VERSION, csv_text, plain_data

METHOD_MAP = Figure(
    "best_method", "Best method and number of speculative tokens over batch and context: regions by method, none among them"
)


def method_map_sentence(answer: MethodMap) -> str:
    """The row of the workload's own context in words, and what the map leaves out."""
    left = f" Without a stated acceptance, and so not on the map: {', '.join(answer.left_out)}." if answer.left_out else ""
    return f"{method_map_title(answer)}. Decode only, all sequences at one context.{left}"


def method_map_table(answer: MethodMap) -> tuple[list[str], list[list[str]]]:
    """(header, rows): a row for each context, a column for each batch. In brackets: the KV cache does not hold that batch."""
    cells = {(cell.batch, cell.context_tokens): cell for cell in answer.cells}
    rows = [
        [
            f"{context:,}{' (own)' if context == answer.own_context else ''}",
            *(_written(cells[batch, context], letters(answer)) for batch in answer.batches),
        ]
        for context in answer.contexts
    ]
    return ["context \\ batch", *map(str, answer.batches)], rows


def method_map_caption(answer: MethodMap) -> str:
    """What the table holds, and which method a letter means."""
    meant = [f"{short}: {name}" for name, short in letters(answer).items() if short != name]
    return "Best method, γ and decode speedup" + (f" ({'; '.join(meant)})" if meant else "")


def _written(cell: MethodCell, short: Mapping[str, str]) -> str:
    text = " ".join(part for part in (short[cell.method], cell.drafts.replace(" ", ""), times(cell.speedup)) if part)
    return text if cell.fits else f"({text})"


def method_map_blocks(answer: MethodMap) -> tuple[Block, ...]:
    """The section of a page."""
    return (METHOD_MAP, Table.of(*method_map_table(answer), method_map_caption(answer)), Text(method_map_sentence(answer)))


def method_map_rows(answer: MethodMap) -> list[dict[str, Any]]:
    """One row per batch and context, for JSON and CSV."""
    return [
        {
            "batch": cell.batch,
            "context_tokens": cell.context_tokens,
            "method": cell.method,
            "num_speculative_tokens": cell.num_speculative_tokens,
            "tree": None if cell.tree is None else cell.tree.name.removeprefix("tree "),
            "speedup": cell.speedup,
            "speedup_low": cell.speedup_low,
            "speedup_high": cell.speedup_high,
            "within_3_percent": " | ".join(cell.near),
            "fits_kv_cache": cell.fits,
        }
        for cell in answer.cells
    ]


def method_map_summary(answer: MethodMap) -> dict[str, Any]:
    """The map as a document."""
    data: dict[str, Any] = plain_data(
        {
            "schema_version": SCHEMA_VERSION,
            "sentence": method_map_sentence(answer),
            "methods": answer.methods,
            "left_out": answer.left_out,
            "own_context_tokens": answer.own_context,
            "cells": method_map_rows(answer),
        }
    )
    return data


def method_map_csv(answer: MethodMap) -> str:
    """The same as CSV."""
    return csv_text(method_map_rows(answer))
