"""`validate --published`: predictions beside published runs, the page that says how far they are, and what a change moved."""

from __future__ import annotations

import csv
import io
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from simulator.plots import save
from simulator.plots.accuracy import accuracy_figure
from simulator.prediction import COLUMNS, as_row
from simulator.questions.accuracy import Scored, as_shipped, left_out
from simulator.questions.engine_fit import UNFITTED, EngineFit
from simulator.questions.published_cases import published_cases
from simulator.reports.accuracy import accuracy_markdown
from simulator.spec import Problem, SpecError

BEGIN = "<!-- computed by `python -m simulator validate --published --page`: do not edit by hand -->"
END = "<!-- end of what is computed -->"


def table(scored: Sequence[Scored]) -> str:
    """Predictions as `predict --table` writes them."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(as_row(each.prediction) for each in scored)
    return text.getvalue()


def write_page(page: Path, progress: Callable[[str, int, int], None] = lambda *_: None) -> list[Scored]:
    """Computes errors with and without each family, puts them between the marks of a page or on a new page; returns the latter.

    The figure goes to `figures/` beside the page. Raises `SpecError` where the page cannot be written.
    """
    shipped, without = as_shipped(), left_out(progress)
    fit = EngineFit([case for case in published_cases() if case.family not in UNFITTED]).fit()
    try:
        (page.parent / "figures").mkdir(parents=True, exist_ok=True)
        save(accuracy_figure(without), page.parent / "figures" / "accuracy.png")
        block = f"{BEGIN}\n\n{accuracy_markdown(shipped, without, fit, 'figures/accuracy.png')}\n{END}\n"
        old = page.read_text(encoding="utf-8") if page.exists() else "# Accuracy\n\n" + BEGIN + END + "\n"
        marks = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END) + r"\n?", re.DOTALL)
        if not marks.search(old):
            raise SpecError([Problem(str(page), "", f"must hold the mark {BEGIN}", "", "")])
        handle, name = tempfile.mkstemp(dir=page.parent, prefix=f".{page.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(marks.sub(lambda _: block, old))
        Path(name).replace(page)
    except OSError as error:
        raise SpecError([Problem("--page", "", f"must be a file that can be written: {error.strerror}", str(page))]) from None
    return without
