"""Engine profiles that state only what differs from another."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator import resources
from simulator.serving_engine import GraphLadder, ServingEngine, find_engine
from simulator.spec import SpecError, load_yaml

BASED = [id_ for id_ in resources.ids("engine") if "based_on" in load_yaml(resources.folder("engine") / f"{id_}.yaml").data]


@pytest.mark.parametrize("engine_id", BASED)
def test_a_profile_based_on_another_differs_in_what_it_states_alone(engine_id: str) -> None:
    stated = load_yaml(resources.folder("engine") / f"{engine_id}.yaml").data
    engine, base = find_engine(engine_id), find_engine(stated["based_on"])
    differing = {name for name in ServingEngine.model_fields if getattr(engine, name) != getattr(base, name)}
    assert differing - {"until"} == set(stated) - {"based_on", "schema_version"}
    assert not engine.until  # a version is that of any year


def refused(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        find_engine(str(path))
    return str(caught.value)


def test_a_base_is_a_known_whole_profile(tmp_path: Path) -> None:
    assert "nearest: vllm" in refused(tmp_path, "based_on: vlllm\nschema_version: 1\n").replace("did you mean", "nearest:")
    assert "whole profile" in refused(tmp_path, "based_on: vllm_0_25\nschema_version: 1\n")


def test_an_unknown_key_beside_a_base_is_refused_with_its_line(tmp_path: Path) -> None:
    assert "mine.yaml:3" in refused(tmp_path, "based_on: vllm\nschema_version: 1\nround_overhead: 1\n")


def test_own_numbers_replace_the_base(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("based_on: vllm\nschema_version: 1\nround_overhead_s: {value: 0.001, source: measured}\n", encoding="utf-8")
    assert find_engine(str(path)).round_overhead_s.value == 0.001
    assert find_engine(str(path)).graphs == find_engine("vllm").graphs


def test_what_is_not_overlapped_is_given_with_its_methods(tmp_path: Path) -> None:
    assert "needs unoverlapped_s" in refused(tmp_path, "based_on: generic\nschema_version: 1\nunoverlapped_methods: [ngram]\n")


def test_a_changed_ladder_forgets_the_sizes_of_the_old_one():
    ladder = GraphLadder(listed=(1, 2, 4), step=8, largest=16)
    assert ladder.sizes == (1, 2, 4, 8, 16)
    assert ladder.model_copy(update={"listed": (1, 20)}).sizes == (1, 8, 16, 20)
