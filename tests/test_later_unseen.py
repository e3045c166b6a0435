"""The second set of runs never seen: what can be said of it without predicting it, and that it is predicted once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simulator import resources
from simulator.__main__ import main
from simulator.prediction.resolving import resolve
from simulator.questions import unseen_runs
from simulator.questions.accuracy import Scored
from simulator.questions.published_cases import SECOND, UNSEEN, by, published_cases, table_path
from simulator.reports.unseen_runs import second_sentence, second_tables
from simulator.spec import SpecError
from simulator.validate.published import freeze_second, write_unseen


def thread(citation: str) -> str:
    """The repository and, of an issue, its number."""
    return citation.split(",")[0].split(" ")[0]


@pytest.fixture
def first_set_as_second(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """What was kept of the first set stands in for a prediction of the second, and is kept elsewhere."""
    first = unseen_runs.first_scored()[:6]
    monkeypatch.setattr("simulator.validate.published.second_predicted", lambda: first)
    monkeypatch.setattr("simulator.validate.published.table_path", lambda table: tmp_path / table)
    old = table_path
    monkeypatch.setattr(unseen_runs, "table_path", lambda table: tmp_path / table if "first_2" in table else old(table))
    cases = tuple(each.case for each in first)
    monkeypatch.setattr(unseen_runs, "published_cases", lambda table: cases if table == SECOND else published_cases(table))
    return tmp_path / unseen_runs.SECOND_FIRST


def test_runs_are_many_cited_named_once_and_of_many_families() -> None:
    cases = published_cases(SECOND)
    assert len({case.point.id for case in cases}) == len(cases) == 44
    families = by(cases, lambda case: case.family)
    assert len(families) == 13
    assert max(map(len, families.values())) <= 8
    assert len(by(cases, lambda case: case.point.hardware)) == 13
    assert all("/" in case.citation or "public index file" in case.citation for case in cases)
    # A round costs no less than a plain step, whoever measured it.
    assert all(case.measured_r > 1.1 for case in cases)
    assert sum(case.measured_speedup < 0.95 for case in cases) == 11


def test_every_name_is_known() -> None:
    """Names and blanks alone: nothing is priced."""
    for case in published_cases(SECOND):
        resolve(case.point, case.document)


def test_no_source_is_among_those_built_on_or_of_the_first_set() -> None:
    seen = {thread(case.citation.replace(" #", "#")) for table in ("cases.csv", UNSEEN) for case in published_cases(table)}
    repositories = {source.split("#")[0].lower() for source in seen if "/" in source}
    sources = {thread(case.citation) for case in published_cases(SECOND) if "/" in thread(case.citation)}
    assert len(sources) >= 9
    assert not {source.split("#")[0].lower() for source in sources} & repositories
    for kind in ("engine", "hardware", "acceptance"):
        for path in resources.folder(kind).glob("*.yaml"):
            text = path.read_text(encoding="utf-8")
            assert not [source for source in sources if re.search(re.escape(source) + r"(?!\d)", text)], path.name


def test_a_score_is_made_once(first_set_as_second: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert second_sentence().endswith("not predicted yet.")
    assert not [*second_tables()]
    assert freeze_second("v1") == first_set_as_second
    kept = first_set_as_second.read_text(encoding="utf-8")
    with pytest.raises(SpecError, match="kept for good"):
        freeze_second("v2")
    assert main(["validate", "--unseen", "--freeze", "v2"]) == 2
    assert "kept for good" in " ".join(capsys.readouterr().err.split())
    assert first_set_as_second.read_text(encoding="utf-8") == kept
    version, scored = unseen_runs.second_scored() or ("", list[Scored]())
    assert (version, len(scored)) == ("v1", 6)
    assert second_sentence().startswith("Second set, first score, by version v1: 6 runs")
    page = first_set_as_second.with_name("page.md")
    write_unseen(page)
    assert "Second set, by family" in page.read_text(encoding="utf-8")


def test_the_flag_goes_with_unseen_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--published", "--freeze", "v"]) == 2
    assert "--freeze: goes with --unseen only" in " ".join(capsys.readouterr().err.split())


def test_what_was_kept_covers_every_run_and_is_told_on_the_page() -> None:
    kept = unseen_runs.second_scored()
    if kept is not None:
        assert [each.prediction.id for each in kept[1]] == [case.point.id for case in published_cases(SECOND)]
    assert second_sentence() in (Path(__file__).parents[1] / "docs" / "accuracy.md").read_text(encoding="utf-8")
    assert table_path(SECOND).exists()
