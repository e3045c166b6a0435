"""Acceptance: exact replay, laws against their own paths, profiles against their sources, and refused input."""

from __future__ import annotations

import csv
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls
from scipy.special import betaincinv

from simulator import resources
from simulator.acceptance import (
    AcceptanceCounters,
    AcceptanceLaw,
    AcceptancePath,
    AcceptanceSpec,
    BetaAcceptance,
    ContextAcceptance,
    IndependentAcceptance,
    MarkovAcceptance,
    MixtureAcceptance,
    PerPositionAcceptance,
    ResolvedAcceptance,
    Texts,
    TraceAcceptance,
    TraceFile,
    band_for,
    conditional_from_survival,
    equal_mixture,
    load_trace,
    read_profile,
    resolve_acceptance,
    shipped_profiles,
    spread_over_requests,
    survival_from_conditional,
    survival_from_curve,
    write_trace_file,
)
from simulator.acceptance.beta import beta_quantiles
from simulator.acceptance.rates import Rates, decayed, extended, held, nearest_concave
from simulator.acceptance.streams import UniformStream
from simulator.spec import SpecError, check, parse_yaml

SHARED = Path(__file__).parents[2] / "shared"
quick = settings(derandomize=True, deadline=None, max_examples=50)

Prefix = tuple[int, ...]
Distribution = tuple[Fraction, ...]
Law = dict[tuple[Prefix, Prefix], Fraction]  # (emitted tokens, accepted per round) → probability


# ------------------------------------------------------------------------------- replay has the law of rejection sampling


class ToyModel:
    """A next-token distribution for every prefix, drawn once; some tokens have probability 0."""

    def __init__(self, vocabulary: int, seed: int, greedy: bool = False):
        self.vocabulary, self.greedy = vocabulary, greedy
        self.generator, self.known = np.random.default_rng(seed), dict[Prefix, Distribution]()

    def after(self, prefix: Prefix) -> Distribution:
        if prefix not in self.known:
            weights = [int(weight) for weight in self.generator.integers(0, 5, self.vocabulary)]
            weights[int(self.generator.integers(self.vocabulary))] += 1
            if self.greedy:
                best = weights.index(max(weights))
                weights = [int(token == best) for token in range(self.vocabulary)]
            self.known[prefix] = tuple(Fraction(weight, sum(weights)) for weight in weights)
        return self.known[prefix]


def rejection_sampling(target: ToyModel, draft: ToyModel, tokens: int, gamma: int) -> Law:
    """Every way a real run can go: draft, accept with min(1, p/q), residual token on rejection, bonus token after the last."""
    law: Law = defaultdict(Fraction)

    def run(prefix: Prefix, accepted: Prefix, weight: Fraction) -> None:
        if len(prefix) == tokens:
            law[prefix, accepted] += weight
            return
        drafted = min(gamma, tokens - len(prefix) - 1)
        verify(prefix, 0, drafted, accepted, weight)

    def verify(prefix: Prefix, count: int, drafted: int, accepted: Prefix, weight: Fraction) -> None:
        p = target.after(prefix)
        if count == drafted:
            for token, probability in enumerate(p):
                if probability:
                    run((*prefix, token), (*accepted, count), weight * probability)
            return
        q = draft.after(prefix)
        residual = [max(Fraction(0), p_token - q_token) for p_token, q_token in zip(p, q, strict=True)]
        for token, proposed in enumerate(q):
            if not proposed:
                continue
            keep = min(Fraction(1), p[token] / proposed)
            if keep:
                verify((*prefix, token), count + 1, drafted, accepted, weight * proposed * keep)
            for other, left in enumerate(residual):
                if keep < 1 and left:
                    run((*prefix, other), (*accepted, count), weight * proposed * (1 - keep) * left / sum(residual))

    run((), (), Fraction(1))
    return dict(law)


def replayed(target: ToyModel, draft: ToyModel, tokens: int, gamma: int) -> Law:
    """Target text first; then position t is accepted with a_t = min(1, q_t(x_t) / p_t(x_t)), independently."""
    law: Law = defaultdict(Fraction)
    for text in itertools.product(range(target.vocabulary), repeat=tokens):
        chances = [(target.after(text[:t])[text[t]], draft.after(text[:t])[text[t]]) for t in range(tokens)]
        weight = math.prod((p for p, _ in chances), start=Fraction(1))
        if weight:
            agreement = [min(Fraction(1), q / p) for p, q in chances]
            for accepted, chance in rounds_of(agreement, 0, gamma):
                law[text, accepted] += weight * chance
    return {outcome: weight for outcome, weight in law.items() if weight}


def rounds_of(agreement: list[Fraction], start: int, gamma: int) -> Iterator[tuple[Prefix, Fraction]]:
    """(accepted per round, probability) of all ways to replay one text from `start`."""
    if start == len(agreement):
        yield (), Fraction(1)
        return
    drafted = min(gamma, len(agreement) - start - 1)
    for count in range(drafted + 1):
        chance = math.prod(agreement[start : start + count], start=Fraction(1))
        chance *= 1 if count == drafted else 1 - agreement[start + count]
        for rest, weight in rounds_of(agreement, start + count + 1, gamma) if chance else ():
            yield (count, *rest), chance * weight


@pytest.mark.parametrize("gamma", [1, 2, 3])
@pytest.mark.parametrize(("vocabulary", "seed"), [(3, 1), (3, 2), (4, 3)])
def test_replay_has_the_law_of_rejection_sampling_exactly(vocabulary: int, seed: int, gamma: int) -> None:
    target, draft = ToyModel(vocabulary, seed), ToyModel(vocabulary, seed + 100)
    real = rejection_sampling(target, draft, 4, gamma)
    assert sum(real.values()) == 1
    assert len({accepted for _, accepted in real}) > 1
    assert replayed(target, draft, 4, gamma) == real


