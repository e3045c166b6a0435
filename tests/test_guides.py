"""The guides are true: every command in them runs, and prints what the page shows.

``python -m tests.test_guides`` writes the outputs anew, and the benchmark files under docs/examples.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import resource
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simulator.__main__ import main
from simulator.cost.uncertainty import with_constant
from simulator.scenario import scenario_of
from simulator.serving import summarise
from simulator.simulation import Server
from simulator.spec import parse_yaml

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "docs" / "examples"
PAGES = [
    *(ROOT / "docs" / f"{name}.md" for name in ("importing", "planning", "reports", "sweeps")),
    *sorted((ROOT / "docs" / "guides").glob("*.md")),
]
STEP = re.compile(r"```sh\n(.*?)```(?:\n+```text\n(.*?)```)?", re.DOTALL)


def printed(commands: str) -> str:
    """What the commands of one block print, line ends cut."""
    out = io.StringIO()
    for line in commands.replace("\\\n", " ").strip().splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        assert words[0] == "specsim", line
        target: io.TextIOBase = out
        if ">" in words:
            at = words.index(">")
            target = Path(words[at + 1]).open("w", encoding="utf-8")  # noqa: SIM115
            words = words[:at]
        errors = io.StringIO()
        with contextlib.redirect_stdout(target), contextlib.redirect_stderr(errors):
            code = main(words[1:])
        told = re.search(r"# exit code (\d)", line)
        assert code == (int(told[1]) if told else 0), (line, errors.getvalue(), out.getvalue())
        if target is not out:
            target.close()
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).rstrip() + "\n"


def steps(page: Path) -> Iterator[tuple[str, str | None]]:
    for match in STEP.finditer(page.read_text(encoding="utf-8")):
        yield match[1], match[2]


def in_a_folder_like_the_checkout(folder: Path) -> None:
    for name in ("docs", "scenarios"):
        (folder / name).symlink_to(ROOT / name)
    os.chdir(folder)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_guide_prints_what_the_page_shows(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    in_a_folder_like_the_checkout(tmp_path)
    found = list(steps(page))
    assert found
    for commands, shown in found:
        out = printed(commands)
        if shown is not None:
            assert out == shown


def test_from_two_benchmark_files_to_a_verdict_and_settings_takes_two_commands_and_five_seconds(tmp_path: Path) -> None:
    """Time of the processor: what else runs on the machine does not count."""
    (first, _), (second, shown) = list(steps(ROOT / "docs" / "importing.md"))[:2]
    assert shown is not None
    assert "Measured: speculation wins" in shown
    assert "--speculative-config" in shown
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    for commands in (first, second):
        (line,) = commands.replace("\\\n", " ").strip().splitlines()
        words = [sys.executable, "-m", "simulator", *shlex.split(line)[1:]]
        subprocess.run(words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime < 5


def test_the_example_benchmarks_say_that_they_are_made_up() -> None:
    files = sorted(EXAMPLES.glob("*.json"))
    assert len(files) == 4
    assert all("not measured" in json.loads(path.read_text())["label"] for path in files)


# ----------------------------------------------------------------------------------------------------------- the examples

MADE_UP = {"step_overhead_s": 0.9e-3, "round_overhead_s": 1.4e-3, "draft_step_overhead_s.default": 0.35e-3}
RATES = (0.72, 0.51, 0.35)
SERVED = """
hardware: h100_sxm
engine: vllm
target: {{model: meta-llama/Llama-3.1-8B-Instruct}}
speculation: {{method: eagle3, drafter: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens: 3}}
acceptance: {{acceptance_rates_per_position: [0.72, 0.51, 0.35]}}
workload:
  arrivals: {{process: closed_loop, users: {users}}}
  lengths: {{prompt: {{distribution: lognormal, median: 420, p90: 900}}, output: {{distribution: lognormal, median: 190, p90: 380}}}}
  num_requests: {requests}
seed: {seed}
"""


def write_examples() -> None:
    """A server that the model makes up: slower rounds than the shipped profile's, another seed, 1 % of chance."""
    for users, requests in ((1, 40), (8, 160)):
        loaded = scenario_of(parse_yaml(SERVED.format(users=users, requests=requests, seed=77), "made up"))
        engine = loaded.deployment.engine
        for name, value in MADE_UP.items():
            outer, _, inner = name.partition(".")
            quantity = getattr(engine, outer)[inner] if inner else getattr(engine, outer)
            engine = with_constant(engine, name, quantity.model_copy(update={"value": value}))
        chance = np.random.default_rng([77, users, *b"bench"]).normal(0, 0.01, 2)
        for shape, noise in zip((None, loaded.shapes[0]), chance, strict=True):
            server = Server.of(loaded, shape)
            server = replace(server, deployment=replace(server.deployment, engine=engine))
            asked = loaded.requests()
            summary = summarise(server.run(asked))
            prompts, outputs = (sum(getattr(r, name) for r in asked) for name in ("prompt_tokens", "output_tokens"))
            stretch = float(np.exp(noise))
            duration = outputs / summary.output_tokens_per_s * stretch
            run = {
                "date": "20260801-101010", "backend": "vllm", "label": "made up by specsim's own model, not measured",
                "model_id": "meta-llama/Llama-3.1-8B-Instruct", "num_prompts": requests, "request_rate": "inf", "burstiness": 1.0,
                "max_concurrency": users, "duration": round(duration, 3), "completed": requests, "failed": 0,
                "total_input_tokens": prompts, "total_output_tokens": outputs, "request_throughput": round(requests / duration, 4),
                "output_throughput": round(outputs / duration, 2), "mean_ttft_ms": round(1e3 * summary.ttft_s.mean * stretch, 2),
                "p99_ttft_ms": round(1e3 * summary.ttft_s.p99 * stretch, 2), "mean_tpot_ms": round(1e3 * summary.tpot_s.mean * stretch, 3),
                "p99_tpot_ms": round(1e3 * summary.tpot_s.p99 * stretch, 3),
            }  # fmt: skip
            run |= {"input_lens": [r.prompt_tokens for r in asked], "output_lens": [r.output_tokens for r in asked]}
            if shape is not None:
                rounds = round(outputs / (1 + sum(RATES)))
                accepted = round(rounds * sum(RATES))
                run |= {
                    "spec_decode_acceptance_rate": round(100 * accepted / (3 * rounds), 2),
                    "spec_decode_acceptance_length": round(1 + accepted / rounds, 3), "spec_decode_num_drafts": rounds,
                    "spec_decode_draft_tokens": 3 * rounds, "spec_decode_accepted_tokens": accepted,
                    "spec_decode_per_position_acceptance_rates": list(RATES),
                }  # fmt: skip
            name = "plain" if shape is None else "speculative"
            (EXAMPLES / f"{name}_{users}_users.json").write_text(json.dumps(run) + "\n", encoding="utf-8")


def write_outputs(page: Path) -> None:
    text = page.read_text(encoding="utf-8")

    def anew(match: re.Match[str]) -> str:
        out = printed(match[1])
        if match[2] is None:
            return match[0]
        at = match.start()
        return match[0][: match.start(2) - at] + out + match[0][match.end(2) - at :]

    page.write_text(STEP.sub(anew, text), encoding="utf-8")


if __name__ == "__main__":
    import tempfile

    if "--examples" in sys.argv:
        write_examples()
    chosen = [page for page in PAGES if not sys.argv[1:] or page.stem in sys.argv[1:]]
    for each in chosen:
        with tempfile.TemporaryDirectory() as folder:
            in_a_folder_like_the_checkout(Path(folder))
            write_outputs(each)
            os.chdir(ROOT)
