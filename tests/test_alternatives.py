"""Several ways to draft for one service: each as it would be alone, on the same requests; names, mistakes and settings."""

from __future__ import annotations

import json

import pytest
import yaml

from simulator import simulate
from simulator.__main__ import main
from simulator.planning import PlanningSpec
from simulator.questions.capacity import CapacityAnswer, capacity
from simulator.questions.comparison import compare
from simulator.reports.best_for import compared_in_words
from simulator.reports.capacity import capacity_sentences, capacity_summary
from simulator.reports.capacity_page import capacity_page
from simulator.reports.exports import exports_of, settings_yaml
from simulator.reports.page import Code
from simulator.scenario import Scenario, scenario_of
from simulator.simulation import speculative_servers
from simulator.spec import SpecError, parse_yaml
from tests.test_capacity import BASE
from tests.test_scenario import run_quietly

NGRAM = {
    "speculation": {"method": "ngram", "num_speculative_tokens": 3},
    "acceptance": {"acceptance_rate": 0.5, "proposal_rate": 0.5},
}
SMALL = {
    "speculation": {
        "method": "draft_model",
        "drafter": "meta-llama/Llama-3.2-1B-Instruct",
        "num_speculative_tokens": 2,
        "policy": {"kind": "goodput_optimal"},
    },
    "acceptance": {"acceptance_rate": 0.7},
}


def scenario(alternatives: list | None = None, **changes) -> Scenario:
    data = {**BASE, "alternatives": alternatives, **changes}
    data = {key: value for key, value in data.items() if value is not None}
    return scenario_of(parse_yaml(yaml.safe_dump(data, sort_keys=False), "s.yaml"))


