"""Step-cost tables: what is exported is what is imported, and both are the cost model's own steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator import load_scenario
from simulator.__main__ import main
from simulator.interchange import step_costs
from simulator.interchange.detection import read_files
from simulator.interchange.step_costs import StepCosts
from simulator.questions.step_costs import table_steps
from simulator.spec import SpecError

GOOD = {
    "bias_seconds": 0.004,
    "bs_probes": [1, 8],
    "alpha_seconds": [0.0, 0.002],
    "m_probes": [1, 32],
    "theta_seconds": [0.0, 0.003],
}


def test_the_table_is_the_cost_models_step_where_parts_add_up() -> None:
    scenario = load_scenario("quickstart")
    found = table_steps(scenario, 3)
    assert found.worst_error < 0.03
    pricer = scenario.deployment.replica().pricer()
    for batch in (1, 3, 20, 100):
        priced = pricer.round(3, batch, round(found.context_tokens))
        assert found.table.step_s(batch, 4 * batch) == pytest.approx(priced.round_s, rel=0.04)
        assert found.table.step_s(batch, batch) < found.table.step_s(batch, 4 * batch)


def test_serial_walks_do_not_add_up_and_the_export_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert table_steps(load_scenario("long_context_4090"), 3).worst_error > 0.2
    assert main(["export", "long_context_4090", "--step-costs"]) == 0
    assert "do not split that way" in capsys.readouterr().err.replace("\n", " ")


def test_what_is_exported_is_imported_again_with_the_same_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "quickstart", "--gamma", "3", "--step-costs"]) == 0
    path = tmp_path / "table.json"
    path.write_text(capsys.readouterr().out)
    (table,) = read_files([path]).step_costs
    own = table_steps(load_scenario("quickstart"), 3).table
    assert (table.sequences, table.rows) == (own.sequences, own.rows)
    for batch, rows in ((1, 1), (5, 9), (64, 256), (5000, 10**6)):
        assert table.step_s(batch, rows) == pytest.approx(own.step_s(batch, rows), rel=1e-5)
    assert main(["import", str(path), "--out", str(tmp_path / "out")]) == 0
    assert "v of 1 each" in capsys.readouterr().out
    assert (tmp_path / "out" / "step_costs.json").read_text() == path.read_text()


def test_a_longer_context_makes_every_step_longer(capsys: pytest.CaptureFixture[str]) -> None:
    tables = []
    for context in ("500", "8000"):
        assert main(["export", "quickstart", "--gamma", "3", "--step-costs", "--context-len", context]) == 0
        values = json.loads(capsys.readouterr().out)
        tables.append(StepCosts(values["bias_seconds"], *(tuple(values[key]) for key in list(values)[1:])))
    assert tables[1].step_s(32, 128) > 1.1 * tables[0].step_s(32, 128)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bias_seconds": float("nan")}, "bias_seconds: must be a finite number"),
        ({"bias_seconds": "4 ms"}, "bias_seconds"),
        ({"bs_probes": [8, 1]}, "rising"),
        ({"bs_probes": []}, "bs_probes"),
        ({"bs_probes": [1, True]}, "bs_probes"),
        ({"theta_seconds": [0.1]}, "as long as m_probes"),
        ({"theta_seconds": [0.1, -1]}, "theta_seconds"),
        ({"alpha_seconds": None}, "alpha_seconds"),
        ({"m_probes": [1, 10**30]}, "m_probes"),
    ],
)
def test_a_bad_table_is_one_message(change: dict[str, object], words: str, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps({**GOOD, **change}))
    with pytest.raises(SpecError, match=words):
        read_files([path])


def test_flags_that_do_not_go_together_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "quickstart", "--gamma", "3", "--context-len", "500"]) == 2
    assert "goes with --step-costs only" in capsys.readouterr().err
    assert main(["export", "quickstart", "--step-costs", "--engine", "vllm"]) == 2
    assert "the table is SGLang's" in capsys.readouterr().err


def test_the_table_is_found_by_its_keys(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(GOOD))
    (table,) = step_costs.read(path)
    assert table.step_s(8, 32) == pytest.approx(0.009)
    assert read_files([path], "step-costs").step_costs == (table,)