@pytest.mark.parametrize("gamma", [1, 2, 3])
@pytest.mark.parametrize(("greedy_target", "greedy_draft"), [(True, True), (False, True), (True, False)])
def test_replay_has_the_law_of_rejection_sampling_for_point_masses(greedy_target: bool, greedy_draft: bool, gamma: int) -> None:
    target, draft = ToyModel(3, 11, greedy_target), ToyModel(3, 12, greedy_draft)
    real = rejection_sampling(target, draft, 4, gamma)
    assert replayed(target, draft, 4, gamma) == real
    if greedy_target and greedy_draft:
        assert list(real.values()) == [1]


# ---------------------------------------------------------------------------------------------------- replay of trace files


def test_expected_rates_of_a_trace_are_those_of_all_ways_to_replay_it() -> None:
    agreement = [[Fraction(1, 3), Fraction(1), Fraction(1, 2), Fraction(0), Fraction(3, 4)], [Fraction(2, 3), Fraction(1, 4)]]
    trace = TraceAcceptance(np.array([float(a) for prompt in agreement for a in prompt]), np.array([5, 2]))
    for gamma in (1, 2, 3):
        ways = [list(rounds_of(prompt, 1, gamma)) for prompt in agreement]  # the prefill emits the first token
        rounds = sum(weight * len(accepted) for way in ways for accepted, weight in way)
        accepted = sum(weight * sum(counts) for way in ways for counts, weight in way)
        assert rounds + accepted == 5  # emitted = accepted + one per round
        assert trace.mean_acceptance_length(gamma) == pytest.approx(float(5 / rounds))


def test_a_traces_own_length_is_that_of_serving_it() -> None:
    """A prompt whose text is easy at its first token only: serving never starts a round there, so neither does the law."""
    trace = TraceAcceptance(np.array([1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0]), np.array([8]))
    for gamma in (1, 2, 3):
        path, position, rounds = trace.path(0, 8, seed=1), 1, 0
        while position < 8:
            position += min(path.accepted(position, min(gamma, 7 - position)), 7 - position) + 1
            rounds += 1
        assert trace.mean_acceptance_length(gamma) == pytest.approx(7 / rounds)
    one_token = TraceAcceptance(np.array([1.0]), np.array([1]))
    assert one_token.mean_acceptance_length(3) == 1.0


def test_greedy_trace_is_replayed_round_by_round_by_its_leading_agreements() -> None:
    agreement = np.random.default_rng(3).integers(0, 2, 200).astype(float)
    trace = TraceAcceptance(agreement, np.array([200]))
    for gamma in (1, 2, 4, 8):
        path, position = trace.path(0, 200, seed=5), 0
        while position < 200 - gamma:
            expected = next((n for n in range(gamma) if agreement[position + n] == 0), gamma)
            assert path.accepted(position, gamma) == expected
            position += expected + 1


def test_longer_outputs_than_the_trace_go_on_with_further_prompts() -> None:
    trace = TraceAcceptance(np.array([1.0, 1.0, 0.0]), np.array([2, 1]))
    short, long = trace.path(4, 3, seed=1), trace.path(4, 500, seed=1)
    assert [long.accepted(t, 4) for t in range(500)] == [short.accepted(t, 4) for t in range(500)]
    assert {long.accepted(t, 1) for t in range(500)} == {0, 1}


def test_a_trace_with_depths_uses_the_row_of_the_round_start() -> None:
    rows = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    trace = TraceAcceptance(rows, np.array([4]), proposed=np.array([2, 0, 5, 1]), category=np.array(["code"]))
    path = trace.path(0, 4, seed=1)
    assert [path.accepted(t, 2) for t in range(4)] == [1, 2, 0, 1]
    assert [path.proposed(t, 3) for t in range(4)] == [2, 0, 3, 1]
    assert trace.extrapolated(3) == "acceptance past γ = 2, the largest that was measured, is extrapolated"
    with pytest.raises(ValueError, match="recorded to 2 drafts"):
        path.accepted(0, 3)