def test_each_method_is_served_as_it_would_be_alone():
    """The same requests and random streams: a method gains in company what it gains alone."""
    few = {**BASE["workload"], "num_requests": 60}
    together = simulate(scenario([NGRAM, SMALL], workload=few))
    alone = [simulate(scenario(workload=few))]
    alone += [simulate(scenario(workload=few, **way)) for way in (NGRAM, SMALL)]
    expected = [comparison for result in alone for comparison in result.comparisons]
    assert [c.gain for c in together.comparisons] == [c.gain for c in expected]
    assert [c.capacity for c in together.comparisons] == [c.capacity for c in expected]
    assert [c.variant.label for c in together.comparisons] == [
        "EAGLE-3, γ = 3", "n-gram lookup, γ = 3", "draft model Llama-3.2-1B, goodput-optimal, γ ≤ 2",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def answer() -> CapacityAnswer:
    few = {**BASE["workload"], "num_requests": 120}
    asked = scenario([NGRAM, SMALL], workload=few, planning={"demand_per_s": 100.0})
    return capacity(asked, repetitions=1, finalists=1)


def test_capacity_names_the_best_of_all_methods_and_simulates_one_of_each(answer):
    assert [row.server.deployment.method for row in answer.rows] == ["none", "eagle3", "ngram", "draft_model"]
    assert all(row.sustained is not None for row in answer.rows)
    few = {**BASE["workload"], "num_requests": 120}
    for way, row in zip(({}, NGRAM, SMALL), answer.rows[1:], strict=True):
        alone = capacity(scenario(workload=few, **way), PlanningSpec(demand_per_s=100.0), repetitions=1)
        assert alone.rows[1].sustained == row.sustained
        assert alone.rows[1].gain == row.gain
    best = max(answer.rows, key=lambda row: row.rate_per_s)
    assert answer.best is best
    assert best.label in capacity_sentences(answer)[0]


def test_compare_is_about_the_scenarios_own_method_alone():
    """Alternatives do not mix with it, nor count as ends of an acceptance that is open."""
    few = {**BASE["workload"], "num_requests": 60}
    alone = compare(scenario(workload=few), "quantize", ["own", "fp8"])
    beside = compare(scenario([NGRAM, SMALL], workload=few).alone(), "quantize", ["own", "fp8"])
    assert beside.rows == alone.rows


def test_where_acceptance_is_open_the_end_that_carries_less_counts():
    few = {**BASE["workload"], "num_requests": 80}
    asked = scenario([{"speculation": {"method": "ngram", "num_speculative_tokens": 3}}], workload=few)
    found = capacity(asked, repetitions=1, finalists=1)
    low, high = found.rows[2:]
    assert low.rate_per_s < high.rate_per_s
    assert found.drafting in (found.rows[1], low)
    assert sum("acceptance is left open: γ = 3 runs at" in warning for warning in found.warnings) == 1


def test_the_page_and_the_json_hold_settings_of_the_winner_for_every_engine_that_has_them(answer):
    settings = capacity_page(answer).sections[0]
    assert settings.title == "Settings to use"
    texts = [block.text for block in settings.blocks if isinstance(block, Code)]
    top = answer.drafting
    assert top.server.deployment.method == "eagle3"
    assert '"method": "eagle3"' in texts[0]  # vLLM, which was simulated, comes first
    assert any("--speculative-algorithm EAGLE3" in text for text in texts)
    assert any("decoding_type: Eagle3" in text for text in texts)
    assert any("--spec-type draft-eagle3" in text for text in texts)
    assert yaml.safe_load(texts[-1])["speculation"]["num_speculative_tokens"] == 3
    written = capacity_summary(answer)["exports"]["engines"]
    assert [each["engine"] for each in written] == ["vllm", "sglang", "trtllm", "llamacpp"]
    assert written[0]["snippets"][0]["text"] == texts[0]


def test_a_policy_that_no_engine_has_is_written_as_the_table_it_comes_to():
    asked = scenario(None, speculation={**BASE["speculation"], "policy": {"kind": "goodput_optimal"}},
                     acceptance={"acceptance_rate": 0.45})  # fmt: skip
    ((_, server),) = speculative_servers(asked, [])
    (vllm, *_), said = exports_of(server)
    assert "no engine has a goodput-optimal policy" in said
    table = json.loads(vllm.snippets[0].text.split("'")[1])["num_speculative_tokens_per_batch_size"]
    assert [first for first, _, _ in table] == [1, *(last + 1 for _, last, _ in table[:-1])]
    assert table[-1][1] == asked.limits.max_num_seqs
    gammas = [gamma for _, _, gamma in table]
    assert gammas == sorted(gammas, reverse=True)
    assert gammas[0] > gammas[-1]
    for first, last, gamma in table:
        for batch in {first, (first + last) // 2, last}:
            rates = [server.mean_acceptance_length(g) / server.round_s(g, batch, server.mean_context_tokens) for g in range(4)]
            assert rates[gamma] >= 0.965 * max(rates)  # within 3 % of the best, and what rounding a context adds


@pytest.mark.parametrize("way", [
    {}, SMALL, {**NGRAM, "limits": {"preemption": "swap"}}, {"speculation": {**BASE["speculation"], "drafter": None}},
    {"speculation": {"method": "eagle3", "tree": "steps=4,topk=4,draft_tokens=16"}, "acceptance": {"mean_acceptance_length": 2.5}},
    {"speculation": {"method": "layer_skip", "draft_layers": 6, "num_speculative_tokens": 3}},
    {"speculation": {"method": "eagle3", "policy": {"kind": "by_batch", "table": [[1, 8, 4]]}}},
])  # fmt: skip
def test_the_settings_of_a_page_can_be_pasted_into_the_scenario(way):
    asked = scenario(None, **{**way, "limits": {**way.get("limits", {}), "max_num_seqs": 40}})
    _, server = speculative_servers(asked, [])[0]
    pasted = scenario(None, **{**way, **yaml.safe_load(settings_yaml(server))})
    assert pasted.limits == asked.limits
    assert pasted.deployment == asked.deployment
    assert [shape for shape, _ in pasted.variants] == [server.shape]


def test_methods_are_told_apart_by_what_differs():
    built = {"speculation": {"method": "eagle3", "num_speculative_tokens": 2}, "acceptance": {"acceptance_rate": 0.5}}
    names = [name for name, _ in scenario([built, NGRAM, NGRAM]).methods]
    assert names[:2] == ["EAGLE-3 (EAGLE3-LLaMA3.1-Instruct-8B)", "EAGLE-3 (eagle3 head for Llama-3.1-8B)"]
    assert names[2:] == ["n-gram lookup #3", "n-gram lookup #4"]
    wide = {**SMALL, "draft_tensor_parallel_size": 1}
    two = scenario([SMALL, wide], parallel={"tensor_parallel_size": 2})
    assert [name.rpartition(" (")[2] for name, _ in two.methods[1:]] == ["draft TP 2)", "draft TP 1)"]


def test_the_devices_of_an_alternatives_draft_are_its_own():
    few = {**BASE["workload"], "num_requests": 40}
    pair = scenario([{**SMALL, "draft_tensor_parallel_size": size} for size in (1, 2)], workload=few,
                    parallel={"tensor_parallel_size": 2})  # fmt: skip
    _, one, two = simulate(pair).comparisons
    assert one.round.draft_s != two.round.draft_s


@pytest.mark.parametrize(
    ("alternatives", "words"),
    [
        (
            "[{speculation: {method: ngrm, num_speculative_tokens: 2}}]",
            r"s.yaml:2: alternatives\[0\].speculation.method: .*ngram",
        ),
        ("[{speculation: {method: none}}]", r"s.yaml:2: alternatives\[0\].speculation.method: must draft"),
        ("[{speculation: {method: ngram, num_speculative_tokens: 2}, engine: vllm}]", r"alternatives\[0\].engine: unknown key"),
        ("[]", r"alternatives: must have at least 1"),
        (
            "[{speculation: {method: draft_model, drafter: gpt9, num_speculative_tokens: 2}}]",
            r"s.yaml:2: alternatives\[0\].speculation.drafter: ",
        ),
        (
            "[{speculation: {method: ngram, num_speculative_tokens: 2}, draft_tensor_parallel_size: 2}]",
            r"s.yaml:2: alternatives\[0\].draft_tensor_parallel_size: must be left out without a drafter",
        ),
        (
            "[{speculation: {method: ngram, num_speculative_tokens: 2}, acceptance: {profile: llama31_8b_eagle3_mtbench}}]",
            r"s.yaml:2: alternatives\[0\].acceptance.profile: must be a profile measured for method ngram",
        ),
    ],
)
def test_a_mistake_in_an_alternative_has_the_keys_of_the_file_and_its_line(alternatives, words):
    text = f"seed: 1\nalternatives: {alternatives}\n" + yaml.safe_dump({k: v for k, v in BASE.items() if k != "seed"})
    with pytest.raises(SpecError, match=words):
        scenario_of(parse_yaml(text, "s.yaml"))


def test_alternatives_need_a_method_to_be_compared_with():
    with pytest.raises(SpecError, match="alternatives: must stand beside a speculation section"):
        scenario([NGRAM], speculation=None, acceptance=None)


def test_questions_about_one_method_say_which(tmp_path, capsys):
    path = tmp_path / "s.yaml"
    few = {**BASE["workload"], "num_requests": 40}
    path.write_text(yaml.safe_dump({**BASE, "workload": few, "alternatives": [NGRAM]}))
    assert main(["explain", str(path), "--batch", "8"]) == 0
    others = "about EAGLE-3 alone: run, capacity, schedule, sweep and the map of break-even compare the alternatives too"
    assert others in " ".join(capsys.readouterr().out.split())
    assert main(["break-even", str(path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Fastest at ")  # the map of all methods first
    assert "\nEAGLE-3 alone: speculation wins" in said
    assert "Note: about EAGLE-3 alone" not in said


def test_a_run_with_alternatives_writes_a_page_of_the_best(tmp_path):
    path = tmp_path / "s.yaml"
    few = {**BASE["workload"], "num_requests": 40}
    path.write_text(yaml.safe_dump({**BASE, "service_level": None, "workload": few, "alternatives": [NGRAM]}))
    code, shown = run_quietly(["run", str(path), "--out", str(tmp_path / "out")])
    assert code == 0, shown
    page = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "EAGLE-3 γ = 3" in page
    assert "n-gram lookup γ = 3" in page
    assert page.count("EAGLE-3 or n-gram lookup") == 1  # what is compared; every answer is about one of them
    assert "--speculative-config" in page
    written = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert [variant["method"] for variant in written["variants"]] == ["none", "eagle3", "ngram"]
    assert written["settings"]["alternatives"][0]["method"] == "ngram"


def test_a_sweep_predicts_every_method(tmp_path, capsys):
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump({**BASE, "alternatives": [NGRAM, SMALL]}))
    assert main(["sweep", str(path), "--question", "predict", "--set", "batch=4,64", "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    names = ["EAGLE-3", "n-gram lookup", "draft model Llama-3.2-1B"]
    assert [[row["method"] for row in cell["rows"]] for cell in cells] == [names, names]


def test_what_is_compared_is_grouped_by_method():
    several = {**NGRAM, "speculation": {**NGRAM["speculation"], "num_speculative_tokens": [1, 2, 4]}}
    assert compared_in_words(scenario([several, SMALL])) == (
        "EAGLE-3 with γ = 3; n-gram lookup with γ = 1, 2 and 4; draft model Llama-3.2-1B with goodput-optimal, γ ≤ 2"
    )
    assert compared_in_words(scenario(**several)) == "γ = 1, 2 and 4"
