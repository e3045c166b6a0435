"""Results as text, data and files. Read `verdict` (in words), `variants`, `tables`, `summary` (JSON, CSV), `page`
(what a report says), `run_page`, `markdown` and `html` (how it is written), `timeline`, `files`.

Importing this package imports neither matplotlib nor pyarrow; both load when files are written.
"""

from simulator.plots.words import interval, milliseconds, significant, times
from simulator.reports.acceptance_trace import trace_json, trace_sentence, trace_tables
from simulator.reports.break_even_page import break_even_page
from simulator.reports.capacity import (
    capacity_csv,
    capacity_doubts,
    capacity_notes,
    capacity_sentences,
    capacity_summary,
    capacity_tables,
    write_capacity,
)
from simulator.reports.explanation import doubt_table, explanation_sentences, explanation_summary, explanation_table
from simulator.reports.exports import exported
from simulator.reports.files import prepare_directory, to_json, write_break_even, write_run
from simulator.reports.html import html
from simulator.reports.imports import HEADER as IMPORT_HEADER
from simulator.reports.imports import import_rows, import_sentence, import_summary, settings_rows, write_import
from simulator.reports.known import known
from simulator.reports.markdown import markdown
from simulator.reports.run_page import run_page
from simulator.reports.server_check import CHECK_HEADER, check_rows, check_summary
from simulator.reports.summary import break_even_csv, break_even_summary, run_summary
from simulator.reports.tables import break_even_sentence, break_even_tables, prediction_rows, prediction_sentence
from simulator.reports.timeline import timeline
from simulator.reports.variants import run_table
from simulator.reports.verdict import answer, headline, verdict_sentence

__all__ = [
    "CHECK_HEADER",
    "IMPORT_HEADER",
    "answer",
    "break_even_csv",
    "break_even_page",
    "break_even_sentence",
    "break_even_summary",
    "break_even_tables",
    "capacity_csv",
    "capacity_doubts",
    "capacity_notes",
    "capacity_sentences",
    "capacity_summary",
    "capacity_tables",
    "check_rows",
    "check_summary",
    "doubt_table",
    "explanation_sentences",
    "explanation_summary",
    "explanation_table",
    "exported",
    "headline",
    "html",
    "import_rows",
    "import_sentence",
    "import_summary",
    "interval",
    "known",
    "markdown",
    "milliseconds",
    "prediction_rows",
    "prediction_sentence",
    "prepare_directory",
    "run_page",
    "run_summary",
    "run_table",
    "settings_rows",
    "significant",
    "timeline",
    "times",
    "to_json",
    "trace_json",
    "trace_sentence",
    "trace_tables",
    "verdict_sentence",
    "write_break_even",
    "write_capacity",
    "write_import",
    "write_run",
]