def test_trace_file_comes_back_as_written_and_same_trace_same_bytes(tmp_path: Path) -> None:
    trace = TraceAcceptance(
        np.array([0.25, 1.0, 0.0]), np.array([1, 2]), proposed=np.array([3, 0, 1]), category=np.array(["prose", "code"])
    )
    write_trace_file(tmp_path / "a.npz", TraceFile(trace))
    write_trace_file(tmp_path / "b.npz", TraceFile(trace))
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    back = load_trace(tmp_path / "a.npz")
    for name in ("acceptance", "lengths", "proposed", "category"):
        assert getattr(back, name).tolist() == getattr(trace, name).tolist()
    assert back.of_category("code").acceptance.tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"acceptance": np.array([0.5, 1.5])}, "acceptance: must be between 0 and 1"),
        ({"acceptance": np.array([0.5, np.nan])}, "acceptance: must be between 0 and 1"),
        ({"acceptance": np.array(["a", "b"])}, "acceptance: must be numbers"),
        ({"acceptance": np.array([[0.5, 0.5], [0.5, 0.5]])}, "must be 0 where a row reaches past the end"),
        ({"lengths": np.array([3])}, "must add up to the 2 tokens of acceptance (got 3)"),
        ({"lengths": np.array([2, 0])}, "lengths: must be whole numbers of at least 1"),
        ({"proposed": np.array([1])}, "proposed: must be whole numbers of at least 0, one per token"),
        ({"category": np.array([1])}, "category: must be text"),
        ({"schema_version": np.array(9)}, "schema_version: must be 1 (got 9)"),
        ({"lenghts": np.array([2])}, "lenghts: unknown array; did you mean lengths?"),
        ({"acceptance": np.array([{}, {}], dtype=object)}, "must be an .npz file of plain arrays"),
        ({"lengths": None}, "lengths: must be in the file"),
        ({"prompt_sha256": np.array([1])}, "prompt_sha256: must be text, one per prompt"),
        ({"output_sha256": np.array(["a", "b"])}, "output_sha256: must be text, one per prompt"),
        ({"token_ids": np.array([1])}, "token_ids: must be whole numbers, one per token"),
        ({"provenance": np.array("[1]")}, "provenance: must be a JSON object"),
        ({"provenance": np.array("{")}, "provenance: must be a JSON object"),
    ],
)
def test_a_broken_trace_file_is_refused_with_the_array_and_what_it_must_be(
    changed: dict[str, np.ndarray | None], message: str, tmp_path: Path
) -> None:
    arrays = {"schema_version": np.array(1), "acceptance": np.array([0.5, 1.0]), "lengths": np.array([2])} | changed
    np.savez(tmp_path / "t.npz", **{name: value for name, value in arrays.items() if value is not None})  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=re.escape(message)):
        load_trace(tmp_path / "t.npz")


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 cut short", b"\x93NUMPY"])
def test_a_file_that_is_no_trace_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "t.npz").write_bytes(content)
    with pytest.raises(SpecError, match=r"must be an \.npz file"):
        load_trace(tmp_path / "t.npz")
    with pytest.raises(SpecError, match="no such file"):
        load_trace(tmp_path / "absent.npz")
    (tmp_path / "t.parquet").write_bytes(content)
    with pytest.raises(SpecError, match="must be a Parquet file of a trace"):
        load_trace(tmp_path / "t.parquet")
    with pytest.raises(SpecError, match="no such file"):
        load_trace(tmp_path / "absent.parquet")


# ------------------------------------------------------------------------------------------- laws against their own paths


def replay(path: AcceptancePath, gamma: int, output_tokens: int) -> tuple[int, int, int]:
    """(tokens, rounds, proposals) of a run at fixed γ that stops once it has `output_tokens`."""
    position = rounds = proposals = 0
    while position < output_tokens:
        drafted = path.proposed(position, gamma)
        position += path.accepted(position, drafted) + 1
        rounds, proposals = rounds + 1, proposals + (drafted > 0)
    return position, rounds, proposals


def trace_of_equal_prompts() -> TraceAcceptance:
    generator = np.random.default_rng(17)
    return TraceAcceptance(generator.beta(0.6, 0.4, 12 * 400), np.full(12, 400), proposed=generator.integers(0, 9, 12 * 400))


def trace_with_depths() -> TraceAcceptance:
    rows = np.random.default_rng(18).random((4 * 400, 8)) ** (1 + np.arange(8) / 4)
    left = np.tile(np.arange(400, 0, -1), 4)
    return TraceAcceptance(np.where(np.arange(8) < left[:, None], rows, 0.0), np.full(4, 400))


LAWS: Mapping[str, AcceptanceLaw] = {
    "independent": IndependentAcceptance(0.75),
    "independent, proposals": IndependentAcceptance(0.75, proposal_rate=0.4),
    "per position, extended": PerPositionAcceptance((0.8, 0.7, 0.65)),
    "beta": BetaAcceptance(0.7, 5.0),
    "beta, proposals": BetaAcceptance(0.7, 5.0, proposal_rate=0.6),
    "stretches": MarkovAcceptance(0.95, 0.4, 0.05, 0.1),
    "copying": MarkovAcceptance(1.0, 0.35, 0.03, 0.08, hard_proposal_rate=0.26),
    "mixture": MixtureAcceptance((0.3, 0.7), (IndependentAcceptance(0.9), PerPositionAcceptance((0.6, 0.5)))),
    "spread": spread_over_requests(PerPositionAcceptance((0.8, 0.78, 0.75, 0.7)), 0.15),
    "context": ContextAcceptance(((1024, 0.8), (8192, 0.2))).at_context(2048),
    "trace": trace_of_equal_prompts(),
    "trace with depths": trace_with_depths(),
}


@pytest.mark.parametrize("name", LAWS)
def test_paths_emit_the_tokens_per_round_that_their_law_states(name: str) -> None:
    law = LAWS[name]
    requests, output_tokens = (300, 400) if isinstance(law, (BetaAcceptance, MixtureAcceptance)) else (120, 400)
    paths = [law.path(request, output_tokens, seed=3) for request in range(requests)]
    for gamma in range(1, 9):
        runs = np.array([replay(path, gamma, output_tokens) for path in paths], dtype=float)
        if isinstance(law, TraceAcceptance):
            runs[:, 0] = output_tokens  # a trace's rates leave out what lies past the end of its prompts
        check_ratio(runs[:, 0], runs[:, 1], law.mean_acceptance_length(gamma))
        check_ratio(runs[:, 2], runs[:, 1], law.proposal_share(gamma))


def check_ratio(above: np.ndarray, below: np.ndarray, expected: float) -> None:
    """Σ above / Σ below within four standard errors (of a ratio of sums over independent requests)."""
    ratio = above.sum() / below.sum()
    error = np.std(above - ratio * below) / below.mean() / math.sqrt(len(above))
    assert abs(ratio - expected) <= 4 * error + 1e-9, (ratio, expected, error)


