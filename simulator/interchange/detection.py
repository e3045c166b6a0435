"""Which engine wrote a file: found from its content, or named with `--as`; and the runs in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from simulator.interchange import acceptance_dumps, llamacpp, prometheus, sglang, trtllm, vllm_bench, vllm_logs
from simulator.interchange.observed import ObservedRun, json_objects, judged, lines
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
}
FORMATS = tuple(_READERS)
_JSON: tuple[tuple[Callable[[object], object], str], ...] = (
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
)


def format_of(path: str | Path) -> str:
    """The format of a file or of a folder of results. Raises `SpecError` where none is recognised."""
    if Path(path).is_dir():
        return vllm_bench.FORMAT
    start = next((text for _, text in lines(path) if text.strip()), "").lstrip()
    if start.startswith(("{", "[")):  # or a log whose lines begin with a time in brackets
        try:
            _, value = next(json_objects(path))
        except SpecError:
            if start.startswith("{"):
                raise
        else:
            first = value[0] if isinstance(value, list) and value else value
            for test, name in _JSON:
                if test(first):
                    return name
    for _, text in lines(path):
        for of_line, name in _TEXT:
            if of_line(text):
                return name
    raise SpecError([Problem(str(path), "", f"must be of a format known here (name it with --as): {', '.join(FORMATS)}")])


def read_runs(
    paths: Sequence[str | Path],
    format: str | None = None,
    num_speculative_tokens: int | None = None,
    draft_tokens: int | None = None,
) -> list[ObservedRun]:
    """Every run of the files, judged. Two metrics pages are one run: the second less the first.

    num_speculative_tokens: γ, for files that do not hold it. draft_tokens: SGLang's flag, which counts the root. Raises
    `SpecError` for a file that cannot be read, or whose acceptance is impossible.
    """
    if format is not None and format not in _READERS:
        known = ", ".join(FORMATS)
        raise SpecError([Problem("--as", "", f"must be one of {known}", repr(format), nearest(format, FORMATS))])
    formats = [format or format_of(path) for path in paths]
    runs: list[ObservedRun] = []
    if formats and set(formats) == {prometheus.FORMAT}:
        if len(paths) > 2:
            raise SpecError([Problem("", "", "must be one metrics page, or two: before and after", str(len(paths)))])
        runs = list(prometheus.read(*paths))
    else:
        for path, name in zip(paths, formats, strict=True):
            read = _READERS[name]
            runs += list(sglang.read_log(path, draft_tokens) if name == sglang.LOG_FORMAT else read(Path(path)))
    return [judged(run, num_speculative_tokens if run.speculative else None) for run in runs]
