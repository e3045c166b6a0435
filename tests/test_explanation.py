"""explain: the terms sum, the numbers are those of predict, and a change said to flip the sign does."""

from __future__ import annotations

import json
import math

import pytest

from simulator import explain, load_scenario, predict
from simulator.__main__ import main
from simulator.prediction import OperatingPoint
from simulator.questions.explanation import explain_point
from simulator.reports.explanation import explanation_sentences
from simulator.spec import Document, check
from tests.test_scenario import run_quietly
from tests.test_simulation import scenario, workload

POINT = {
    "hardware": "h100_sxm", "engine": "vllm", "target": "meta-llama/Llama-3.1-8B-Instruct", "method": "eagle3",
    "num_speculative_tokens": 3, "batch": 4, "context_len": 900, "acceptance_rate": 0.7, "precision": "bf16", "tensor_parallel_size": 1,
}  # fmt: skip


def flags(**changes) -> list[str]:
    given = {**POINT, **changes}
    return [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def test_terms_sum_to_step_and_round_and_shares_to_one():
    answer = explain(scenario(), batch=8, context=700)
    assert math.fsum(row.plain_s for row in answer.rows) == pytest.approx(answer.cost.plain_step_s)
    assert math.fsum(row.round_s for row in answer.rows) == pytest.approx(answer.cost.round_s)
    assert math.fsum(row.share for row in answer.rows) == pytest.approx(1)


def test_from_flags_it_says_what_predict_says(capsys):
    assert main(["explain", *flags(), "--json"]) == 0
    explained = json.loads(capsys.readouterr().out)
    predicted = predict(**POINT)
    for name in ("r", "r_low", "r_high", "speedup", "break_even_acceptance_rate", "textbook_speedup", "verdict"):
        assert (
            explained[name] == pytest.approx(getattr(predicted, name), rel=1e-5)
            if name != "verdict"
            else explained[name] == predicted.verdict
        )
    assert explained["causes"][0]["plain_steps"] >= explained["causes"][1]["plain_steps"]
    assert abs(explained["uncertain"][0]["moves_r"]) >= abs(explained["uncertain"][-1]["moves_r"])


def test_a_change_said_to_flip_the_sign_does():
    loaded = load_scenario("long_context_4090")
    answer = explain(loaded)
    assert answer.verdict == "lose"
    changes = {flip.change: flip.speedup for flip in answer.flips}
    assert any("splits the KV cache" in change for change in changes)
    assert all(speedup > 1 for speedup in changes.values())
    context = next(int(change.split()[1].replace(",", "")) for change in changes if change.startswith("context"))
    assert explain(loaded, context=context).speedup.value > 1


def test_the_scenarios_own_mean_batch_is_that_of_its_plain_run():
    closed = scenario(workload=workload("closed_loop", users=6, requests=30))
    assert explain(closed).batch in (5, 6)
    assert explain(scenario(workload=workload("closed_loop", users=1, requests=6))).batch == 1
    spread = scenario(workload=workload("closed_loop", users=2, requests=6), parallel={"data_parallel_size": 8})
    assert explain(spread).batch == 2


def test_without_acceptance_it_names_the_break_even_and_no_verdict(capsys):
    answer = explain(scenario(acceptance=None), batch=1)
    assert (answer.verdict, answer.speedup, answer.flips) == ("", None, ())
    arguments = flags()
    at = arguments.index("--acceptance-rate")
    assert main(["explain", *arguments[:at], *arguments[at + 2 :]]) == 0
    assert "speculation wins where" in capsys.readouterr().out.replace("\n", " ")


def test_what_would_flip_the_sign_can_be(tmp_path):
    """No context beyond the positions of the model, no γ beyond the heads, no batch that the memory does not hold."""
    shape = {"n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "n_positions": 1024, "model_type": "gpt2"}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    point = {"hardware": "a10", "target_model": str(tmp_path), "engine": "vllm", "method": "medusa", "tensor_parallel_size": 1}
    for rate in (0.1, 0.5):
        asked = {**point, "num_speculative_tokens": 2, "batch": 1, "context_len": 512, "acceptance_rate": rate}
        answer = explain_point(check(OperatingPoint, Document("", asked)), Document("", asked))
        for flip in answer.flips:
            words = flip.change.replace(",", "").replace("= ", "").split()
            assert words[0] not in ("context", "γ") or int(words[1]) <= {"context": 1024, "γ": 2}[words[0]]
    asked |= {"batch": 1_000_000}
    crowded = explain_point(check(OperatingPoint, Document("", asked)), Document("", asked))
    assert crowded.verdict == ""
    assert explanation_sentences(crowded)[0].startswith("Cannot be served so")
    assert any("no verdict: the KV cache" in warning for warning in crowded.warnings)


def test_a_round_that_no_acceptance_pays_for_is_said_to_lose_always(capsys):
    arguments = flags(method="draft_model", draft="meta-llama/Llama-3.1-8B", engine="generic", num_speculative_tokens=4)
    at = arguments.index("--acceptance-rate")
    assert main(["explain", *arguments[:at], *arguments[at + 2 :]]) == 0
    assert "speculation cannot win: a round yields at most" in " ".join(capsys.readouterr().out.split())


def test_every_table_fits_a_terminal_and_trees_are_explained(capsys):
    assert main(["explain", "quickstart", "--gamma", "5"]) == 0
    assert all(len(line) <= 100 for line in capsys.readouterr().out.splitlines())
    tree = flags(tree_shape="steps=5,topk=4,draft_tokens=16", mean_acceptance_length=3.0, num_speculative_tokens=5)
    at = tree.index("--acceptance-rate")
    assert main(["explain", *tree[:at], *tree[at + 2 :], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["break_even_acceptance_rate"] is None


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["explain", "quickstart", "--hardware", "h100_sxm"], "--hardware: must be left out with a scenario"),
        (["explain", "quickstart", "--batch", "0"], "--batch: must be at least 1"),
        (["explain", "quickstart", "--context-len", "1000000"], "--context-len: must be at most 131072, the positions of"),
        (["explain", "gpt_oss_block", "--gamma", "64"], "--gamma: must be at most 16, the block of drafter"),
        (["explain"], "--hardware: must be given"),
        (["explain", *flags(hardware="h100_smx")], "did you mean h100_sxm"),
        (["explain", *flags(method="layer_skip")], "draft_layers"),
    ],
)
def test_mistakes_are_one_clear_message(arguments, expected):
    code, shown = run_quietly(arguments)
    assert code == 2
    assert expected in shown


def test_assumed_coefficients_say_as_on_which_device(capsys):
    """The H200's 8-bit kernels were not measured: those of the H100 stand in, and the text says so."""
    point = ["--hardware", "H200", "--engine", "sglang", "--target", "Qwen/Qwen3-8B", "--precision", "fp8", "--method", "eagle3"]
    assert main(["explain", *point, "--num-speculative-tokens", "3", "--batch", "8", "--context-len", "1000"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "gemm_overhead_s_by_type.fp8" in said.split("Assumed:")[1]
    assert "as on the H100 SXM" in said