@pytest.mark.parametrize("name", LAWS)
def test_rates_are_probabilities_that_give_the_stated_lengths(name: str) -> None:
    law = LAWS[name]
    for gamma in (0, 1, 5, 8):
        conditional = law.conditional_rates(gamma)
        assert conditional.shape == (gamma,)
        assert ((conditional >= 0) & (conditional <= 1)).all()
        assert 1 <= law.mean_acceptance_length(gamma) <= law.mean_acceptance_length_of_proposals(gamma) <= gamma + 1


@pytest.mark.parametrize("name", LAWS)
def test_randomness_belongs_to_positions_so_any_gamma_sees_the_same_text(name: str) -> None:
    law = LAWS[name]
    path, again = law.path(7, 50, seed=2), law.path(7, 300, seed=2)
    for position in range(0, 50, 3):
        deepest = path.accepted(position, 8)
        assert [path.accepted(position, depth) for depth in range(9)] == [min(deepest, depth) for depth in range(9)]
        assert again.accepted(position, 8) == deepest
        assert path.proposed(position, 3) == min(path.proposed(position, 8), 3)
    others = [law.path(8, 300, seed=2), law.path(7, 300, seed=3)]
    seen = [[each.accepted(position, 8) for position in range(300)] for each in (again, *others)]
    assert seen[0] != seen[1]
    assert seen[0] != seen[2]


@pytest.mark.parametrize("name", LAWS)
def test_all_rounds_of_a_text_are_those_taken_one_by_one(name: str) -> None:
    path = LAWS[name].path(5, 80, seed=4)
    for gamma, begin in itertools.product((1, 2, 5), (0, 1, 13, 79)):
        starts = [begin]
        while starts[-1] < 80:
            starts.append(starts[-1] + 1 + path.accepted(starts[-1], gamma))
        found = path.all_rounds(begin, 80, gamma)
        always = all(path.proposed(position, gamma) == gamma for position in range(80))
        assert found is not None if always else found is None
        if found is not None:
            assert (found.starts.tolist(), found.tokens.tolist()) == (starts, np.diff([*starts[:-1], 80]).tolist())


def test_rounds_of_many_texts_together_are_those_of_each() -> None:
    laws = [IndependentAcceptance(0.0), IndependentAcceptance(1.0), *LAWS.values()]
    lengths = [1, 2, 3, 50, 80, 7, 200]
    alone, together = ([law.path(n, lengths[n % 7], seed=4) for n, law in enumerate(3 * laws)] for _ in range(2))
    Texts(together)
    for gamma, begin in itertools.product((1, 4), (1, 2, 11)):
        for n, (one, other) in enumerate(zip(alone, together, strict=True)):
            if begin < lengths[n % 7]:
                expected, found = (path.all_rounds(begin, lengths[n % 7], gamma) for path in (one, other))
                assert (expected is None) == (found is None)
                if expected is not None and found is not None:
                    assert [each.tolist() for each in expected] == [each.tolist() for each in found]


def test_easy_text_takes_fewer_rounds_so_the_first_rate_falls_as_gamma_grows() -> None:
    measured = read_profile(resources.folder("acceptance") / "multi_layer_mtp_gsm8k.yaml")
    by_depth = measured.spec.acceptance_rates_per_position
    assert by_depth is not None
    beta = BetaAcceptance(0.8256, 8.308)  # fitted to the eight rates measured with eight drafts
    stretches = MarkovAcceptance(0.8792, 0.5365, 0.01489, 0.0754)  # likewise
    for law in (beta, stretches):
        assert survival_from_conditional(law.conditional_rates(8)) == pytest.approx(by_depth, abs=0.012)
        assert law.conditional_rates(1)[0] == pytest.approx(0.8339, rel=0.03)  # measured with one draft
    assert measured.law().conditional_rates(1)[0] < 0.8339 * 0.92


def test_context_law_reads_the_request_own_context() -> None:
    law = ContextAcceptance(((1000, 1.0), (2000, 0.0)))
    path = law.path(0, 4000, seed=1, prompt_tokens=500)
    accepted = [path.accepted(position, 1) for position in range(3000)]
    assert all(accepted[:501])  # context up to 1000
    assert not any(accepted[1500:])  # context from 2000
    assert 0 < sum(accepted[501:1500]) < 999
    assert law.at_context(1414).acceptance_rate == pytest.approx(0.5, abs=1e-3)  # half way in log context


def test_a_spread_over_requests_keeps_tokens_per_round_at_every_gamma() -> None:
    law = PerPositionAcceptance((0.775, 0.755, 0.73, 0.67), proposal_rate=0.8)
    spread = spread_over_requests(law, 0.12)
    for gamma in (1, 2, 3, 4):
        assert spread.mean_acceptance_length(gamma) == pytest.approx(law.mean_acceptance_length(gamma), abs=1e-9)
    first = [part.conditional_rates(1)[0] for part in spread.laws]
    assert np.std(first) == pytest.approx(0.12, rel=0.05)
    with pytest.raises(ValueError, match="must be below"):
        spread_over_requests(law, 0.45)
    with pytest.raises(ValueError, match="must be smaller"):
        spread_over_requests(PerPositionAcceptance((0.5, 0.99)), 0.35)


@pytest.mark.parametrize("a", [0.02, 0.7, 2.0, 60.0, 1e4, 1e7])
@pytest.mark.parametrize("b", [0.1, 0.3, 5.0, 1e3, 3e5])
def test_beta_quantiles_are_those_of_the_library(a: float, b: float) -> None:
    probabilities = np.concatenate(([1e-9, 1e-5], (np.arange(32) + 0.5) / 32, [1 - 1e-5]))
    assert beta_quantiles(a, b, probabilities) == pytest.approx(betaincinv(a, b, probabilities), rel=1e-9, abs=1e-12)


