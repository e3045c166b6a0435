"""An answer as a folder: report.html, the same as Markdown and JSON, tables and figures; each file whole or not there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import Any

from simulator.interchange.engine_settings import Snippet
from simulator.plots.best_gamma import schedule_figure
from simulator.plots.comparison import comparison_figure, served
from simulator.plots.figures import break_even_figures, drawn_into, explanation_figures, method_map_figures, run_figures
from simulator.plots.rates import rates_figure
from simulator.questions.break_even import BreakEven, break_even
from simulator.questions.capacity import CapacityAnswer
from simulator.questions.comparison import ComparedScenarios
from simulator.questions.explanation import Explanation
from simulator.questions.load_curve import load_curve
from simulator.questions.method_map import MethodMap, method_map
from simulator.questions.schedule import ScheduleAnswer
from simulator.questions.sensitivity import Sensitivity, sensitivity
from simulator.reports.break_even_page import break_even_page
from simulator.reports.capacity import capacity_csv, capacity_summary, settings_server
from simulator.reports.capacity_page import capacity_page
from simulator.reports.comparison import comparison_summary
from simulator.reports.comparison_page import comparison_page
from simulator.reports.explanation import explanation_summary
from simulator.reports.explanation_page import explanation_page
from simulator.reports.exports import exports_of, setting_files
from simulator.reports.html import html
from simulator.reports.markdown import markdown
from simulator.reports.method_map import method_map_csv, method_map_summary
from simulator.reports.page import Figure as PageFigure
from simulator.reports.page import Page
from simulator.reports.run_page import run_page
from simulator.reports.schedule import schedule_csv, schedule_snippets, schedule_summary
from simulator.reports.schedule_page import schedule_page
from simulator.reports.summary import break_even_csv, break_even_summary, run_summary
from simulator.reports.verdict import subject
from simulator.serving import RequestRecord
from simulator.simulation import SimulationResult
from simulator.spec import Problem, SpecError
from simulator.whole_file import partial_folder

# (name, drawn figure), lazily: one is open at a time.
Figures = Iterable[tuple[str, Any]]
FLAG = "--out"


def write_run(result: SimulationResult, directory: str | Path) -> tuple[Path, ...]:
    """Everything about a run. Returns the files written; others in the directory are left alone.

    Raises `SpecError` naming the flag where the directory cannot be written.
    """
    chosen = subject(result)
    answer = None if chosen is None else break_even(chosen.variant.scenario)
    methods = method_map(result.scenario)
    moved, curve = _moved(result), load_curve(result)

    def fill(folder: Path) -> None:
        figures = chain(
            run_figures(result, moved, curve), () if answer is None else break_even_figures(answer), method_map_figures(methods)
        )
        write_page(folder, run_page(result, moved, methods), figures)
        write_text(folder / "summary.json", to_json(run_summary(result)))
        _write_methods(folder, methods)
        _write_records(folder / "records.parquet", result)
        if answer is not None and answer.points:
            write_text(folder / "break_even.csv", break_even_csv(answer))

    return replace_files(Path(directory), fill)


def write_break_even(answer: BreakEven, directory: str | Path, methods: MethodMap | None = None) -> tuple[Path, ...]:
    """The answer to the break-even question as a page, break_even.json, .csv and figures; otherwise as `write_run`.

    methods: the best of several by batch and context.
    """

    def fill(folder: Path) -> None:
        write_page(folder, break_even_page(answer, methods), chain(break_even_figures(answer), method_map_figures(methods)))
        write_text(folder / "break_even.json", to_json(break_even_summary(answer, methods)))
        _write_methods(folder, methods)
        write_text(folder / "break_even.csv", break_even_csv(answer))

    return replace_files(Path(directory), fill)


def write_capacity(answer: CapacityAnswer, directory: str | Path) -> tuple[Path, ...]:
    """A capacity answer as a page, capacity.json, capacity.csv (every simulated rate), a figure and each engine's settings in a
    file that it reads; otherwise as `write_run`."""

    def fill(folder: Path) -> None:
        write_page(folder, capacity_page(answer), [("rates", rates_figure(answer))] if answer.best is not None else [])
        write_text(folder / "capacity.json", to_json(capacity_summary(answer)))
        write_text(folder / "capacity.csv", capacity_csv(answer))
        server = settings_server(answer)
        for each in () if server is None else exports_of(server)[0]:
            _write_settings(folder, each.snippets)

    return replace_files(Path(directory), fill)


def write_schedule(answer: ScheduleAnswer, directory: str | Path) -> tuple[Path, ...]:
    """A schedule as a page, schedule.json, the map as schedule.csv, and each engine's settings in a file that it reads;
    otherwise as `write_run`."""

    def fill(folder: Path) -> None:
        write_page(folder, schedule_page(answer), [("schedule", schedule_figure(answer))])
        write_text(folder / "schedule.json", to_json(schedule_summary(answer)))
        write_text(folder / "schedule.csv", schedule_csv(answer))
        for _, found, _ in schedule_snippets(answer):
            _write_settings(folder, found)

    return replace_files(Path(directory), fill)


def write_comparison(answer: ComparedScenarios, directory: str | Path) -> tuple[Path, ...]:
    """A comparison as a page, comparison.json and a figure; otherwise as `write_run`."""

    def fill(folder: Path) -> None:
        write_page(folder, comparison_page(answer), [("comparison", comparison_figure(answer))] if served(answer) else [])
        write_text(folder / "comparison.json", to_json(comparison_summary(answer)))

    return replace_files(Path(directory), fill)


def write_explanation(answer: Explanation, name: str, directory: str | Path) -> tuple[Path, ...]:
    """An explanation as a page, explanation.json and figures; otherwise as `write_run`. name: of its scenario, or ""."""

    def fill(folder: Path) -> None:
        write_page(folder, explanation_page(answer, name), explanation_figures(answer))
        write_text(folder / "explanation.json", to_json(explanation_summary(answer)))

    return replace_files(Path(directory), fill)


def _write_settings(folder: Path, found: Iterable[Snippet]) -> None:
    for name, text in setting_files(found).items():
        write_text(folder / name, text)


def _write_methods(folder: Path, methods: MethodMap | None) -> None:
    """best_method.json and .csv, where methods are compared."""
    if methods is not None:
        write_text(folder / "best_method.json", to_json(method_map_summary(methods)))
        write_text(folder / "best_method.csv", method_map_csv(methods))


def _moved(result: SimulationResult) -> Sensitivity | None:
    """What moves the verdict of a run, at its own mean batch and context; None without speculation."""
    chosen = subject(result)
    if chosen is None:
        return None
    shape, replicas = chosen.shape, result.scenario.deployment.independent_replicas
    point = replicas * chosen.batch, max(round(chosen.context), 1)
    own = chosen.variant.scenario
    return sensitivity(own, shape.depth, *point) if shape.is_chain else sensitivity(own, None, *point, tree=shape)


def to_json(data: dict[str, Any]) -> str:
    """One JSON document; refuses NaN and infinity."""
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_page(folder: Path, page: Page, figures: Figures) -> None:
    """report.html and report.md, and each figure under figures/ as NAME.png and NAME.svg."""
    (folder / "figures").mkdir()
    alts = {block.name: block.alt for section in page.sections for block in section.blocks if isinstance(block, PageFigure)}
    drawn = drawn_into(folder / "figures", figures, alts)
    write_text(folder / "report.html", html(page, drawn))
    write_text(folder / "report.md", markdown(page, {name: f"figures/{name}.png" for name in drawn}))


def prepare_directory(directory: str | Path) -> Path:
    """Makes sure that files can be written there, so that a long run does not fail at its end. Raises `SpecError` otherwise."""
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        with partial_folder(Path(directory)):
            return Path(directory)
    except OSError as error:
        must = f"must be a directory that can be written: {error.strerror}"
        raise SpecError([Problem("", FLAG, must, str(directory))]) from None


def replace_files(directory: Path, fill: Callable[[Path], None]) -> tuple[Path, ...]:
    """Fills a temporary folder and moves each file into its place: inside `directory`, to be on its file system."""
    prepare_directory(directory)
    try:
        with partial_folder(directory) as partial:
            fill(partial)
            names = sorted(path.relative_to(partial) for path in partial.rglob("*") if path.is_file())
            for name in names:
                (directory / name).parent.mkdir(exist_ok=True)
                os.replace(partial / name, directory / name)
    except OSError as error:
        raise SpecError([Problem("", FLAG, f"cannot be written: {error.strerror}", str(error.filename or directory))]) from None
    return tuple(directory / name for name in names)


def write_text(path: Path, text: str) -> None:
    """UTF-8, with one kind of line end on every system."""
    path.write_text(text, encoding="utf-8", newline="\n")


def _write_records(path: Path, result: SimulationResult) -> None:
    """One row per request and variant; times in simulated seconds, empty where a request was rejected."""
    import pyarrow
    import pyarrow.parquet

    rows = []
    for variant in (result.plain, *(comparison.variant for comparison in result.comparisons)):
        transfers = {} if variant.result.transfers is None else variant.result.transfers.spans_s()
        for record in variant.result.records:
            moved_s = dict(zip(TRANSFER_COLUMNS, transfers.get(record.request_id, ()), strict=False))
            rows.append({"variant": variant.label, "num_speculative_tokens": variant.gamma, **_record(record), **moved_s})
    kinds = {
        name: pyarrow.float64() if name.endswith("_s") else pyarrow.string() if name == "rejected" else pyarrow.int64()
        for name in (*RECORD_COLUMNS, *(TRANSFER_COLUMNS if result.plain.result.transfers is not None else ()))
    }
    schema = pyarrow.schema({"variant": pyarrow.string(), "num_speculative_tokens": pyarrow.int64(), **kinds})
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), path)


def _record(record: RequestRecord) -> dict[str, Any]:
    return {name: getattr(record, source) for name, source in RECORD_COLUMNS.items()}


# Where prompts are computed on instances of their own.
TRANSFER_COLUMNS = ("prompt_computed_s", "kv_landed_s")
# Column of records.parquet → attribute of RequestRecord.
RECORD_COLUMNS = {
    "request_id": "request_id",
    "arrival_s": "arrival_s",
    "prompt_tokens": "prompt_tokens",
    "output_tokens": "output_tokens",
    "first_scheduled_s": "first_scheduled_s",
    "first_token_s": "first_token_s",
    "finish_s": "finish_s",
    "queueing_s": "queueing_s",
    "ttft_s": "ttft_s",
    "tpot_s": "tpot_s",
    "e2e_latency_s": "e2e_latency_s",
    "rounds": "rounds",
    "draft_rounds": "draft_rounds",
    "drafted_tokens": "drafted",
    "accepted_tokens": "accepted",
    "preemptions": "preemptions",
    "swaps": "swaps",
    "cached_prompt_tokens": "cached_tokens",
    "cancelled_s": "cancelled_s",
    "rejected": "rejected",
}
