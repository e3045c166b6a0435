"""The best method and γ over batch and context: each as it would be alone, none among them, and told without colour too."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from simulator.__main__ import main
from simulator.plots.colour import READABLE, contrast, ink_on, on_dark
from simulator.plots.method_map import GROUNDS, NONE_GROUND, draw_method_map, letters, method_map_title
from simulator.questions.break_even import break_even
from simulator.questions.method_map import NONE, MethodMap, method_map
from simulator.reports.method_map import method_map_csv, method_map_summary, method_map_table
from tests.test_alternatives import SMALL, scenario

# Unsure drafts, so that several methods are best somewhere and none at a large batch.
EAGLE = {"acceptance_rate": 0.3}
NGRAM = {
    "speculation": {"method": "ngram", "num_speculative_tokens": 3},
    "acceptance": {"acceptance_rate": 0.4, "proposal_rate": 0.5},
}
DRAFT = {**SMALL, "acceptance": {"acceptance_rate": 0.52}}


@pytest.fixture(scope="module")
def answer() -> MethodMap:
    found = method_map(scenario([NGRAM, DRAFT], acceptance=EAGLE))
    assert found is not None
    return found


def test_each_method_competes_with_its_own_best_and_none_wins_where_nothing_gains(answer: MethodMap) -> None:
    alone = {
        name: {(cell.batch, cell.context_tokens): cell for cell in break_even(one, contexts=answer.contexts).best}
        for name, one in answer.scenario.methods
    }
    for cell in answer.cells:
        offers = {name: best[cell.batch, cell.context_tokens] for name, best in alone.items()}
        able = [offer.speedup for offer in offers.values() if offer.fits]
        top = max(able or [offer.speedup for offer in offers.values()])
        assert cell.speedup == top
        assert (cell.method == NONE) == (top <= 1) == (cell.num_speculative_tokens == 0)
        if cell.method != NONE:
            chosen = offers[cell.method]
            assert (chosen.speedup, chosen.num_speculative_tokens) == (top, cell.num_speculative_tokens)
            assert cell.speedup_low < cell.speedup < cell.speedup_high
    winners = {cell.method for cell in answer.cells if cell.fits}
    assert NONE in winners
    assert len(winners) >= 3


def test_a_better_draft_never_loses_ground(answer: MethodMap) -> None:
    better = method_map(scenario([NGRAM, DRAFT], acceptance={"acceptance_rate": 0.5}))
    assert better is not None
    theirs = [
        sum(cell.method == "EAGLE-3" for cell in each.cells if cell.fits) for each in (answer, better)
    ]  # fmt: skip
    assert theirs[1] > theirs[0] > 0
    for before, after in zip(answer.cells, better.cells, strict=True):
        assert after.speedup >= before.speedup
        assert after.method == "EAGLE-3" or before.method == after.method


def test_methods_within_three_per_cent_are_named(answer: MethodMap) -> None:
    cell = next(cell for cell in answer.cells if cell.near)
    rivals = {
        name: break_even(one, contexts=(cell.context_tokens,), batches=(cell.batch,)) for name, one in answer.scenario.methods
    }
    close = {name for name, each in rivals.items() if name != cell.method and each.best[0].speedup >= 0.97 * cell.speedup}
    assert set(cell.near) - {NONE} == close


def test_one_method_or_open_acceptance_makes_no_map_and_what_is_left_out_is_said() -> None:
    assert method_map(scenario()) is None
    open_ngram = {"speculation": NGRAM["speculation"]}
    assert method_map(scenario([open_ngram])) is None
    found = method_map(scenario([open_ngram, DRAFT]))
    assert found is not None
    assert found.left_out == ("n-gram lookup",)


def test_the_figure_says_in_words_what_it_says_in_colours(answer: MethodMap) -> None:
    from matplotlib.figure import Figure

    axes = draw_method_map(Figure().subplots(), answer)
    said = [text.get_text() for text in axes.texts]
    short = letters(answer)
    for name in answer.methods:
        assert said.count(short[name]) == sum(cell.method == name for cell in answer.cells)
    legend = axes.get_legend()
    assert legend is not None
    assert {text.get_text().rpartition(": ")[2] for text in legend.get_texts()} == {cell.method for cell in answer.cells}
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("batch (sequences)", "context (tokens)")
    own = [cell.method for cell in answer.cells if cell.context_tokens == answer.own_context and cell.fits]
    assert all(method in method_map_title(answer) for method in own)


@pytest.mark.parametrize("ground", [*GROUNDS, NONE_GROUND])
def test_words_in_cells_can_be_read_in_both_themes(ground: str) -> None:
    ink = ink_on(ground)
    assert contrast(ink, ground) >= READABLE
    assert contrast(on_dark(ink), on_dark(ground)) >= READABLE


def test_table_json_csv_and_page_hold_the_same_cells(
    answer: MethodMap, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header, rows = method_map_table(answer)
    assert header[1:] == [str(batch) for batch in answer.batches]
    assert sum(len(row) - 1 for row in rows) == len(answer.cells)
    cells = method_map_summary(answer)["cells"]
    assert [(cell["method"], cell["num_speculative_tokens"]) for cell in cells] == [
        (cell.method, cell.num_speculative_tokens) for cell in answer.cells
    ]
    assert len(method_map_csv(answer).splitlines()) == 1 + len(answer.cells)
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(dict(answer.scenario.document.data), sort_keys=False))
    assert main(["break-even", str(path), "--json", "--out", str(tmp_path / "out")]) == 0
    assert json.loads(capsys.readouterr().out)["best_method"]["cells"] == cells
    page, text = ((tmp_path / "out" / name).read_text(encoding="utf-8") for name in ("report.html", "report.md"))
    assert 'id="figure-best_method"' in page
    for row in rows:
        assert "| " + " | ".join(row) + " |" in text
        assert all(cell.replace(" ", "") in re.sub(r"\s", "", page.replace("&gt;", ">")) for cell in row)
    assert json.loads((tmp_path / "out" / "best_method.json").read_text(encoding="utf-8"))["cells"] == cells
