"""Sweeps: one question asked at every point of a grid over a scenario's keys, on many processes, resumable after a kill.

Read `axes` (what varies), `cells` (the grid), `answers` (one cell's rows), `ledger` (what is kept), `workers` (who computes),
`tables` (CSV and Parquet), `sweep` (all of it).
"""

from simulator.sweep.answers import QUESTIONS, Row, keys_of_question, question_of
from simulator.sweep.axes import Axis, axis_of, read_axis
from simulator.sweep.cells import Grid, grid_of
from simulator.sweep.sweep import Failure, SweepResult, idle_keys, sweep
from simulator.sweep.tables import table_of, write_tables

__all__ = [
    "QUESTIONS",
    "Axis",
    "Failure",
    "Grid",
    "Row",
    "SweepResult",
    "axis_of",
    "grid_of",
    "idle_keys",
    "keys_of_question",
    "question_of",
    "read_axis",
    "sweep",
    "table_of",
    "write_tables",
]
