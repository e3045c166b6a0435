"""How far first predictions of runs never fitted were off is what the kept predictions say, and users are told."""

from __future__ import annotations

import math

import numpy as np
import pytest

from simulator import predict
from simulator.cost.never_fitted import FEWEST_RUNS, POINTED_OUT, FirstError, first_error
from simulator.questions.unseen_runs import first_scored, later_sets, priced
from simulator.reports.accuracy import GROUPINGS
from simulator.serving_engine import find_engine


def scored_sets():
    kept = [later.scored() for later in later_sets()]
    return [*reversed([found[1] for found in kept if found is not None]), first_scored()]


def test_errors_are_those_of_the_latest_set_with_enough_runs():
    wanted: dict[tuple[str, str], list[float]] = {}
    for scored in scored_sets():
        here: dict[tuple[str, str], list[float]] = {}
        for each in priced(scored):
            key = find_engine(each.case.point.engine or "generic").name, GROUPINGS["method"](each.case)
            here.setdefault(key, []).append(each.error)
        for key, errors in here.items():
            if len(errors) >= FEWEST_RUNS:
                wanted.setdefault(key, errors)
    assert len(wanted) > 5
    for (engine, method), errors in wanted.items():
        found = first_error(engine, method)
        assert found is not None
        assert found.logs == pytest.approx(errors, abs=1e-4)
        assert found.median == pytest.approx(float(np.median(np.abs(errors))), abs=1e-4)
    assert first_error("no such engine", "block") is None


def test_block_drafters_on_mlx_are_named_with_the_size_of_their_error():
    point = {"hardware": "m3_max", "engine": "mlx", "target_model": "Qwen/Qwen3-8B", "num_speculative_tokens": 4, "batch": 1}
    said = [note for note in predict(**point, method="block").warnings if "never fitted" in note]
    assert len(said) == 1
    assert said[0].startswith("drafting by a block drafter in MLX")
    error = first_error(find_engine("mlx").name, "block")
    assert error.median > POINTED_OUT
    assert f"of {len(error.logs)} published runs never fitted" in said[0]


def test_small_errors_are_not_pointed_out_and_the_side_is_said_where_it_is_one():
    good = first_error(find_engine("vllm").name, "eagle3")
    assert good is not None
    assert good.median < POINTED_OUT
    answer = predict(
        hardware="h100_sxm", engine="vllm", target_model="Qwen/Qwen3-8B", method="eagle3", num_speculative_tokens=3, batch=1
    )
    assert not any("never fitted" in note for note in answer.warnings)
    assert FirstError((-0.3, -0.4, -0.2)).sentence.endswith("above 30 %, rounds being dearer")
    assert FirstError((0.3, -0.4, 0.2)).sentence.endswith("above 30 %")
    assert f"a factor of {math.exp(0.9):.1f}" in FirstError((0.8, 0.9, 1.0)).sentence
