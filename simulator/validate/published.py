"""`validate --published` and `--unseen`: predictions beside published runs, the page of their errors, and the constants."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from simulator import resources
from simulator.cost.doubts import FILE as DOUBTS
from simulator.cost.doubts import Doubts
from simulator.hardware import Quantity
from simulator.plots.accuracy import accuracy_figure
from simulator.plots.style import save
from simulator.prediction import COLUMNS, as_row
from simulator.questions.accuracy import Scored, as_shipped, fits_left_out, scored_without
from simulator.questions.engine_fit import CONSTANTS, EngineFit
from simulator.questions.interval_fit import covered, first_residuals, fitted_doubts, residuals
from simulator.questions.published_cases import published_cases, table_path
from simulator.questions.unseen_runs import first_scored, later_sets, scored_now
from simulator.reports.accuracy import accuracy_markdown
from simulator.reports.unseen_runs import unseen_markdown
from simulator.serving_engine import Measured
from simulator.spec import Problem, SpecError
from simulator.unseen_sets import FOLDER
from simulator.whole_file import write_whole

BEGIN = "<!-- computed by `python -m simulator validate --published --page`: do not edit by hand -->"
BEGIN_UNSEEN = "<!-- computed by `python -m simulator validate --unseen --page`: do not edit by hand -->"
END = "<!-- end of what is computed -->"


def table(scored: Sequence[Scored], **told: str) -> str:
    """Predictions as `predict --table` writes them, and further columns that say the same of each."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [*COLUMNS, *told], lineterminator="\n")
    writer.writeheader()
    writer.writerows(as_row(each.prediction) | told for each in scored)
    return text.getvalue()


def refit(progress: Callable[[str, int, int], None] = lambda *_: None) -> list[str]:
    """Fits the constants anew, then how doubts add up, and writes both over the shipped ones. Returns "FILE: constant old → new"
    for those that changed. progress: as of `left_out`.

    Raises `SpecError` where a profile lacks the line of a constant.
    """
    cases = EngineFit(published_cases())
    fit, fits = fits_left_out(cases, progress)
    quantities, told = fit.quantities(), []
    for constant in CONSTANTS:
        files = [resources.folder("engine") / f"{engine}.yaml" for engine in constant.engines]
        for path in files or [resources.folder(FOLDER) / "layer_kinds.yaml"]:
            told += _rewritten(path, constant.name, quantities[constant.id])
    for engine in sorted({engine for constant in CONSTANTS for engine in constant.engines}):
        told += _block(resources.folder("engine") / f"{engine}.yaml", "correlations", _correlation_rows(fit.correlations(engine)))
    for engine, measured in fit.measured.items():
        told += _block(resources.folder("engine") / f"{engine}.yaml", "measured", _measured_rows(measured))
    doubts = fitted_doubts([*residuals(cases, fits, fit), *first_residuals()])
    return told + _doubted(resources.folder(FOLDER) / DOUBTS, doubts)


def _doubted(path: Path, doubts: Doubts) -> list[str]:
    """The lines of the doubts replaced; comments stay."""
    text, told = path.read_text(encoding="utf-8"), []
    for name, value in doubts.model_dump().items():
        changed = re.sub(rf"^{name}: .*$", f"{name}: {value}", text, flags=re.MULTILINE)
        if changed != text:
            told.append(f"{path.name}: {name} → {value}")
            text = changed
    if told:
        write_whole(path, text)
    return told


def _correlation_rows(correlations: Mapping[str, Mapping[str, float]]) -> list[str]:
    return [f"{name}: {{{', '.join(f'{other}: {value}' for other, value in row.items())}}}" for name, row in correlations.items()]


def _measured_rows(measured: Measured) -> list[str]:
    def kernels(of: Mapping[str, Sequence[str]]) -> str:
        return ", ".join(f'"{architecture}": [{", ".join(formats)}]' for architecture, formats in of.items())

    setups = ", ".join(f"{method}: {{{kernels(of)}}}" for method, of in measured.setups.items())
    return [f"setups: {{{setups}}}", f"layers: [{', '.join(measured.layers)}]"]


