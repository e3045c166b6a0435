"""fit-engine: constants come back from benchmarks that the model made, left-out published runs come closer, and runs that say
nothing of an engine are refused."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.__main__ import main
from simulator.cost.uncertainty import with_constant
from simulator.interchange import vllm_bench
from simulator.interchange.observed import judged
from simulator.questions.measured_point import measured_point
from simulator.questions.server_fit import EngineOfServer, fit_engine
from simulator.scenario import Scenario, scenario_of
from simulator.serving_engine import ServingEngine, find_engine
from simulator.simulation import Server
from simulator.spec import SpecError, parse_yaml

RATES = (0.7, 0.5, 0.36, 0.27, 0.2)
TRUE = {"step_overhead_s": 1.5e-3, "round_overhead_s": 2.5e-3, "draft_step_overhead_s.default": 0.45e-3}
TEXT = """
hardware: h100_sxm
engine: vllm
target: {model: meta-llama/Llama-3.1-8B-Instruct}
speculation: {method: eagle3, drafter: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens: 3}
workload:
  arrivals: {process: closed_loop, users: 8}
  lengths: {prompt: 300, output: 150}
  num_requests: 80
"""


@cache
def scenario(text: str = TEXT) -> Scenario:
    return scenario_of(parse_yaml(text, "server.yaml"))


def bench(users: int, gamma: int = 0, tpot_ms: float | None = 1.0, **changes: Any) -> dict[str, Any]:
    """One run of `vllm bench serve`, of 150-token answers; with acceptance where it drafts."""
    completed = 10 * users
    run: dict[str, Any] = {
        "date": "20260801-101010", "model_id": "meta-llama/Llama-3.1-8B-Instruct", "request_rate": "inf", "max_concurrency": users,
        "duration": 30.0, "completed": completed, "failed": 0, "total_input_tokens": 300 * completed,
        "total_output_tokens": 150 * completed, "mean_ttft_ms": 30.0, "mean_tpot_ms": tpot_ms,
    }  # fmt: skip
    if gamma:
        rates = RATES[:gamma]
        rounds, accepted = 100_000, round(100_000 * sum(rates))
        run |= {
            "spec_decode_num_drafts": rounds, "spec_decode_draft_tokens": gamma * rounds, "spec_decode_accepted_tokens": accepted,
            "spec_decode_acceptance_length": 1 + accepted / rounds, "spec_decode_per_position_acceptance_rates": list(rates),
        }  # fmt: skip
    return run | changes


def engine(constants: dict[str, float], base: str = "vllm") -> ServingEngine:
    changed = find_engine(base)
    for name, value in constants.items():
        outer, _, inner = name.partition(".")
        quantity = getattr(changed, outer)[inner] if inner else getattr(changed, outer)
        changed = with_constant(changed, name, quantity.model_copy(update={"value": value}))
    return changed


def made_up(users: int, gamma: int, noise: float = 0.0, constants: dict[str, float] = TRUE) -> dict[str, Any]:
    """A benchmark of a server that the model makes up: its time per token under other constants, and chance."""
    point = measured_point(vllm_bench.run(bench(users, gamma), "made up"), scenario())
    seconds = point.anchored(engine(constants)).time_per_token_s
    return bench(users, gamma, 1000 * seconds * math.exp(noise))


POINTS = ((1, 0), (1, 1), (1, 5), (8, 0), (8, 1), (8, 5))


@cache
def recovered() -> EngineOfServer:
    noise = np.random.default_rng([1, *b"bench"]).normal(0, 0.01, len(POINTS))
    runs = [
        vllm_bench.run(made_up(users, gamma, chance), f"{users} users, γ = {gamma}")
        for (users, gamma), chance in zip(POINTS, noise, strict=True)
    ]
    return fit_engine(runs, scenario())


def test_constants_come_back_from_benchmarks_made_with_them() -> None:
    found = {constant.name: constant.quantity for constant in recovered().fitted}
    assert {"step_overhead_s", "draft_step_overhead_s.default"} <= found.keys() <= set(TRUE)
    for name, quantity in found.items():
        assert abs(math.log(quantity.value / TRUE[name])) < 2.5 * quantity.doubt, name


def test_what_rounds_add_together_is_known_better_than_its_parts() -> None:
    def added_s(changed: ServingEngine) -> float:
        each = changed.draft_step_overhead_s["default"].value
        return changed.round_overhead_s.value + changed.feature_overhead_s.value + 5 * each

    assert added_s(recovered().engine) == pytest.approx(added_s(engine(TRUE)), rel=0.1)


def test_a_run_left_out_is_predicted_as_well_as_the_others() -> None:
    points = recovered().points
    base = [abs(point.error(point.base_s)) for point in points]
    left_out = [abs(point.error(point.left_out_s)) for point in points]
    assert np.mean(left_out) < 0.08 < 0.2 < np.mean(base)
    assert max(left_out) < 0.1


def test_constants_that_were_fitted_together_say_how_they_depend_on_each_other() -> None:
    """What a round adds and what each of its draft passes adds are told by few runs: more of one is less of the other."""
    engine, names = recovered().engine, {constant.name for constant in recovered().fitted}
    together = {(first, second): r for first, others in engine.correlations.items() for second, r in others.items()}
    found = {frozenset(pair): r for pair, r in together.items() if set(pair) <= names}
    assert len(found) == len(names) * (len(names) - 1) // 2
    if {"round_overhead_s", "draft_step_overhead_s.default"} <= names:
        assert found[frozenset(("round_overhead_s", "draft_step_overhead_s.default"))] < -0.3
    assert not any(len(set(pair) & names) == 1 for pair in together)


def test_constants_of_other_methods_and_layers_have_no_part() -> None:
    names = {constant.name for constant in recovered().constants}
    assert not names & {"state_rollback_s", "tree_round_overhead_s", "draft_step_overhead_s.block", "ngram_lookup_s"}
    assert {"request_overhead_s", "rejection_passes"} <= names


def test_a_slow_device_is_not_taken_for_a_slow_engine() -> None:
    """Everything 12 % longer moves plain steps and rounds alike: little of it becomes the engine's, and little of the ratio."""
    runs = [
        vllm_bench.run(made_up(users, gamma, math.log(1.12), {}), f"{users} {gamma}")
        for users, gamma in ((1, 0), (1, 3), (8, 0), (8, 3))
    ]
    points = [measured_point(run, scenario()) for run in runs]
    try:
        answer = fit_engine(runs, scenario()).engine
    except SpecError:
        answer = find_engine("vllm")
    before, after = ([point.anchored(each).time_per_token_s for point in points] for each in (find_engine("vllm"), answer))
    assert after[0] / after[1] == pytest.approx(before[0] / before[1], rel=0.06)


