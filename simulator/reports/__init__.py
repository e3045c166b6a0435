"""Results as text, data and files. Read `verdict` (in words), `variants`, `tables`, `summary` (JSON, CSV), `page`
(what a report says), `run_page`, `markdown` and `html` (how it is written), `timeline`, `files`.

Importing this package imports neither matplotlib nor pyarrow; both load when files are written.
"""

from simulator.plots.words import interval
from simulator.printed_numbers import significant, times
from simulator.reports.acceptance_trace import trace_json, trace_sentence, trace_tables
from simulator.reports.break_even_page import break_even_page
from simulator.reports.capacity import (
    capacity_doubts,
    capacity_notes,
    capacity_sentences,
    capacity_summary,
    capacity_tables,
    settings_server,
)
from simulator.reports.comparison import (
    comparison_notes,
    comparison_sentence,
    comparison_summary,
    comparison_table,
    memory_table,
)
from simulator.reports.explanation import (
    doubt_sentences,
    doubt_table,
    explanation_sentences,
    explanation_summary,
    explanation_table,
)
from simulator.reports.exports import exported, exports_of
from simulator.reports.files import (
    prepare_directory,
    to_json,
    write_break_even,
    write_capacity,
    write_explanation,
    write_run,
    write_schedule,
)
from simulator.reports.html import html
from simulator.reports.imports import HEADER as IMPORT_HEADER
from simulator.reports.imports import import_rows, import_sentence, import_summary, settings_rows, write_import
from simulator.reports.known import known
from simulator.reports.markdown import markdown
from simulator.reports.run_page import run_page
from simulator.reports.schedule import (
    fixed_table,
    schedule_map,
    schedule_notes,
    schedule_sentences,
    schedule_snippets,
    schedule_summary,
)
from simulator.reports.sensitivity import sensitivity_sentences, sensitivity_table
from simulator.reports.server_check import CHECK_HEADER, check_rows, check_summary, measured_sentence, settings_of_check
from simulator.reports.server_fit import CONSTANTS_HEADER as FIT_CONSTANTS_HEADER
from simulator.reports.server_fit import RUNS_HEADER as FIT_RUNS_HEADER
from simulator.reports.server_fit import (
    check_profile_path,
    fit_sentence,
    fit_summary,
    fitted_constant_rows,
    fitted_run_rows,
    write_engine_profile,
)
from simulator.reports.step_costs import exported_step_costs, step_costs_sentence, step_costs_table
from simulator.reports.summary import break_even_csv, break_even_summary, run_summary
from simulator.reports.tables import break_even_sentence, break_even_tables, prediction_rows, prediction_sentence
from simulator.reports.timeline import timeline
from simulator.reports.variants import run_table
from simulator.reports.verdict import answer, headline, verdict_sentence

__all__ = [
    "CHECK_HEADER",
    "FIT_CONSTANTS_HEADER",
    "FIT_RUNS_HEADER",
    "IMPORT_HEADER",
    "answer",
    "break_even_csv",
    "break_even_page",
    "break_even_sentence",
    "break_even_summary",
    "break_even_tables",
    "capacity_doubts",
    "capacity_notes",
    "capacity_sentences",
    "capacity_summary",
    "capacity_tables",
    "check_profile_path",
    "check_rows",
    "check_summary",
    "comparison_notes",
    "comparison_sentence",
    "comparison_summary",
    "comparison_table",
    "doubt_sentences",
    "doubt_table",
    "explanation_sentences",
    "explanation_summary",
    "explanation_table",
    "exported",
    "exported_step_costs",
    "exports_of",
    "fit_sentence",
    "fit_summary",
    "fitted_constant_rows",
    "fitted_run_rows",
    "fixed_table",
    "headline",
    "html",
    "import_rows",
    "import_sentence",
    "import_summary",
    "interval",
    "known",
    "markdown",
    "measured_sentence",
    "memory_table",
    "prediction_rows",
    "prediction_sentence",
    "prepare_directory",
    "run_page",
    "run_summary",
    "run_table",
    "schedule_map",
    "schedule_notes",
    "schedule_sentences",
    "schedule_snippets",
    "schedule_summary",
    "sensitivity_sentences",
    "sensitivity_table",
    "settings_of_check",
    "settings_rows",
    "settings_server",
    "significant",
    "step_costs_sentence",
    "step_costs_table",
    "timeline",
    "times",
    "to_json",
    "trace_json",
    "trace_sentence",
    "trace_tables",
    "verdict_sentence",
    "write_break_even",
    "write_capacity",
    "write_engine_profile",
    "write_explanation",
    "write_import",
    "write_run",
    "write_schedule",
]
