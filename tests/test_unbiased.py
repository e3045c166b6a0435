"""Speculative sampling draws from the target's distribution: by exact enumeration, and by chi-square on real runs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

torch = pytest.importorskip("torch", reason="torch is not installed: pip install specsim[calibrate]")

from calibration import decoding as d  # noqa: E402
from calibration.decoding import sampling as rule  # noqa: E402
from calibration.tiny_decoder import TinyDecoder  # noqa: E402

VOCAB = 4
PROMPT = [1, 3, 0, 1, 3]
# A right rule falls below it once in a hundred runs of all the tests here together.
BAR = 1e-3
SAMPLINGS = {
    "plain": d.Sampling(1.0),
    "hot": d.Sampling(1.7),
    "top_k": d.Sampling(1.0, top_k=3),
    "top_p": d.Sampling(1.0, top_p=0.8),
}


@pytest.fixture(scope="module")
def pair():
    """Two models that disagree, in double precision so that enumeration is exact."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    models = [TinyDecoder(VOCAB, 8, num_layers=2, seed=seed, logit_scale=2.0).double() for seed in (3, 4)]
    yield models
    torch.set_num_threads(before)


def _next(model, context, sampling):
    """The distribution of the next token, by one pass over the whole context."""
    return sampling.probabilities(model(torch.tensor([list(context)]), model.new_cache(), last=1)[0, -1])


def _joint(target, sampling, length):
    """Exact probability of every output of `length` tokens."""
    table = {(): 1.0}
    for _ in range(length):
        table = {
            (*tokens, token): mass * float(probs[token])
            for tokens, mass in table.items()
            for probs in [_next(target, [*PROMPT, *tokens], sampling)]
            for token in range(VOCAB)
        }
    return table


class _Scripted:
    """A stream whose numbers are given: each draw then takes a chosen outcome."""

    def __init__(self, values):
        self.values = iter(values)

    def random(self):
        return next(self.values)


def _streams(accept=(), emit=()):
    streams = d.RandomStreams()
    streams.accept, streams.emit = _Scripted(accept), _Scripted(emit)
    return streams


def _level(probs, token):
    """A uniform number for which `draw` returns `token`."""
    cumulative = np.cumsum(probs.numpy())
    return float((cumulative[token] - probs[token] / 2) / cumulative[-1])


def _round_outcomes(target, draft, context, k, sampling, draft_sampling, bonus):
    """(probability, emitted tokens) of every outcome of one round, each run through `target_verify`.

    Acceptance is steered by numbers next to 0 and 1, and weighed by what the rule must be, not by what the code computes.
    """
    for drafts in itertools.product(range(VOCAB), repeat=k):
        distributions = [_next(draft, [*context, *drafts[:i]], draft_sampling) for i in range(k)]
        chance = float(np.prod([float(q[token]) for q, token in zip(distributions, drafts, strict=True)]))
        if not chance:
            continue
        targets = [_next(target, [*context, *drafts[:i]], sampling) for i in range(k + 1)]
        given = None if draft_sampling.greedy else torch.stack(distributions)
        for accepted in range(k + 1):
            mass = chance
            for i in range(accepted):
                mass *= min(1.0, float(targets[i][drafts[i]] / distributions[i][drafts[i]]))
            if accepted < k:
                mass *= 1 - min(1.0, float(targets[accepted][drafts[accepted]] / distributions[accepted][drafts[accepted]]))
                own = (targets[accepted] - distributions[accepted]).clamp(min=0)
                own = own / own.sum() if mass else own
            else:
                own = targets[k]
            if mass <= 1e-15:
                continue
            script = [0.0] * accepted + [1 - 1e-12]
            if accepted == k and not bonus:
                yield (
                    mass,
                    tuple(
                        d.target_verify(target, context, drafts, given, sampling=sampling, streams=_streams(script), bonus=False)
                    ),
                )
                continue
            for token in range(VOCAB):
                if own[token] > 0:
                    streams = _streams(script, [_level(own, token)])
                    emitted = d.target_verify(target, context, drafts, given, sampling=sampling, streams=streams, bonus=bonus)
                    assert tuple(emitted) == (*drafts[:accepted], token)
                    yield mass * float(own[token]), tuple(emitted)