def test_one_gamma_cannot_tell_a_round_from_its_draft_passes() -> None:
    runs = [vllm_bench.run(made_up(users, gamma), f"{users} {gamma}") for users, gamma in ((1, 0), (1, 3), (8, 0), (8, 3))]
    answer = fit_engine(runs, scenario())
    assert any("γ = 3" in note and "cannot be told apart" in note for note in answer.notes)
    kept = {constant.name for constant in answer.constants if constant.fate == "not told apart"}
    assert kept & {"round_overhead_s", "draft_step_overhead_s.default"}


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ([bench(1), bench(8)], "with speculation too"),
        ([bench(1, 3), bench(8, 3)], "without speculation too"),
        ([bench(1, 0, None), bench(1, 3)], "mean time per output token"),
    ],
)
def test_runs_that_say_nothing_of_an_engine_are_refused(runs: Sequence[dict[str, Any]], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        fit_engine([vllm_bench.run(each, f"run {place}") for place, each in enumerate(runs)], scenario())


def test_where_steps_are_long_no_constant_of_an_engine_is_told() -> None:
    """On a CPU a step takes a fifth of a second, and tenths of milliseconds of the host are lost in it."""
    runs = [vllm_bench.run(bench(1, gamma, tpot), f"{gamma}") for gamma, tpot in ((0, 150.0), (3, 90.0))]
    with pytest.raises(SpecError, match="keep the base engine, or measure at a smaller batch"):
        fit_engine(runs, scenario(TEXT.replace("h100_sxm", "epyc_7763")))


# ------------------------------------------------------------------------------------------------------- published runs

PUBLISHED = Path(__file__).resolve().parents[2] / "shared" / "data" / "published_results.csv"
DRAFTERS = {"eagle3": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "eagle": "yuhuili/EAGLE-LLaMA3.1-Instruct-8B"}


@pytest.mark.skipif(not PUBLISHED.is_file(), reason="the table of published results is not here")
@pytest.mark.parametrize("method", DRAFTERS)
def test_a_published_run_left_out_comes_closer_than_by_an_engine_that_is_not_known(method: str) -> None:
    """One server of 2025 on an H100: time per token without drafts and with γ = 2 to 7, one user."""
    with PUBLISHED.open(encoding="utf-8") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if row["id"].startswith("VK-") and row["draft_model"] == DRAFTERS[method] and row["perf_unit"] == "TPOT ms"
        ]
    assert len(rows) == 6
    runs = [vllm_bench.run(bench(1, 0, float(rows[0]["baseline_value"])), "plain")]
    for row in rows:
        gamma, tau, rounds = int(row["chain_k"]), float(row["accept_value"]), 10_000
        counted = {
            "spec_decode_num_drafts": rounds, "spec_decode_draft_tokens": gamma * rounds,
            "spec_decode_accepted_tokens": round((tau - 1) * rounds), "spec_decode_acceptance_length": tau,
        }  # fmt: skip
        runs.append(judged(vllm_bench.run(bench(1, 0, float(row["spec_value"]), **counted), row["id"]), gamma))
    text = TEXT.replace("engine: vllm", "engine: generic").replace("eagle3", method).replace(DRAFTERS["eagle3"], DRAFTERS[method])
    answer = fit_engine(runs, scenario(text))
    rounds_only = [point for point in answer.points if point.point.speculative]
    base, left_out = (
        np.array([abs(point.error(getattr(point, which))) for point in rounds_only]) for which in ("base_s", "left_out_s")
    )
    assert left_out.mean() < 0.035  # as far as runs of one configuration scatter
    if method == "eagle3":  # whose rounds the generic engine takes for a quarter shorter; EAGLE's it has right
        assert left_out.mean() < 0.25 * base.mean()