def _block(path: Path, name: str, rows: Sequence[str]) -> list[str]:
    """A mapping of an engine's profile replaced, or put before its correlations or sources."""
    block = "\n".join([f"{name}:", *(f"  {row}" for row in rows)]) + "\n"
    text = path.read_text(encoding="utf-8")
    if re.search(rf"^{name}:\n", text, re.MULTILINE):
        changed = re.sub(rf"^{name}:\n(?:  .*\n)*", lambda _: block, text, flags=re.MULTILINE)
    else:
        changed = re.sub(r"^(correlations|sources):\n", lambda mark: block + mark[0], text, count=1, flags=re.MULTILINE)
    if changed == text:
        return []
    write_whole(path, changed)
    return [f"{path.name}: {name}"]


def _rewritten(path: Path, name: str, quantity: Quantity) -> list[str]:
    """Value and doubt of one constant replaced in its line; source and note stay."""
    outer, _, inner = name.partition(".")
    above = rf"^{outer}:\n(?:  .*\n)*?  {inner}: " if inner else rf"^{outer}: "
    line = re.compile(rf"({above}\{{value: )([^,]*)(.*relative_std: )([^}}]*)(\}})", re.MULTILINE)
    text = path.read_text(encoding="utf-8")
    found = line.search(text)
    if found is None:
        raise SpecError([Problem(str(path), name, "must be a line with value and relative_std")])
    value, std = f"{quantity.value:.3g}", f"{quantity.doubt:.2g}"
    if value == found[2]:
        return []
    write_whole(path, text[: found.start()] + found[1] + value + found[3] + std + found[5] + text[found.end() :])
    return [f"{path.name}: {name} {found[2]} → {value}"]


def write_page(page: Path, progress: Callable[[str, int, int], None] = lambda *_: None) -> list[Scored]:
    """Computes errors with and without each family, puts them between the marks of a page or on a new page; returns the latter.

    The figure goes to `figures/` beside the page. Raises `SpecError` where the page cannot be written.
    """
    shipped, cases = as_shipped(), EngineFit(published_cases())
    fit, fits = fits_left_out(cases, progress)
    errors = [*residuals(cases, fits, fit), *first_residuals()]
    without = scored_without(cases, fits, errors)
    try:
        (page.parent / "figures").mkdir(parents=True, exist_ok=True)
        save(accuracy_figure(without), page.parent / "figures" / "accuracy.png")
    except OSError as error:
        raise _unwritable(page, error) from None
    _write_between(page, BEGIN, accuracy_markdown(shipped, without, covered(errors), fit, "figures/accuracy.png"))
    return without


def write_unseen(page: Path) -> None:
    """Puts the scores of the runs never seen between their marks of a page, or on a new page. Raises `SpecError` as above."""
    _write_between(page, BEGIN_UNSEEN, unseen_markdown(first_scored(), scored_now()))


def freeze_next(version: str) -> Path:
    """Predicts the first later set of runs never seen that waits for it, and keeps what was said.

    Raises `SpecError` where none waits: each is predicted once.
    """
    sets = later_sets()
    for later in sets:
        if later.waits:
            path = table_path(later.first)
            write_whole(path, table(later.predicted(), version=version))
            return path
    last = str(table_path(sets[-1].first)) if sets else "--freeze"
    raise SpecError([Problem(last, "", "is kept for good: every set was predicted once and is seen since")])


def _write_between(page: Path, begin: str, text: str) -> None:
    block = f"{begin}\n\n{text}\n{END}\n"
    try:
        old = page.read_text(encoding="utf-8") if page.exists() else f"# Accuracy\n\n{begin}{END}\n"
        marks = re.compile(re.escape(begin) + ".*?" + re.escape(END) + r"\n?", re.DOTALL)
        if not marks.search(old):
            raise SpecError([Problem(str(page), "", f"must hold the mark {begin}", "", "")])
        write_whole(page, marks.sub(lambda _: block, old))
    except OSError as error:
        raise _unwritable(page, error) from None


def _unwritable(page: Path, error: OSError) -> SpecError:
    return SpecError([Problem("--page", "", f"must be a file that can be written: {error.strerror}", str(page))])
