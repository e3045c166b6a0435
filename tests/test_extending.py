"""docs/extending.md is true: its files load, its commands and its Python run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from simulator.__main__ import main
from simulator.cost import drafting
from simulator.hardware import HardwareOverride, find_hardware, override
from simulator.prediction import resolving
from simulator.serving_engine import find_engine
from simulator.spec import check, parse_yaml

TEXT = (Path(__file__).parents[1] / "docs" / "extending.md").read_text(encoding="utf-8")


def blocks(section: str, language: str) -> list[str]:
    """Code blocks of one language under the heading `section`."""
    _, _, after = TEXT.partition(f"## {section}\n")
    assert after, section
    return re.findall(rf"```{language}\n(.*?)```", after.partition("\n## ")[0], flags=re.DOTALL)


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The device's file where a reader would have it: in the folder they work in."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mydevice.yaml"
    path.write_text(blocks("Adding a device is one file", "yaml")[0], encoding="utf-8")
    return path


def predicted_r(command: list[str], capsys: pytest.CaptureFixture[str]) -> float:
    """R as the command says it."""
    program, *arguments = command
    assert program == "specsim"
    code, said = main([*arguments, "--json"]), capsys.readouterr()
    assert code == 0, said.err
    return float(json.loads(said.out)["r"])


def test_the_new_device_is_priced_by_the_command_shown(device: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert predicted_r(blocks("Adding a device is one file", "sh")[0].split(), capsys) > 1


def test_what_the_text_says_of_the_new_device_holds(device: Path) -> None:
    exec(compile(blocks("Adding a device is one file", "python")[0], str(device), "exec"), {})
    profile = find_hardware(str(device)).profile
    assert all(profile.peak_flops_per_s[name.rpartition(".")[2]].doubt > 0 for name in profile.doubtful)


def test_the_override_shown_replaces_what_it_names() -> None:
    document = parse_yaml(blocks("Adding a device is one file", "yaml")[1], "scenario.yaml")
    change: HardwareOverride = check(HardwareOverride, document, ("hardware",))
    changed = override(find_hardware(change.base), change, document)
    assert changed.coefficients.memory_bandwidth_fraction.value == change.memory_bandwidth_fraction
    assert changed.memory_bytes == change.memory_bytes


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mymodel.yaml"
    path.write_text(blocks("Adding a model is one entry", "yaml")[0], encoding="utf-8")
    return path


def test_the_new_model_is_priced_by_the_command_shown(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert predicted_r(blocks("Adding a model is one entry", "sh")[0].split(), capsys) > 1


def test_what_the_text_says_of_the_new_model_holds(model: Path) -> None:
    exec(compile(blocks("Adding a model is one entry", "python")[0], str(model), "exec"), {})


def test_the_new_method_is_priced_by_the_command_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The text's two edits, undone afterwards: its function, and the name as `Method` would hold it."""
    section = "Adding a drafting method is two edits"
    monkeypatch.setitem(drafting.METHODS, "pairs", drafting.METHODS["draft_model"])
    monkeypatch.setattr(resolving, "METHODS", (*resolving.METHODS, "pairs"))
    exec(compile(blocks(section, "python")[0], "docs/extending.md", "exec"), {})
    command = blocks(section, "sh")[0].split()
    pairs, one_by_one = (
        predicted_r([method if word == "pairs" else word for word in command], capsys) for method in ("pairs", "draft_model")
    )
    assert pairs < one_by_one, "half the passes cost less than all of them"


def test_a_profile_that_was_changed_is_read_anew(device: Path) -> None:
    """In one Python session: what is remembered of a file holds until the file is another."""
    before = find_hardware(str(device)).memory_bytes
    device.write_text(
        re.sub(r"(memory_bytes: \{value: )\S+,", r"\g<1>123e9,", device.read_text(encoding="utf-8")), encoding="utf-8"
    )
    assert before != find_hardware(str(device)).memory_bytes == 123e9
    engine = device.with_name("mine.yaml")
    engine.write_text("based_on: vllm\nmax_num_batched_tokens: 1111\n", encoding="utf-8")
    assert find_engine(str(engine)).max_num_batched_tokens == 1111
    engine.write_text("based_on: vllm\nmax_num_batched_tokens: 22222\n", encoding="utf-8")
    assert find_engine(str(engine)).max_num_batched_tokens == 22222