# ------------------------------------------------------------------------------------------------------------ the command


def files(folder: Path) -> list[str]:
    names = []
    for users, gamma in ((1, 0), (1, 3), (8, 0), (8, 3)):
        path = folder / f"bench_{users}_{gamma}.json"
        path.write_text(json.dumps(made_up(users, gamma)))
        names.append(str(path))
    (folder / "server.yaml").write_text(TEXT)
    return names


def test_the_written_profile_is_an_engine_that_agrees_with_the_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names, out = files(tmp_path), tmp_path / "mine" / "vllm_mine.yaml"
    assert main(["fit-engine", *names, "--scenario", str(tmp_path / "server.yaml"), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "cannot be told apart" in printed.replace("\n", " ")
    fitted = find_engine(str(out))
    assert fitted.draft_step_overhead_s["default"].source == "fitted" or fitted.round_overhead_s.value > 1e-3
    assert fitted.measured.setups == {"eagle3": {"9.0": ("bf16",)}}
    assert fitted.measured.methods == ("eagle3",)
    assert sum("sha256:" in source for source in fitted.sources) == 4
    assert any("mean_tpot_ms" in source and "20260801" in source for source in fitted.sources)
    unchanged = find_engine("vllm").model_dump(include={"graphs", "attention", "block_tokens", "rejection_passes"})
    assert fitted.model_dump(include=set(unchanged)) == unchanged
    (tmp_path / "mine.yaml").write_text(TEXT.replace("engine: vllm", f"engine: {out}"))
    assert main(["check-server", names[2], names[3], "--scenario", str(tmp_path / "mine.yaml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"].startswith("the model agrees")
    assert main(["check-server", names[2], names[3], "--scenario", str(tmp_path / "server.yaml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"].startswith("the model is off")


def test_flags_say_what_a_scenario_would(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = files(tmp_path)
    assert main(["fit-engine", *names, "--scenario", str(tmp_path / "server.yaml"), "--json"]) == 0
    by_scenario = json.loads(capsys.readouterr().out)
    flags = ["--hardware", "h100_sxm", "--engine", "vllm", "--method", "eagle3", "--drafter", DRAFTERS["eagle3"]]
    assert main(["fit-engine", *names, *flags, "--json"]) == 0
    by_flags = json.loads(capsys.readouterr().out)
    fates = [{constant["name"]: constant["fate"] for constant in found["constants"]} for found in (by_scenario, by_flags)]
    assert fates[0] == fates[1]
    values = [[constant["value"] for constant in found["constants"]] for found in (by_scenario, by_flags)]
    assert values[0] == pytest.approx(values[1], rel=0.1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--hardware", "h100_sxm"], "--engine"),
        (["--scenario", "server.yaml", "--hardware", "h100_sxm"], "must be left out with --scenario"),
        (["--scenario", "server.yaml", "--out", "mine.txt"], "ends in .yaml"),
        (["--scenario", "server.yaml", "--out", "no/such/mine.yaml"], "must be in a folder that exists"),
        (["--scenario", "server.yaml", "--out", "server.yaml"], "others are not written over"),
    ],
)
def test_wrong_flags_are_one_clear_message(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = files(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["fit-engine", *names, *words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "mine.txt").exists()


def test_the_price_used_between_simulations_follows_them() -> None:
    """Scaled by the price of a round from one simulation, the answer stays within two per cent of simulating anew."""
    for users, gamma in ((1, 3), (16, 3), (16, 0)):
        point = measured_point(vllm_bench.run(bench(users, gamma), "run"), scenario())
        anchor, slow = point.anchored(find_engine("vllm")), engine(TRUE)
        assert point.predicted_s(slow, anchor) == pytest.approx(point.anchored(slow).time_per_token_s, rel=0.02)


def test_a_point_is_simulated_as_a_server_of_the_scenario_would_be() -> None:
    point = measured_point(vllm_bench.run(bench(8, 3), "run"), scenario())
    server = Server.of(replace(point.scenario), point.scenario.shapes[0])
    assert server.deployment.engine == find_engine("vllm")
    assert point.gamma == 3
