"""Runs that nobody had seen while the model was built: nothing is fitted on them, and what was first said of them stays."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from simulator import resources
from simulator.__main__ import main
from simulator.questions.accuracy import Scored, score
from simulator.questions.published_cases import UNSEEN, by, published_cases
from simulator.questions.unseen_runs import CHOICES, choices, first_scored, priced, scored_now
from simulator.reports.unseen_runs import unseen_sentences, unseen_tables
from simulator.validate.published import BEGIN_UNSEEN, END


@pytest.fixture(scope="module")
def now() -> list[Scored]:
    return scored_now()


def test_cases_are_many_cited_named_once_and_of_many_families() -> None:
    cases = published_cases(UNSEEN)
    assert len({case.point.id for case in cases}) == len(cases) > 100
    assert len(by(cases, lambda case: case.family)) == 25
    assert len(by(cases, lambda case: case.point.hardware)) == 20
    assert all("/" in case.citation for case in cases)
    # A round costs more than a plain step, whoever measured it.
    assert all(case.measured_r > 1.1 for case in cases)
    assert sum(case.measured_speedup < 0.95 for case in cases) == 9


def test_no_run_is_among_those_built_on() -> None:
    def thread(citation: str) -> str:
        return citation.split(",")[0].replace(" #", "#")

    built_on = {thread(case.citation) for case in published_cases()}
    assert not built_on & {thread(case.citation) for case in published_cases(UNSEEN)}


def test_no_constant_has_its_source_among_them() -> None:
    sources = {case.citation.split(",")[0].replace(" #", "#") for case in published_cases(UNSEEN)}
    for kind in ("engine", "hardware", "acceptance"):
        for path in resources.folder(kind).glob("*.yaml"):
            text = path.read_text(encoding="utf-8")
            assert not [source for source in sources if re.search(re.escape(source) + r"(?!\d)", text)], path.name


def test_the_first_score_is_the_one_that_was_made_first() -> None:
    """These numbers never change, save where a run is found to be written down wrongly, which its note then says."""
    first = first_scored()
    assert [each.prediction.id for each in first] == [each.case.point.id for each in first]
    total = score(priced(first))
    assert total.cases == 106
    assert total.median == pytest.approx(0.1927, abs=1e-4)
    assert total.p90 == pytest.approx(0.6963, abs=1e-4)
    assert total.inside == pytest.approx(0.3774, abs=1e-4)
    assert (total.wins, total.losses) == (pytest.approx(0.9348, abs=1e-4), pytest.approx(5 / 9))


def test_choosing_gamma_and_batch_by_predicted_speedup_loses_little_and_choosing_an_engine_much() -> None:
    """Of the first predictions, kept: a good order within one laboratory and engine beside large errors of size."""
    gamma, batch, engine = (choices(first_scored(), what) for what in CHOICES)
    assert (gamma.pairs, batch.pairs, engine.pairs) == (54, 43, 22)
    assert gamma.right > 0.8
    assert batch.right > 0.9
    assert engine.right < 0.5
    assert gamma.loss < batch.loss < 0.05 < engine.loss


def test_what_was_priced_is_priced_still(now: list[Scored]) -> None:
    refused = {each.case.point.id for each in now if each.prediction.status != "ok"}
    assert refused <= {"MER"}
    assert all("draft trees" in each.prediction.reason for each in now if each.prediction.status != "ok")


def test_the_page_tells_the_first_score(now: list[Scored]) -> None:
    page = (Path(__file__).parents[1] / "docs" / "accuracy.md").read_text(encoding="utf-8")
    assert page.count(BEGIN_UNSEEN) == 1
    assert unseen_sentences(first_scored(), now)[0] in page


def test_every_run_is_counted_in_every_table(now: list[Scored]) -> None:
    *groups, (_, _, chosen), (_, _, rules) = unseen_tables(first_scored(), now)
    assert [row[0] for row in chosen] == ["γ", "batch", "engine"]
    assert [sum(int(row[1]) for row in rows) for _, _, rows in groups] == [len(now)] * len(groups)
    assert [row[0] for row in rules][:2] == ["this model, first", "this model, now"]


def test_the_command_tells_both_scores_and_refuses_to_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "p.csv"
    assert main(["validate", "--unseen", "--out", str(out), "--json"]) == 0
    assert "First score" in json.loads(capsys.readouterr().out)["summary"]
    page = tmp_path / "page.md"
    assert main(["validate", "--unseen", "--diff", str(out), "--page", str(page)]) == 0
    assert "0 runs moved" in capsys.readouterr().out
    assert page.read_text(encoding="utf-8").count(END) == 1
    for flags, told in (
        (["--unseen", "--refit"], "--refit: goes with --published only"),
        (["--unseen", "--minutes", "1"], "--minutes: goes with --local only"),
        (["--local", "--page", str(page)], "--page: goes with --published or --unseen only"),
        (["--unseen", "--published"], "exactly one must be given"),
    ):
        assert main(["validate", *flags]) == 2
        assert told in " ".join(capsys.readouterr().err.split())