@pytest.mark.parametrize("bonus", [True, False])
@pytest.mark.parametrize(
    "draft_sampling", [d.Sampling(1.0), d.Sampling(0.6, top_k=2), d.GREEDY], ids=["sampled", "narrow", "greedy"]
)
@pytest.mark.parametrize("name", SAMPLINGS)
def test_every_outcome_of_one_and_two_steps_has_the_targets_probability(pair, name, draft_sampling, bonus):
    target, draft = pair
    sampling = SAMPLINGS[name]
    for k in (1, 2):
        first = dict.fromkeys(range(VOCAB), 0.0)
        both = dict.fromkeys(itertools.product(range(VOCAB), repeat=2), 0.0)
        for mass, emitted in _round_outcomes(target, draft, PROMPT, k, sampling, draft_sampling, bonus):
            first[emitted[0]] += mass
            if len(emitted) > 1:
                both[emitted[:2]] += mass
                continue
            # The round ended after one token: the second comes from the next round.
            for next_mass, following in _round_outcomes(target, draft, [*PROMPT, *emitted], 1, sampling, draft_sampling, bonus):
                both[(emitted[0], following[0])] += mass * next_mass
        exact_first, exact_both = _joint(target, sampling, 1), _joint(target, sampling, 2)
        assert all(first[tokens[0]] == pytest.approx(mass, abs=1e-10) for tokens, mass in exact_first.items())
        assert all(both[tokens] == pytest.approx(mass, abs=1e-10) for tokens, mass in exact_both.items())


def _p_value(runs, exact):
    """Chi-square of the outputs against their exact law; rare outputs are pooled so that each cell expects ten."""
    expected = np.array([len(runs) * mass for mass in exact.values()])
    counts = dict.fromkeys(exact, 0)
    for tokens in runs:
        counts[tuple(tokens)] += 1
    observed = np.array(list(counts.values()), dtype=float)
    assert observed[expected == 0].sum() == 0
    rare = (expected > 0) & (expected < 10)
    cells = expected >= 10
    if rare.any():
        expected = np.append(expected[cells], expected[rare].sum())
        observed = np.append(observed[cells], observed[rare].sum())
    else:
        expected, observed = expected[cells], observed[cells]
    return float(stats.chisquare(observed, expected).pvalue)


def _batch_outputs(pair, drafter, sampling, count, k=2, seed=1):
    return d.speculative_generate_batch(pair[0], drafter, [PROMPT] * count, 3, k, sampling=sampling, seed=seed).tokens


@pytest.mark.parametrize("name", ["second", "second_greedy", "exit1", "prompt_lookup"])
@pytest.mark.parametrize("sampling", ["plain", "top_p"])
def test_sampled_outputs_follow_the_targets_law(pair, name, sampling):
    target, draft = pair
    drafter = {
        "second": d.ModelDrafter(draft),
        "second_greedy": d.ModelDrafter(draft, sampling=d.GREEDY),
        "exit1": d.LayerSkipDrafter(target, [0]),
        "prompt_lookup": d.PromptLookupDrafter(),
    }[name]
    runs = _batch_outputs(pair, drafter, SAMPLINGS[sampling], 2500)
    assert _p_value(runs, _joint(target, SAMPLINGS[sampling], 3)) > BAR


@pytest.mark.parametrize("name", ["second", "medusa", "eagle"])
def test_sampled_outputs_of_single_sequences_follow_the_targets_law(pair, name):
    target, draft = pair
    torch.manual_seed(0)
    drafter = {
        "second": d.ModelDrafter(draft),
        "medusa": d.HeadDrafter(d.MedusaHeads(8, VOCAB, 2).double()),
        "eagle": d.HeadDrafter(d.EagleHead(8, 1).double()),
    }[name]
    sampling = d.Sampling(1.0)
    runs = [d.speculative_generate(target, drafter, PROMPT, 3, 2, sampling=sampling, seed=seed).tokens for seed in range(600)]
    assert _p_value(runs, _joint(target, sampling, 3)) > BAR


@pytest.mark.parametrize("broken", ["acceptance", "residual"])
def test_a_wrong_rule_is_found_out_by_the_same_number_of_samples(pair, broken, monkeypatch):
    target, draft = pair
    sampling = d.Sampling(1.0)
    from calibration.decoding import speculation

    if broken == "acceptance":
        right = rule.acceptance_probability
        monkeypatch.setattr(speculation, "acceptance_probability", lambda p, q, token: right(p, q, token) ** 0.5)
    else:
        monkeypatch.setattr(speculation, "residual_probabilities", lambda p, q, token: p)
    runs = _batch_outputs(pair, d.ModelDrafter(draft), sampling, 3000)
    assert _p_value(runs, _joint(target, sampling, 3)) < BAR / 100


def test_top_k_and_top_p_keep_what_they_say():
    logits = torch.tensor([0.5, 0.25, 0.15, 0.1]).log()
    assert d.Sampling(1.0, top_k=2).probabilities(logits).tolist() == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert d.Sampling(1.0, top_p=0.7).probabilities(logits).tolist() == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert d.Sampling(1.0, top_p=0.01).probabilities(logits).tolist() == pytest.approx([1, 0, 0, 0])
    assert d.Sampling(0.5).probabilities(logits).tolist() == pytest.approx(
        [0.25 / 0.345, 0.0625 / 0.345, 0.0225 / 0.345, 0.01 / 0.345]
    )
    assert d.Sampling().probabilities(logits).tolist() == [1, 0, 0, 0]
    ties = torch.tensor([1.0, 1.0, 1.0, 0.0])
    assert d.Sampling(1.0, top_k=1).probabilities(ties).tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])