# ----------------------------------------------------------------------------------------------- conversions and extension


@quick
@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=8))
def test_conditional_and_survival_rates_convert_back_and_forth(conditional: list[float]) -> None:
    assert conditional_from_survival(survival_from_conditional(conditional)) == pytest.approx(conditional)


@quick
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_a_curve_without_noise_gives_back_its_rates(conditional: list[float]) -> None:
    survival = np.cumprod(conditional)
    curve = {count: float(length) for count, length in enumerate(1 + np.cumsum(survival), start=1)}
    assert survival_from_curve(curve) == pytest.approx(survival, abs=1e-9)


@quick
@given(st.dictionaries(st.integers(1, 16), st.floats(0, 1), min_size=2))
def test_the_nearest_concave_curve_is_that_of_the_library(points: dict[int, float]) -> None:
    counts = sorted(points)
    lengths = np.array([1 + points[count] * count for count in counts])
    ramps = np.minimum.outer(counts, counts).astype(float)
    weights, distance = nnls(ramps, lengths - 1)
    found = nearest_concave(counts, lengths.tolist())
    assert found == pytest.approx((1 + ramps @ weights).tolist(), abs=1e-8)
    assert math.dist(found, lengths) == pytest.approx(distance, abs=1e-8)


@quick
@given(st.dictionaries(st.integers(1, 8), st.floats(0, 1), min_size=1))
def test_any_possible_curve_gives_rates_that_never_rise(points: dict[int, float]) -> None:
    survival = survival_from_curve({count: 1 + share * count for count, share in points.items()})
    assert len(survival) == max(points)
    assert ((survival >= 0) & (survival <= 1)).all()
    assert (np.diff(survival) <= 1e-9).all()


def test_counters_of_one_run_give_each_engine_its_number() -> None:
    run = AcceptanceCounters(drafts=100, draft_tokens=500, accepted_tokens=269)
    assert run.mean_acceptance_length == pytest.approx(3.69)  # vLLM, SGLang
    assert run.draft_acceptance_rate == pytest.approx(0.538)  # accepted / drafted: not α = 0.8
    assert AcceptanceCounters.from_llama_cpp(n_predict=369, n_drafted=500, n_accept=269) == run
    with pytest.raises(ValueError, match="accepted_tokens"):
        AcceptanceCounters(drafts=10, draft_tokens=20, accepted_tokens=30)


def golden_curves() -> list[Mapping[int, float]]:
    profiles = [profile.spec for profile in shipped_profiles().values() if "InferenceX" in profile.spec.source.citation]
    return [spec.mean_acceptance_lengths for spec in profiles if spec.mean_acceptance_lengths]


EXTENSION_RULES: dict[str, Callable[[Rates, int], Rates]] = {
    "last conditional rate held": held,
    "conditional rates decay geometrically": decayed,
    "mean of both (used)": extended,
}


def extension_errors(curves: list[Mapping[int, float]], fitted_to: int) -> dict[str, Rates]:
    """Errors of τ as shares of the measured one, by rule: fitted to measured τ curves at γ ≤ `fitted_to` and read above it."""
    errors: dict[str, list[float]] = {rule: [] for rule in EXTENSION_RULES}
    for curve in curves:
        known = conditional_from_survival(survival_from_curve({count: curve[count] for count in curve if count <= fitted_to}))
        for rule, extend in EXTENSION_RULES.items():
            lengths = 1 + np.cumsum(survival_from_conditional(extend(known, max(curve))))
            errors[rule] += [lengths[count - 1] / curve[count] - 1 for count in sorted(curve) if count > fitted_to]
    return {rule: np.array(values) for rule, values in errors.items()}


def test_extension_fitted_at_three_drafts_holds_to_eight_on_the_golden_curves() -> None:
    errors = extension_errors(golden_curves(), fitted_to=3)
    size = {rule: np.abs(values) for rule, values in errors.items()}
    used = size["mean of both (used)"]
    assert len(used) == 62
    assert used.mean() < 0.035  # measured: 3.3 %
    assert np.quantile(used, 0.9) < 0.085  # measured: 7.8 %
    assert errors["last conditional rate held"].mean() > 0 > errors["conditional rates decay geometrically"].mean()
    assert used.mean() < min(values.mean() for rule, values in size.items() if "used" not in rule)


def test_one_rate_fitted_at_one_draft_misses_the_golden_curves_by_far_more() -> None:
    iid = [
        IndependentAcceptance(curve[1] - 1).mean_acceptance_length(8) / curve[8] - 1 for curve in golden_curves() if 8 in curve
    ]
    assert np.mean(np.abs(iid)) > 0.2


def test_a_missing_first_point_is_filled_within_noise() -> None:
    hidden = [
        1 + survival_from_curve({count: curve[count] for count in curve if count > 1})[0] - curve[1] for curve in golden_curves()
    ]
    assert np.mean(np.abs(hidden)) < 0.02
    assert np.max(np.abs(hidden)) < 0.05


# ------------------------------------------------------------------------------------------- profiles against their sources


