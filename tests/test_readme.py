"""The README is true: its commands are those that run, its scenario and output are the real ones, its Python runs.

``python -m tests.test_readme`` writes the scenario and the output anew.
"""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

from tests.test_scenario import run_quietly

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
SCENARIO = ROOT / "scenarios" / "quickstart.yaml"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


def shown_scenario() -> str:
    return SCENARIO.read_text(encoding="utf-8").split("\n", 1)[1]


@cache
def quickstart_output() -> str:
    command = [sys.executable, "-m", "simulator", "run", "scenarios/quickstart.yaml"]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return "\n".join(line.rstrip() for line in text.splitlines()).rstrip() + "\n"


def test_setup_commands_are_the_documented_ones_and_ci_runs_the_test_command():
    run, check = (block.strip() for block in blocks("sh")[:2])
    assert (
        run
        == "python3 -m venv .venv && .venv/bin/pip install -e . && .venv/bin/python -m simulator run scenarios/quickstart.yaml"
    )
    assert check == 'python3 -m venv .venv && .venv/bin/pip install -e ".[dev,calibrate]" && ./check'
    assert check.replace("pip install", "pip install --quiet") in (ROOT / ".ci" / "run").read_text()


def test_the_scenario_shown_is_the_shipped_one():
    assert blocks("yaml") == [shown_scenario()]


def test_the_output_shown_is_what_the_command_prints():
    assert blocks("text") == [quickstart_output()]


def test_every_command_shown_runs(tmp_path, monkeypatch):
    commands = blocks("sh")[2].replace("\\\n", " ").splitlines()
    (tmp_path / "cases.csv").write_text(
        "id,hardware,target_model,method,num_speculative_tokens,batch\na,h100_sxm,Qwen/Qwen3-8B,ngram,3,1\n"
    )
    monkeypatch.chdir(tmp_path)
    for line in commands:
        words = re.sub(r"\s#.*$", "", line).replace('"', "").split()
        assert words[0] == ".venv/bin/specsim"
        arguments = [str(ROOT / word) if word.startswith("scenarios/") else word for word in words[1:]]
        if arguments[0] == "run":
            arguments[1] = str(ROOT / "scenarios" / "azure_code.yaml")  # the quickstart itself runs once, above
        assert run_quietly(arguments)[0] == 0, line
    assert (tmp_path / "report" / "report.md").is_file()
    assert (tmp_path / "predictions.csv").is_file()


def test_the_python_shown_runs(tmp_path):
    (code,) = blocks("python")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("win 2.")


def test_every_link_and_shipped_scenario_is_there():
    text = README.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (ROOT / target).exists(), target
    for path in (ROOT / "scenarios").glob("*.yaml"):
        assert f"`{path.stem}`" in text


def test_the_number_of_devices_is_that_of_the_profiles():
    (said,) = re.findall(r"on (\d+) devices;", README.read_text(encoding="utf-8"))
    assert int(said) == len([*(ROOT / "hardware_profiles").glob("*.yaml")])


def update() -> None:
    text = README.read_text(encoding="utf-8")
    text = re.sub(r"```yaml\n.*?```", lambda _: f"```yaml\n{shown_scenario()}```", text, count=1, flags=re.DOTALL)
    text = re.sub(r"```text\n.*?```", lambda _: f"```text\n{quickstart_output()}```", text, count=1, flags=re.DOTALL)
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    update()
