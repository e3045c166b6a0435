"""predict: one operating point, or a table of them → R, speedup, break-even, verdict and interval. No queueing.

`r` is decode-only; `speedup` is the throughput ratio a benchmark would report: where prompt and output lengths are known
or usual for the dataset, both sides also pay for their prefills.

Read `point.py` for what may be asked, `resolving.py` (with `drafter.py` and `devices.py`) for what it means, `answering.py` and
`speedup.py` for the answer, `table.py` for questions by the row.
"""

from __future__ import annotations

from simulator.prediction.answering import NO_VERDICT, accepted, answer, cannot_be_served, predict, predict_document, verdict
from simulator.prediction.point import ACCEPTANCE_FIELDS, FLAGS, OperatingPoint
from simulator.prediction.prediction import COLUMNS, Prediction, as_row
from simulator.prediction.question import MEMORY_UTILIZATION, Question
from simulator.prediction.resolving import resolve
from simulator.prediction.speedup import benchmark_speedup
from simulator.prediction.table import predict_table, table_rows
from simulator.prediction.unsupported import UnknownNameError, UnsupportedError

__all__ = [
    "ACCEPTANCE_FIELDS",
    "COLUMNS",
    "FLAGS",
    "MEMORY_UTILIZATION",
    "NO_VERDICT",
    "OperatingPoint",
    "Prediction",
    "Question",
    "UnknownNameError",
    "UnsupportedError",
    "accepted",
    "answer",
    "as_row",
    "benchmark_speedup",
    "cannot_be_served",
    "predict",
    "predict_document",
    "predict_table",
    "resolve",
    "table_rows",
    "verdict",
]
