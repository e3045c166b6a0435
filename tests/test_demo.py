"""`demo`: the textbook counts, taken from real passes, and a device's answer to them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

import pytest

from simulator.__main__ import main
from tests.test_scenario import run_quietly


def test_without_torch_one_message_says_how_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    code, shown = run_quietly(["demo"])
    assert code == 2
    assert shown.strip() == "demo: needs torch, not installed: pip install 'specsim[calibrate]'"


class TestWithTorch:
    @pytest.fixture(autouse=True)
    def _needs_torch(self):
        pytest.importorskip("torch", reason="torch is not installed: pip install specsim[calibrate]")

    @pytest.fixture
    def answer(self, capsys):
        assert main(["demo", "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    def test_the_textbook_counts(self, answer):
        plain16, plain20, small, self16, self20, bonus = answer["runs"]
        assert (plain16["target_forwards"], plain20["target_forwards"]) == (16, 20)
        assert small["target_forwards"] == 15
        assert (self16["target_forwards"], self16["tokens_per_target_forward"]) == (4, 4.0)
        assert (self20["target_forwards"], self20["tokens_per_target_forward"]) == (5, 4.0)
        assert (bonus["target_forwards"], bonus["tokens_per_target_forward"]) == (4, 5.0)
        assert small["tokens"] == self16["tokens"] == plain16["tokens"]
        assert self20["tokens"] == bonus["tokens"] == plain20["tokens"]
        assert len(set(plain20["tokens"])) > 4

    def test_counts_are_those_of_another_counter(self, monkeypatch, capsys):
        from calibration.tiny_decoder import TinyDecoder

        seen = Counter()
        forward = TinyDecoder.forward

        def counted(self, *arguments, **options):
            seen[self.embedding.embedding_dim] += 1
            return forward(self, *arguments, **options)

        monkeypatch.setattr(TinyDecoder, "forward", counted)
        assert main(["demo", "--json"]) == 0
        runs = json.loads(capsys.readouterr().out)["runs"]
        itself = [run for run in runs if run["name"] == "self-draft"]
        assert seen[2] == sum(run["draft_forwards"] for run in runs) - sum(run["draft_forwards"] for run in itself)
        assert seen[4] == sum(run["target_forwards"] for run in runs) + sum(run["draft_forwards"] for run in itself)

    def test_other_weights_give_other_counts_and_self_drafting_the_same(self, monkeypatch, capsys):
        from simulator import demo

        monkeypatch.setattr(demo, "SEED", 52)
        assert main(["demo", "--json"]) == 0
        runs = json.loads(capsys.readouterr().out)["runs"]
        assert [run["target_forwards"] for run in runs[3:]] == [4, 5, 4]
        assert runs[2]["target_forwards"] < 15

    def test_the_device_prices_the_counted_tokens_per_round(self, answer, capsys):
        predicted = answer["on_device"]
        for each in predicted:
            run = answer["runs"][each["run"]]
            assert each["mean_acceptance_length"] == pytest.approx(run["tokens_per_target_forward"])
            assert each["speedup"] == pytest.approx(each["mean_acceptance_length"] / each["r"], rel=0.02)
        # A draft pass as dear as the target's: γ of them and a verification cost about γ + 1 plain steps.
        assert predicted[-1]["r"] == pytest.approx(4 + predicted[-1]["verification_cost_ratio"], rel=0.05)
        assert main(["demo"]) == 0
        shown = capsys.readouterr().out
        assert "τ > R" in shown
        assert all(len(line) <= 100 for line in shown.splitlines())

    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            (["--hardware", "h10"], "--hardware: must be a known hardware profile"),
            (["--target", "nope"], "--target: must be a known target model"),
            (["--draft", "nope"], "--draft: must be a known draft model"),
            (["--target", "Qwen3-8B"], "--draft: drafter tokenizer"),
        ],
    )
    def test_wrong_names_are_answered_in_words(self, flags, message):
        code, shown = run_quietly(["demo", *flags])
        assert code == 2
        assert message in shown

    def test_it_takes_seconds_and_loads_no_model_library(self):
        script = (
            "import time, sys; from simulator.__main__ import main; import torch; begin = time.process_time(); "
            "assert main(['demo', '--json']) == 0; assert 'transformers' not in sys.modules; "
            "print(time.process_time() - begin, file=sys.stderr)"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert float(done.stderr.strip().splitlines()[-1]) < 10