@pytest.mark.parametrize("name", resources.ids("acceptance"))
def test_shipped_profile_states_its_source_and_reproduces_what_was_measured(name: str) -> None:
    profile = shipped_profiles()[name]
    assert profile.spec.source.url.startswith("https://")
    assert "bonus" in profile.spec.unit or "rate" in profile.spec.unit
    for domain, law in (profile.table() or {"": profile.law()}).items():
        row = profile.spec.domains[domain] if profile.spec.domains else profile.spec
        for count, length in (row.mean_acceptance_lengths or {}).items():
            assert law.mean_acceptance_length_of_proposals(count) == pytest.approx(length, abs=0.2)
        if row.acceptance_rates_per_position:
            measured = len(row.acceptance_rates_per_position)
            assert survival_from_conditional(law.conditional_rates(measured)) == pytest.approx(row.acceptance_rates_per_position)


def test_a_curve_is_smoothed_only_where_it_is_not_concave_and_the_warning_says_where() -> None:
    noisy = shipped_profiles()["deepseek_v4_pro_0813_dspark_thinking_on"]
    assert any("at 8 speculative tokens" in text for text in noisy.warnings(noisy.law(), None, 8))
    assert noisy.warnings(noisy.law(), None, 5) == []
    smooth = shipped_profiles()["kimi_k2_5_eagle3_thinking_on"]
    for count, length in (smooth.spec.mean_acceptance_lengths or {}).items():
        assert smooth.law().mean_acceptance_length(count) == pytest.approx(length, abs=1e-9)


def test_n_gram_profile_counts_rounds_with_and_without_a_proposal_apart() -> None:
    law = shipped_profiles()["llama31_8b_ngram_edits"].law()
    assert law.mean_acceptance_length_of_proposals(5) == pytest.approx(4.59, abs=0.01)
    assert law.mean_acceptance_length(5) == pytest.approx(2.96, abs=0.01)
    assert law.proposal_share(5) == pytest.approx(993 / (993 + 821), abs=0.001)
    assert survival_from_conditional(law.conditional_rates(5)) == pytest.approx([0.81, 0.74, 0.70, 0.68, 0.66], abs=0.003)


def test_context_profile_gives_the_measured_length_at_each_context() -> None:
    profile = shipped_profiles()["qwen3_8b_eagle3_context"]
    assert profile.spec.contexts is not None
    for tokens, length in profile.spec.contexts.mean_acceptance_length.items():
        assert profile.law().at_context(tokens).mean_acceptance_length(3) == pytest.approx(length)


def test_golden_profiles_agree_with_the_published_rows() -> None:
    source = SHARED / "data" / "published_results.csv"
    if not source.is_file():
        pytest.skip("the table of published results is not here")
    published = defaultdict(set)
    with source.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["id"].startswith("GAL"):
                published[row["target_model"].casefold(), int(row["chain_k"])].add(float(row["accept_value"]))
    shipped = defaultdict(set)
    for profile in shipped_profiles().values():
        spec = profile.spec
        target = spec.target.replace(" ", "-").casefold()
        if "InferenceX" in spec.source.citation and (target, 1) in published and "block verification" not in spec.drafter:
            for count, length in (spec.mean_acceptance_lengths or {}).items():
                shipped[target, count].add(length)
    assert shipped == published


def test_the_anchors_of_a_field_case_are_shipped_as_reported() -> None:
    source = SHARED / "data" / "field_cases.md"
    if not source.is_file():
        pytest.skip("the field cases are not here")
    numbers = next(line for line in source.read_text(encoding="utf-8").splitlines() if "TPOT no-spec 7.07 ms" in line)
    eagle, eagle3 = numbers.split("EAGLE-3:")
    for profile_id, text in (("llama31_8b_eagle_mtbench", eagle), ("llama31_8b_eagle3_mtbench", eagle3)):
        reported = {int(count): float(length) for count, length in re.findall(r"K(\d) ([\d.]+)/", text)}
        assert shipped_profiles()[profile_id].spec.mean_acceptance_lengths == reported


@pytest.mark.parametrize("method", ["eagle", "eagle3", "mtp", "ngram", "draft_model", "block", "layer_skip"])
def test_band_of_a_method_spans_its_shipped_measurements(method: str) -> None:
    band = band_for(method, 3)
    assert band is not None
    assert 1 < band.low <= band.high <= 4
    assert band.low_source.split(" ")[0] in resources.ids("acceptance")
    rows = [law for profile in shipped_profiles().values() if profile.spec.method == method for law in profile.table().values()]
    lone = [law.mean_acceptance_length(3) for law in rows if not law.extrapolated(3)]
    assert all(band.low <= length <= band.high for length in lone)


def test_a_method_without_measurements_has_no_band() -> None:
    assert band_for("medusa", 3) is None


# ---------------------------------------------------------------------------------------------------- a scenario's section


def resolved(text: str, gamma: int = 3) -> ResolvedAcceptance:
    document = parse_yaml(f"acceptance:\n  {text}\n", "s.yaml")
    return resolve_acceptance(check(AcceptanceSpec, document, ("acceptance",)), document, gamma)


def test_each_way_to_state_acceptance_gives_its_tokens_per_round() -> None:
    ways = {
        "acceptance_rate: 0.7": 1 + 0.7 + 0.49 + 0.343,
        "conditional_acceptance_rates: [0.8, 0.5, 0.5]": 1 + 0.8 + 0.4 + 0.2,
        "acceptance_rates_per_position: [0.8, 0.4, 0.2]": 1 + 0.8 + 0.4 + 0.2,
        "mean_acceptance_length: 2.5": 2.5,
        "profile: llama31_8b_eagle3_mtbench": 2.79,
        "{profile: qwen3_8_27b_mtp_thinking_on}": 2.51,
        "{profile: llama31_8b_eagle3_specforge, domain: gsm8k}": 2.548,
        "{mean_acceptance_length: 2.5, request_spread: 0.15}": 2.5,
        "{profile: llama31_8b_eagle3_mtbench, request_spread: 0.12}": 2.79,
    }
    for text, length in ways.items():
        assert resolved(text).law.mean_acceptance_length(3) == pytest.approx(length, abs=1e-6), text


