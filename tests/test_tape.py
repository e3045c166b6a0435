"""A tape replays the formulas it was recorded from, on numbers and on arrays, to the same bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import resources
from simulator.cost.deployment import Deployment
from simulator.cost.parallelism import Parallelism
from simulator.cost.tape import Tape, added, larger, root_of_squares, smaller
from simulator.scenario import load_scenario
from simulator.serving_engine import find_engine

positive = st.floats(1e-6, 1e9)


def formula(x: float, y: float) -> float:
    """Everything that a tape knows."""
    total = sum(2.0 * value for value in (x, y)) - y / 3 + 0 * x
    return larger(x * 1 + 5, y) - smaller(total, root_of_squares(x, 4 - y) / (1 + y))


@settings(deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(positive, positive), min_size=1, max_size=8))
def test_replaying_is_computing(points: list[tuple[float, float]]) -> None:
    tape = Tape((1.0, 2.0))
    replay = tape.replay([formula(*tape.inputs), 7.0])  # type: ignore[arg-type]
    expected = [formula(x, y) for x, y in points]
    assert [replay.of_numbers(*point) for point in points] == [(value, 7.0) for value in expected]
    assert replay.first_of_each(points) == expected
    found, constant = replay.of_arrays(*np.array(points).T)
    assert isinstance(constant, float)  # of all points one number, which is not kept for each of them
    assert (found.tolist(), constant) == (expected, 7.0)
    assert replay.first_of_arrays(*np.array(points).T).tolist() == expected


def test_a_number_that_is_not_known_yet_decides_nothing() -> None:
    (x,) = Tape((1.0,)).inputs
    with pytest.raises(TypeError, match="decides nothing"):
        bool(x)
    with pytest.raises(TypeError):
        float(x)  # type: ignore[arg-type]


def variants(name: str) -> list[tuple[Deployment, int]]:
    """One replica of each deployment of a scenario, with the rows that its rounds verify beyond the first."""
    scenario = load_scenario(name)
    chosen = [(scenario.deployed(shape), shape.nodes - 1) for shape in scenario.shapes]
    base = scenario.deployment
    # Every attention regime, graphs and launches, and a pipeline that holds one batch.
    chosen += [(replace(base, engine=find_engine(engine)), 3) for engine in ("hf_eager", "mlx", "sglang_0_4_3", "llamacpp")]
    return [(deployment.replica(), drafted if base.speculative else 0) for deployment, drafted in (*chosen, (base.plain(), 0))]


@pytest.mark.parametrize("name", resources.ids("scenario"))
def test_many_rounds_together_cost_what_each_costs_alone(name: str) -> None:
    """For every shipped device, engine, model and method: by the sums of contexts as by the list of sequences, bit for bit."""
    rng, rounds = np.random.default_rng([3, *b"contexts"]), 20
    for deployment, most_drafted in variants(name):
        pricer = replace(deployment.pricer(0.37), drafts_at=lambda running: 3 if running < 5 else 0)
        if not pricer.sums_suffice:
            ranks = deployment.parallelism.data_parallel_size
            assert ranks * deployment.parallelism.microbatches(9, deployment.engine) > 1
            continue
        for sequences, drafted in sorted({(1, 0), (6, 0), (1, most_drafted), (6, most_drafted)}):
            contexts = rng.integers(1, 9000, (sequences, 1)) + np.sort(rng.integers(0, 300, (sequences, rounds)), axis=1)
            window = pricer.window or 10**9
            sums = contexts.sum(axis=0), np.minimum(contexts, window).sum(axis=0), contexts.max(axis=0)
            alone = [pricer.price([(int(c), drafted) for c in column], (), 0) for column in contexts.T]
            alike = pricer.alike(sequences, drafted)
            assert np.broadcast_to(alike.many(*sums), rounds).tolist() == [cost.seconds for cost in alone]
            by_round = np.array(sums).T.tolist()
            assert [alike.one(*numbers)[0] for numbers in by_round] == [cost.seconds for cost in alone]
            assert alike.each(by_round) == [cost.seconds for cost in alone]
            for index, (term, seconds) in enumerate(alike.terms(*sums)):
                assert np.broadcast_to(seconds, rounds).tolist() == [cost.terms[index][1] for cost in alone]
                assert {cost.terms[index][0] for cost in alone} == {term}
            first = [int(numbers[0]) for numbers in sums]
            own_s, target_s, *_ = alike.one(*first)
            for chunks in (((700, 0), (100, 512)), ((700, 0),), ((5, 512),), ((9000, 3),)):
                mixed = pricer.price([(int(c), drafted) for c in contexts[:, 0]], chunks, 1)
                for _ in range(6):  # by the formulas at first, then by a replay
                    beside = alike.prompts(*first, target_s, chunks, 1)
                    assert mixed.terms[len(alone[0].terms) :] == tuple(beside)
                    assert mixed.seconds == added([own_s, *(s for _, s in beside)])


def test_sums_do_not_tell_the_fullest_rank_or_microbatch() -> None:
    base = load_scenario("deepseek_r1_two_nodes").deployment
    pipeline = replace(load_scenario("llama70b_draft8b_tp4").deployment, parallelism=Parallelism(pipeline_parallel_size=2))
    assert not base.pricer().sums_suffice
    assert not pipeline.pricer().sums_suffice
    assert replace(pipeline, engine=find_engine("llamacpp")).pricer().sums_suffice
