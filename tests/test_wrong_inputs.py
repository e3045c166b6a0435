"""Wrong inputs of every kind: one clear message each, exit code 2, never a traceback, and nothing on stdout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.test_capacity import BASE
from tests.test_scenario import run_quietly

FEW = {**BASE, "workload": {**BASE["workload"], "num_requests": 20}}
FILES: dict[str, bytes] = {
    "empty.yaml": b"", "latin.yaml": b"hardware: h100_sxm # \xe9\xff\n", "list.yaml": b"- a\n- b\n", "tab.yaml": b"hardware:\n\tfoo: 1\n",
    "binary.yaml": bytes(range(256)), "loop.yaml": b"a: &a [*a]\nhardware: *a\n", "twice.yaml": b"seed: 1\nseed: 2\n",
    "empty.csv": b"", "latin.csv": b"hardware,target_model,method,batch\nh100_sxm,\xff,ngram,1\n",
    "semi.csv": b"hardware;target_model;method;batch\n", "negative.csv": b"arrival_s,prompt_tokens,output_tokens\n1,-5,10\n",
    "text.csv": b"arrival_s,prompt_tokens,output_tokens\n1,abc,10\n", "nan.csv": b"arrival_s,prompt_tokens,output_tokens\nnan,10,10\n",
}  # fmt: skip
POINT = "predict --hardware l40s --target Qwen/Qwen3-8B --method eagle3 --num-speculative-tokens 3"


def _changed(*place: str, to: object) -> Callable[[], dict]:
    def made() -> dict:
        data = yaml.safe_load(yaml.safe_dump(FEW))
        node = data
        for key in place[:-1]:
            node = node.setdefault(key, {})
        node[place[-1]] = to
        return data

    return made


def _trace(name: str) -> Callable[[], dict]:
    return _changed("workload", to={"arrivals": {"process": "trace"}, "requests": {"trace": name}})


SCENARIOS = {
    "a rate in words": (_changed("workload", "arrivals", "rate_per_s", to="fast"), "rate_per_s: must be a number (got 'fast')"),
    "a rate that is none": (_changed("workload", "arrivals", "rate_per_s", to=float("nan")), "must be a finite number (got nan)"),
    "a negative rate": (_changed("workload", "arrivals", "rate_per_s", to=-3), "must be at least 1e-06 (got -3)"),
    "a rate with a unit": (_changed("workload", "arrivals", "rate_per_s", to="8/s"), "in SI units without suffix (got '8/s')"),
    "too many requests": (_changed("workload", "num_requests", to=10**12), "must be at most 10,000,000 (got 1000000000000)"),
    "a section unknown": (_changed("workloads", to={}), "workloads: unknown key; known here: acceptance, alternatives"),
    "a method misspelt": (_changed("speculation", "method", to="eagel3"), "did you mean eagle3?"),
    "a device misspelt": (_changed("hardware", to="h100smx"), "did you mean h100_sxm?"),
    "a list of devices": (_changed("hardware", to=["h100_sxm"]), "hardware: must be a name or a mapping with base (got a list)"),
    "no device": (_changed("hardware", to=None), "hardware: must be a name or a mapping with base (got nothing)"),
    "a fraction above 1": (_changed("hardware", to={"base": "l40s", "memory_bandwidth_fraction": 7}), "must be at most 1 (got 7)"),
    "half a token": (_changed("speculation", "num_speculative_tokens", to=2.5), "must be a whole number or a list (got 2.5)"),
    "two acceptances": (_changed("acceptance", "mean_acceptance_length", to=2), "acceptance: must have exactly one of profile"),
    "an acceptance above 1": (_changed("acceptance", to={"acceptance_rate": 1.2}), "must be at most 1 (got 1.2)"),
    "heads that do not divide": (_changed("parallel", to={"tensor_parallel_size": 3}), "must divide the 32 attention heads"),
    "a percentile unknown": (_changed("service_level", "tpot_p91_s", to=1), "did you mean tpot_p99_s?"),
    "a seed of words": (_changed("seed", to="one"), "seed: must be a whole number (got 'one')"),
    "a negative prompt": (_trace("negative.csv"), "negative.csv:2: prompt_tokens: must be from 0 to"),
    "a prompt in words": (_trace("text.csv"), "text.csv:2: prompt_tokens: must be a whole number (got 'abc')"),
    "an arrival that is no time": (_trace("nan.csv"), "nan.csv:2: arrival_s: must be a time from 0"),
    "a trace without a header": (_trace("empty.csv"), "arrival_s: must be a column of the header"),
    "a trace that is not there": (_trace("nowhere.csv"), "must be the path of a file that exists (got 'nowhere.csv')"),
}  # fmt: skip
COMMANDS = {
    "run empty.yaml": "must be a mapping of sections such as hardware, target and workload (got nothing)",
    "run list.yaml": "must be a mapping of sections such as hardware, target and workload (got a list)",
    "run latin.yaml": "latin.yaml: must be text in UTF-8",
    "run binary.yaml": "binary.yaml: must be text in UTF-8",
    "run tab.yaml": "tab.yaml:2: must be YAML",
    "run loop.yaml": "must be nested at most 32 deep",
    "run twice.yaml": "twice.yaml:2: seed: must stand only once (first on line 1)",
    "run .": "must be a known scenario or the path of a file",
    "run nowhere.yaml": "nowhere.yaml: no such file",
    "run quikstart": "did you mean quickstart?",
    f"run {'a' * 5000}": "aaa...)",
    "run quickstart --gamma 3": "--gamma: unknown flag of run; known here: --json, --out, --readable, --timeline",
    "schedule quickstart --outt x": "--outt: unknown flag of schedule; known here: --json, --out; did you mean --out?",
    "run quickstart other": "other: must be left out: run takes no such argument",
    "runn quickstart": "did you mean run?",
    "run": "scenario: must be given",
    "run quickstart --out empty.yaml": "--out: must be a directory that can be written",
    "run quickstart --timeline .": "--timeline: must be a file that can be written: is a folder",
    "capacity quickstart --demand nan": "--demand: must be a rate in requests per second, or a factor such as 3x",
    "capacity quickstart --price-per-gpu-hour -2": "--price-per-gpu-hour: must be above 0 (got -2)",
    "explain quickstart --context-len -5": "--context-len: must be at least 1 (got -5)",
    "explain quickstart --hardware l40s": "--hardware: must be left out with a scenario",
    "compare quickstart --by hardwear": "did you mean hardware?",
    "compare quickstart --by quantize --values fp7": "did you mean fp8?",
    "sweep quickstart --set batch": "--set: must be a key and its values",
    "sweep quickstart --set foo.bar=1": "foo.bar: unknown key of a scenario",
    "sweep quickstart": "sweep: must be given, or --set: nothing varies",
    f"{POINT} --batch nan": "--batch: must be a whole number (got 'nan')",
    f"{POINT} --engine vlm": "did you mean vllm?",
    f"{POINT} --plain-step-s inf": "--plain-step-s: must be a number (got 'inf')",
    f"{POINT} --tree-shape steps=x": "--tree-shape: must be such as steps=5,topk=4,draft_tokens=8",
    f"{POINT} --out x.csv": "--out: goes with --table only",
    "predict --table empty.csv": "empty.csv:1: hardware: must be a column",
    "predict --table latin.csv": "latin.csv: must be a CSV file: it is not text in UTF-8",
    "predict --table semi.csv": "semi.csv:1: hardware: must be a column, columns apart by commas (this file has ';')",
    "predict --table .": "must be a CSV file: is a directory",
    "predict --table nowhere.csv": "nowhere.csv: no such file",
    "import scenario.yaml": "must be measured runs of this program, or a TensorRT-LLM configuration with one of max_batch_size",
    "validate --published --diff nowhere.csv": "must be a table of predictions with id and speedup: no such file or directory",
    "export quickstart --engine vlm": "did you mean vllm?",
    "list foo": "must be one of hardware, engine, model, acceptance, workload, scenario (got 'foo')",
    "schema x": "x: must be left out: schema takes no such argument",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _among_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "scenario.yaml").write_text(yaml.safe_dump(FEW))
    monkeypatch.chdir(tmp_path)


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    code, shown = run_quietly(words)
    assert code == 2, shown
    assert "Traceback" not in shown
    assert capsys.readouterr().out == ""
    return shown


@pytest.mark.parametrize("mistake", SCENARIOS)
def test_a_mistake_in_a_scenario_is_told_with_its_line(mistake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, expected = SCENARIOS[mistake]
    path = tmp_path / "wrong.yaml"
    path.write_text(yaml.safe_dump(made(), sort_keys=False))
    shown = refused(["run", str(path)], capsys)
    assert expected in shown
    assert all(":" in line.split(" ")[0] and line.split(":")[1].isdigit() for line in shown.splitlines()), shown


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[:50])
def test_a_mistake_in_a_command_is_told_in_one_message(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = refused(command.split(), capsys)
    assert COMMANDS[command] in shown
    assert len(shown.splitlines()) == 1 or command in ("predict --table empty.csv", "run loop.yaml")
    assert len(shown) < 1500
