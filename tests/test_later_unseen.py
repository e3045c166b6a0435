"""Later sets of runs never seen: what can be said of one without predicting it, and that each is predicted once."""

from __future__ import annotations

import csv
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulator import resources
from simulator.__main__ import main
from simulator.cost.never_fitted import sets_latest_first
from simulator.prediction.resolving import resolve
from simulator.questions.published_cases import BUILT_ON, UNSEEN, by, published_cases, table_path
from simulator.questions.unseen_runs import LaterSet, later_sets
from simulator.reports.unseen_runs import later_sentences, later_tables
from simulator.spec import SpecError
from simulator.unseen_sets import FOLDER
from simulator.validate.published import freeze_next, write_unseen

# Of each set: runs, families, devices, losses, runs of more than eight sequences.
COUNTS = {2: (44, 13, 13, 11, 4), 3: (94, 23, 14, 17, 23), 4: (127, 28, 24, 26, 25), 5: (210, 36, 26, 41, 30)}
# Where laboratories post to one repository: sources are told apart by the thread.
SHARED = (
    "vllm-project/vllm", "vllm-project/speculators", "sgl-project/sglang", "ml-explore/mlx-lm", "ggml-org/llama.cpp",
    "NVIDIA/TensorRT-LLM", "LostRuins/koboldcpp", "z-lab/dflash",
)  # fmt: skip


def source(citation: str) -> str:
    """The repository, the file of the index, or, where a repository has many authors, the thread."""
    if citation.startswith("public index file"):
        return citation.split(":")[0]
    thread = citation.replace(" #", "#").split(",")[0].split(" ")[0].lower()
    return thread if thread.startswith(tuple(f"{name.lower()}#" for name in SHARED)) else thread.split("#")[0]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A copy of the folder whose later sets are runs of the first, and wait."""
    folder = tmp_path / FOLDER
    shutil.copytree(table_path(UNSEEN).parent, folder)
    lines = table_path(UNSEEN).read_text(encoding="utf-8").splitlines(keepends=True)
    for later in later_sets():
        (folder / later.first).unlink(missing_ok=True)
        (folder / later.table).unlink()
    for number in (2, 3, 11):
        (folder / LaterSet(number).table).write_text("".join(lines[: number + 2]), encoding="utf-8")
    old = resources.folder
    kept = (published_cases, sets_latest_first)
    for each in kept:
        each.cache_clear()
    monkeypatch.setattr(resources, "folder", lambda kind: folder if kind == FOLDER else old(kind))
    yield folder
    for each in kept:
        each.cache_clear()


@pytest.mark.parametrize("number", COUNTS)
def test_runs_are_many_cited_named_once_and_of_many_families(number: int) -> None:
    cases = LaterSet(number).cases
    assert len({case.point.id for case in cases}) == len(cases)
    families = by(cases, lambda case: case.family)
    losses = sum(case.measured_speedup < 0.95 for case in cases)
    large = sum((case.point.batch or 1) > 8 for case in cases)
    assert (len(cases), len(families), len(by(cases, lambda case: case.point.hardware)), losses, large) == COUNTS[number]
    assert max(map(len, families.values())) <= 8
    assert all("/" in case.citation or "public index file" in case.citation for case in cases)
    # A round costs no less than a plain step, whoever measured it.
    assert all(case.measured_r > 1 for case in cases)


def test_every_set_is_counted_above() -> None:
    assert [later.number for later in later_sets()] == [*COUNTS]


def test_every_name_is_known() -> None:
    """Names and blanks alone: nothing is priced."""
    for later in later_sets():
        for case in later.cases:
            resolve(case.point, case.document)


def test_no_source_is_among_those_built_on_or_of_an_earlier_set() -> None:
    seen = {source(case.citation) for table in (BUILT_ON, UNSEEN) for case in published_cases(table)}
    for later in later_sets():
        sources = {source(case.citation) for case in later.cases}
        assert len(sources) >= 12
        assert not sources & seen
        seen |= sources
        for kind in ("engine", "hardware", "acceptance"):
            for path in resources.folder(kind).glob("*.yaml"):
                text = path.read_text(encoding="utf-8").lower()
                assert not [each for each in sources if re.search(re.escape(each) + r"(?!\d)", text)], path.name


def test_each_set_is_scored_once_in_its_turn(stand_in: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [sentence.split(":")[0] for sentence in later_sentences()] == ["Second set", "Third set", "Set 11"]
    assert all(sentence.endswith("not predicted yet.") for sentence in later_sentences())
    assert not [*later_tables()]
    for number in (2, 3, 11):
        assert freeze_next(f"v{number}") == stand_in / LaterSet(number).first
    kept = [(stand_in / LaterSet(number).first).read_text(encoding="utf-8") for number in (2, 3, 11)]
    with pytest.raises(SpecError, match="kept for good"):
        freeze_next("again")
    assert main(["validate", "--unseen", "--freeze", "again"]) == 2
    assert "kept for good" in " ".join(capsys.readouterr().err.split())
    assert [(stand_in / LaterSet(number).first).read_text(encoding="utf-8") for number in (2, 3, 11)] == kept
    scored = [later.scored() or ("", []) for later in later_sets()]
    assert [(version, len(runs)) for version, runs in scored] == [("v2", 3), ("v3", 4), ("v11", 12)]
    assert later_sentences()[1].startswith("Third set, first score, by version v3: 4 runs")
    page = stand_in / "page.md"
    write_unseen(page)
    assert "Third set, by family" in page.read_text(encoding="utf-8")


def test_the_flag_goes_with_unseen_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--published", "--freeze", "v"]) == 2
    assert "--freeze: goes with --unseen only" in " ".join(capsys.readouterr().err.split())


def test_what_was_kept_covers_every_run_and_is_told_on_the_page() -> None:
    page = (Path(__file__).parents[1] / "docs" / "accuracy.md").read_text(encoding="utf-8")
    for later in later_sets():
        kept = later.scored()
        if kept is not None:
            assert [each.prediction.id for each in kept[1]] == [case.point.id for case in later.cases]
    assert all(sentence in page for sentence in later_sentences())


@pytest.mark.parametrize(("number", "pages"), [(4, ["docs/accuracy.md"]), (5, ["README.md", "docs/accuracy.md"])])
def test_verdicts_of_a_set_were_right_as_often_as_the_pages_say(number: int, pages: list[str]) -> None:
    """The first predictions are kept for good, so that the count is too."""
    later = LaterSet(number)
    with table_path(later.first).open(encoding="utf-8", newline="") as file:
        said = [row["verdict"] for row in csv.DictReader(file)]
    sure = [(verdict, case) for verdict, case in zip(said, later.cases, strict=True) if verdict in ("win", "lose")]
    right = sum((verdict == "win") == (case.measured_speedup > 1) for verdict, case in sure)
    for page in pages:
        text = " ".join((Path(__file__).parents[1] / page).read_text(encoding="utf-8").split())
        assert f"Of {len(sure)} runs called a win or a loss {right} were" in text, page
