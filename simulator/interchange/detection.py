"""Which engine wrote a file: found from its content, or named with `--as`; and the runs in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from simulator.interchange import (
    acceptance_dumps,
    engine_flags,
    llamacpp,
    measured_file,
    prometheus,
    sglang,
    step_costs,
    trtllm,
    trtllm_config,
    vllm_bench,
    vllm_logs,
)
from simulator.interchange.engine_flags import ServerSettings
from simulator.interchange.observed import ObservedRun, json_objects, judged, lines
from simulator.interchange.step_costs import StepCosts
from simulator.spec import Problem, SpecError, nearest

_READERS: dict[str, Callable[[Path], Iterator[ObservedRun]]] = {
    vllm_bench.FORMAT: vllm_bench.read,
    vllm_logs.FORMAT: vllm_logs.read,
    prometheus.FORMAT: prometheus.read,
    sglang.BENCH_FORMAT: sglang.read_bench,
    sglang.LOG_FORMAT: sglang.read_log,
    sglang.RESPONSE_FORMAT: sglang.read_responses,
    trtllm.FORMAT: trtllm.read,
    llamacpp.TEXT_FORMAT: llamacpp.read_text,
    llamacpp.RESPONSE_FORMAT: llamacpp.read_responses,
    acceptance_dumps.FORMAT: acceptance_dumps.read,
    measured_file.FORMAT: measured_file.read,
}
FORMATS = tuple(_READERS)
COMMAND, TRTLLM_CONFIG = "server-command", "trtllm-config"
_SETTINGS: dict[str, Callable[[Path], ServerSettings]] = {
    COMMAND: engine_flags.read_command,
    TRTLLM_CONFIG: trtllm_config.read,
}
_JSON: tuple[tuple[Callable[[object], object], str], ...] = (
    (step_costs.is_table, step_costs.FORMAT),
    (vllm_bench.is_run, vllm_bench.FORMAT),
    (sglang.is_bench, sglang.BENCH_FORMAT),
    (trtllm.is_iteration, trtllm.FORMAT),
    (acceptance_dumps.is_dump, acceptance_dumps.FORMAT),
    (sglang.meta_info, sglang.RESPONSE_FORMAT),
    (llamacpp.timings, llamacpp.RESPONSE_FORMAT),
)
_TEXT: tuple[tuple[Callable[[str], bool], str], ...] = (
    (prometheus.is_metrics, prometheus.FORMAT),
    (vllm_logs.is_log, vllm_logs.FORMAT),
    (sglang.is_log, sglang.LOG_FORMAT),
    (llamacpp.is_text, llamacpp.TEXT_FORMAT),
    (engine_flags.is_command, COMMAND),
)


def format_of(path: str | Path) -> str:
    """The format of a file or of a folder of results. Raises `SpecError` where none is recognised."""
    if Path(path).is_dir():
        return vllm_bench.FORMAT
    start = next((text for _, text in lines(path) if text.strip()), "").lstrip()
    if re.match(r"\{|\[\s*($|[\[{])", start):  # and not a log whose lines begin with a time in brackets
        _, value = next(json_objects(path))
        first = value[0] if isinstance(value, list) and value else value
        for test, name in _JSON:
            if test(first):
                return name
    if Path(path).suffix in (".yaml", ".yml"):
        return measured_file.FORMAT if measured_file.is_measured(Path(path)) else TRTLLM_CONFIG
    for _, text in lines(path):
        for of_line, name in _TEXT:
            if of_line(text):
                return name
    raise SpecError([Problem(str(path), "", f"must be of a format known here (name it with --as): {', '.join(FORMATS)}")])


@dataclass(frozen=True)
class Imported:
    """What the files hold: measured runs, the server's settings where a file starts it, and tables of step costs."""

    runs: tuple[ObservedRun, ...]
    server: ServerSettings | None = None
    step_costs: tuple[StepCosts, ...] = ()


def read_files(
    paths: Sequence[str | Path],
    format: str | None = None,
    num_speculative_tokens: int | None = None,
    draft_tokens: int | None = None,
) -> Imported:
    """Every run of the files, judged, and the settings of at most one server. Two metrics pages are one run: their difference.

    num_speculative_tokens: γ, for files that do not hold it. draft_tokens: SGLang's flag, which counts the root. Raises
    `SpecError` for a file that cannot be read, or whose acceptance is impossible.
    """
    every = (*FORMATS, *_SETTINGS, step_costs.FORMAT)
    if format is not None and format not in every:
        raise SpecError([Problem("--as", "", f"must be one of {', '.join(every)}", repr(format), nearest(format, every))])
    for index, path in enumerate(paths):
        if Path(path).resolve() in [Path(before).resolve() for before in paths[:index]]:
            raise SpecError([Problem(str(path), "", "must be given once: a run counted twice would count as two")])
    formats = [format or format_of(path) for path in paths]
    stated = [(path, name) for path, name in zip(paths, formats, strict=True) if name in _SETTINGS]
    if len(stated) > 1:
        raise SpecError([Problem(str(stated[1][0]), "", "must be the only file that states a server's settings")])
    server = _SETTINGS[stated[0][1]](Path(stated[0][0])) if stated else None
    measured = [(path, name) for path, name in zip(paths, formats, strict=True) if name in _READERS]
    tables = tuple(
        table for path, name in zip(paths, formats, strict=True) if name == step_costs.FORMAT for table in step_costs.read(path)
    )
    return Imported(tuple(_runs(measured, num_speculative_tokens, draft_tokens)), server, tables)


def _runs(
    files: Sequence[tuple[str | Path, str]], num_speculative_tokens: int | None, draft_tokens: int | None
) -> list[ObservedRun]:
    runs: list[ObservedRun] = []
    if files and {name for _, name in files} == {prometheus.FORMAT}:
        if len(files) > 2:
            raise SpecError([Problem("", "", "must be one metrics page, or two: before and after", str(len(files)))])
        runs = list(prometheus.read(*(path for path, _ in files)))
    else:
        for path, name in files:
            read = _READERS[name]
            runs += list(sglang.read_log(path, draft_tokens) if name == sglang.LOG_FORMAT else read(Path(path)))
    return [judged(run, num_speculative_tokens if run.speculative else None) for run in runs]