def test_optional_keys_move_the_law() -> None:
    plain = resolved("acceptance_rate: 0.7").law
    assert resolved("{acceptance_rate: 0.7, proposal_rate: 0.5}").law.mean_acceptance_length(3) == pytest.approx(1 + 1.533 / 2)
    spread = resolved("{acceptance_rate: 0.7, request_spread: 0.15}").law
    assert isinstance(spread, BetaAcceptance)
    assert spread.mean == 0.7
    assert spread.mean_acceptance_length(3) != pytest.approx(plain.mean_acceptance_length(3), abs=1e-3)
    table = {domain: resolved(f"{{profile: qwen3_8_27b_mtp_domains, domain: {domain}}}", 1).law for domain in ("code", "prose")}
    assert table["code"].mean_acceptance_length(1) == pytest.approx(1.9076)
    assert table["prose"].mean_acceptance_length(1) == pytest.approx(1.4918)


def test_a_lone_mean_acceptance_length_becomes_independent_acceptance_and_says_so() -> None:
    law = resolved("mean_acceptance_length: 2.8").law
    assert isinstance(law, IndependentAcceptance)
    assert "inverted from τ = 2.8" in law.note
    assert law.extrapolated(4) != ""
    assert law.extrapolated(3) == ""


def test_a_table_without_a_domain_pools_over_rounds_and_says_so() -> None:
    law = resolved("profile: qwen3_8_27b_mtp_domains", 1).law
    lengths = [1.9076, 1.6058, 1.4918, 1.4797]
    assert law.mean_acceptance_length(1) == pytest.approx(4 / sum(1 / length for length in lengths))
    assert "requests are spread over code, factual, prose, technical" in law.note


def test_result_carries_source_and_warnings() -> None:
    answer = resolved("profile: qwen3_8_27b_mtp_thinking_on", 6)
    assert "InferenceX" in answer.source
    assert "bonus token included" in answer.source
    assert answer.warnings == ("acceptance past γ = 4, the largest that was measured, is extrapolated",)
    assert resolved("conditional_acceptance_rates: [0.8]").warnings != ()
    assert resolved("acceptance_rate: 0.8").warnings == ()


def test_trace_and_profile_paths_start_at_the_document(tmp_path: Path) -> None:
    trace = TraceAcceptance(np.array([0.0, 1.0, 0.0, 0.0, 0.0, 0.0]), np.array([3, 3]), category=np.array(["code", "prose"]))
    write_trace_file(tmp_path / "pair.npz", TraceFile(trace))
    example = (resources.folder("acceptance") / "deepseek_r1_mtp.yaml").read_text(encoding="utf-8")
    own = re.sub(r"mean_acceptance_lengths: .*", "trace: pair.npz", example)
    (tmp_path / "own.yaml").write_text(own, encoding="utf-8")
    for text, length in (
        ("trace: pair.npz", 4 / 3),
        ("{trace: pair.npz, domain: code}", 2.0),
        ("{profile: own.yaml, domain: prose}", 1.0),
    ):
        document = parse_yaml(f"acceptance: {text if text[0] == '{' else '{' + text + '}'}\n", str(tmp_path / "s.yaml"))
        answer = resolve_acceptance(check(AcceptanceSpec, document, ("acceptance",)), document, 2)
        assert answer.law.mean_acceptance_length(1) == pytest.approx(length)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "s.yaml:1: acceptance: must have exactly one of profile, acceptance_rate"),
        ("{acceptance_rate: 0.7, profile: deepseek_r1_mtp}", "(got profile and acceptance_rate)"),
        ("acceptance_rate: 1.2", "acceptance.acceptance_rate: must be at most 1 (got 1.2)"),
        ("acceptance_rate: 70%", "must be a number without unit: write 0.7"),
        ("acceptance_rates: [0.7]", "unknown key"),
        ("conditional_acceptance_rates: []", "acceptance.conditional_acceptance_rates: must have at least 1 entry"),
        ("conditional_acceptance_rates: [0.7, -0.1]", "acceptance.conditional_acceptance_rates[1]: must be at least 0"),
        ("acceptance_rates_per_position: [0.5, 0.6]", "must never rise: position 1 (0.6)"),
        ("mean_acceptance_length: 4.2", "acceptance.mean_acceptance_length: must be between 1 and 4"),
        ("mean_acceptance_length: 0.8", "acceptance.mean_acceptance_length: must be at least 1 (got 0.8)"),
        ("profile: llama31_8b_eagle3_mtbnch", "did you mean llama31_8b_eagle3_mtbench?"),
        ("profile: elsewhere/nothing.yaml", "must be a known acceptance profile or the path of a file"),
        ("{profile: qwen3_8_27b_mtp_domains, domain: cod}", "did you mean code?"),
        (
            "{profile: deepseek_r1_mtp, domain: code}",
            "acceptance.domain: must be left out: profile deepseek_r1_mtp tells no kinds",
        ),
        ("{acceptance_rate: 0.7, domain: code}", "must have no domain beside acceptance_rate"),
        ("{profile: deepseek_r1_mtp, proposal_rate: 0.5}", "must have no proposal_rate beside profile"),
        ("{acceptance_rate: 0.7, proposal_rate: 0}", "acceptance.proposal_rate: must be above 0"),
        ("{acceptance_rate: 0.95, request_spread: 0.3}", "acceptance.request_spread: must be below 0.218"),
        ("{profile: qwen3_8_27b_mtp_domains, request_spread: 0.1}", "acceptance.request_spread: must be left out"),
        ("{trace: none.npz, request_spread: 0.1}", "must have no request_spread beside trace"),
        ("trace: none.npz", "acceptance.trace: must be the path of a trace file (.npz or .parquet) (got 'none.npz')"),
    ],
)
def test_a_section_that_cannot_be_is_refused_with_place_bound_and_nearest_name(text: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        resolved(text)
    assert message in str(error.value)
    assert str(error.value).startswith(("s.yaml:1: acceptance: ", "s.yaml:2: acceptance."))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("mean_acceptance_lengths: {2: 3.5}", "τ must be between 1 and 3 at 2 speculative tokens, bonus included (got 3.5)"),
        ("mean_acceptance_lengths: {}", "must have at least 1 entry"),
        (
            "contexts: {num_speculative_tokens: 1, mean_acceptance_length: {100: 1.5, 200: 2.5}}",
            "must be between 1 and 2 (got 2.5)",
        ),
        ("stretches: {easy_acceptance_rate: 1, hard_acceptance_rate: 0, easy_to_hard: 0.7, hard_to_easy: 0.6}", "at most 1"),
        ("acceptance_rate: 0.5\ndomains: {code: {acceptance_rate: 0.5}}", "(got acceptance_rate and domains)"),
        ("domains: {code: {acceptance_rate: 0.5, weight: 0}}", "domains.code.weight: must be above 0"),
        ("proposal_rate: 0.5\ndomains: {code: {acceptance_rate: 0.5}}", "must have no proposal_rate beside domains"),
    ],
)
def test_a_profile_that_cannot_be_is_refused(line: str, message: str, tmp_path: Path) -> None:
    example = (resources.folder("acceptance") / "deepseek_r1_mtp.yaml").read_text(encoding="utf-8")
    (tmp_path / "p.yaml").write_text(re.sub(r"mean_acceptance_lengths: .*", line, example), encoding="utf-8")
    with pytest.raises(SpecError, match=re.escape(message)):
        read_profile(tmp_path / "p.yaml")


def test_equal_mixture_weighs_rounds_not_requests() -> None:
    law = equal_mixture([IndependentAcceptance(1.0), IndependentAcceptance(0.0)])
    assert law.mean_acceptance_length(1) == pytest.approx(4 / 3)  # 2 and 1 tokens per round: 1 round against 2
    assert law.conditional_rates(1)[0] == pytest.approx(1 / 3)


def test_the_replayed_path_has_the_exact_joint_law_of_rounds() -> None:
    """Frequencies of `TraceAcceptance.path` over two rounds against products of a_t, for fractional a_t: the replay itself."""
    rates = [0.5, 0.3, 0.8, 0.6, 0.9, 0.4, 0.7, 0.2]
    trace = TraceAcceptance(np.array(rates), np.array([len(rates)]))
    count, gamma = 6000, 2

    def first_accepted(start: int, accepted: int) -> float:
        run = float(np.prod(rates[start : start + accepted]))
        return run if accepted == gamma else run * (1 - rates[start + accepted])

    seen: dict[tuple[int, int], int] = {}
    for request_id in range(count):
        path = trace.path(request_id, len(rates), seed=3)
        one = path.accepted(1, gamma)
        two = path.accepted(1 + one + 1, gamma)
        seen[one, two] = seen.get((one, two), 0) + 1
    for one in range(gamma + 1):
        for two in range(gamma + 1):
            expected = first_accepted(1, one) * first_accepted(1 + one + 1, two)
            error = math.sqrt(expected * (1 - expected) / count)
            assert abs(seen.get((one, two), 0) / count - expected) < 4.5 * error


def test_the_first_token_of_a_text_is_easy_as_often_as_any_other() -> None:
    """Two states in balance: P(easy) = hard_to_easy / (hard_to_easy + easy_to_hard) from the start, not after a while."""
    law = MarkovAcceptance(1.0, 0.0, 0.02, 0.06)  # easy is accepted, hard is not: the first flag shows the state
    paths = [law.path(request, 40, seed=3) for request in range(4000)]
    for position in (0, 1, 39):
        share = np.mean([path.accepted(position, 1) for path in paths])
        assert share == pytest.approx(0.75, abs=4 * (0.75 * 0.25 / 4000) ** 0.5)


def test_streams_of_requests_neither_meet_nor_disturb_each_other() -> None:
    """A shared generator is set to the beginning of each: what was drawn before does not matter, and neighbours are independent."""
    alone = [UniformStream(7, b"acceptance", request).first(2000) for request in range(64)]
    first, other = UniformStream(7, b"acceptance", 3), UniformStream(7, b"acceptance", 4)
    assert first.first(5).tolist() == alone[3][:5].tolist()
    assert other.first(2000).tolist() == alone[4].tolist()
    assert first.first(2000).tolist() == alone[3].tolist()
    assert len({values[0] for values in alone}) == 64
    assert UniformStream(8, b"acceptance", 3).first(1) != alone[3][0] != UniformStream(7, b"acceptance-state", 3).first(1)
    # 64 × 2,000 uniforms: the mean within four standard errors, and so the correlations of neighbouring requests.
    assert abs(np.mean(alone) - 0.5) < 4 * math.sqrt(1 / 12 / 128_000)
    neighbours = [np.corrcoef(one, after)[0, 1] for one, after in itertools.pairwise(alone)]
    assert abs(np.mean(neighbours)) < 4 / math.sqrt(2000 * 63)
