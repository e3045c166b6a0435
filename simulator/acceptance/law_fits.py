"""Parametric laws fitted to a trace, and how far each then errs on τ(γ).

Laws are fitted to the acceptance of single positions (its mean, its spread between prompts, its persistence), never to τ;
only rates by depth are read off the replay, at γ ≤ 3. The error beyond γ = 3 is thus a test of the law's shape for every law.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulator.acceptance.laws import AcceptanceLaw, IndependentAcceptance, MarkovAcceptance, PerPositionAcceptance
from simulator.acceptance.path import Flags
from simulator.acceptance.population import BetaAcceptance
from simulator.acceptance.rates import Rates
from simulator.acceptance.traces import TraceAcceptance

FITTED_TO = 3
_ITERATIONS = 200
_EDGE = 1e-6  # probabilities stay so far from 0 and 1, where a likelihood has no slope


@dataclass(frozen=True, slots=True)
class FittedLaw:
    """A law, its parameters in words, and its error on τ as shares of the trace's τ, by γ."""

    name: str
    law: AcceptanceLaw
    parameters: str
    errors: Mapping[int, float]

    def mean_error(self, first: int, last: int) -> float:
        """Mean absolute error over γ = first..last; 0 where none lies there."""
        sizes = [abs(error) for count, error in self.errors.items() if first <= count <= last]
        return float(np.mean(sizes)) if sizes else 0.0

    @property
    def worst(self) -> tuple[int, float]:
        """(γ, signed error) where the law errs most."""
        return max(self.errors.items(), key=lambda item: abs(item[1]))


def fitted_laws(trace: TraceAcceptance, first: Rates, offered: Flags, lengths: Mapping[int, float]) -> tuple[FittedLaw, ...]:
    """Every law that the trace supports, best first by its error beyond γ = 3.

    first, offered (T,): acceptance of the first draft at each position, and whether there is one; lengths: τ by γ.
    """
    if not offered.any():
        return ()
    rate, share = float(first[offered].mean()), float(offered.mean())
    found: list[tuple[str, AcceptanceLaw, str]] = [
        ("independent", IndependentAcceptance(rate, proposal_rate=share), f"α = {rate:.3f}{_share_text(share)}")
    ]
    deepest = min(FITTED_TO, max(lengths))
    by_depth = tuple(trace.conditional_rates(deepest).tolist())
    proposal_rate = trace.proposal_share(deepest)
    rates = ", ".join(f"{value:.3f}" for value in by_depth)
    found.append(
        ("by depth", PerPositionAcceptance(by_depth, proposal_rate=proposal_rate), f"{rates}{_share_text(proposal_rate)}")
    )
    beta = _beta(first, offered, trace.lengths, share)
    if beta is not None:
        text = f"mean {beta.mean:.3f}, concentration {beta.concentration:.3g}{_share_text(share)}"
        found.append(("one α per request (Beta)", beta, text))
    stretches = _stretches(first, offered, trace.lengths)
    text = (
        f"easy {stretches.easy_acceptance_rate:.3f}, hard {stretches.hard_acceptance_rate:.3f}, easy to hard"
        f" {stretches.easy_to_hard:.3f}, hard to easy {stretches.hard_to_easy:.3f}"
    )
    found.append(("easy and hard stretches", stretches, text))
    fitted = [
        FittedLaw(name, law, text, {count: law.mean_acceptance_length(count) / length - 1 for count, length in lengths.items()})
        for name, law, text in found
    ]
    return tuple(sorted(fitted, key=lambda each: each.mean_error(FITTED_TO + 1, max(lengths)) or each.mean_error(1, FITTED_TO)))


def _share_text(share: float) -> str:
    return "" if share == 1 else f", a proposal in {share:.3f} of the rounds"


def _beta(first: Rates, offered: Flags, lengths: npt.NDArray[np.int64], share: float) -> BetaAcceptance | None:
    """Mean and variance over prompts, the variance less what chance gives; None where nothing beyond chance is left."""
    ends = np.cumsum(lengths)[:-1]
    kept = [values[has] for values, has in zip(np.split(first, ends), np.split(offered, ends), strict=True)]
    kept = [values for values in kept if len(values)]
    rates = np.array([values.mean() for values in kept])
    if len(rates) < 2:
        return None
    mean = float(rates.mean())
    variance = float(rates.var(ddof=1)) - float(np.mean([values.var() / len(values) for values in kept]))
    if not 0 < variance < mean * (1 - mean):
        return None
    return BetaAcceptance(mean, mean * (1 - mean) / variance - 1, proposal_rate=share)


def _stretches(first: Rates, offered: Flags, lengths: npt.NDArray[np.int64]) -> MarkovAcceptance:
    """A hidden Markov chain of two states by expectation maximisation (Baum-Welch), prompts side by side.

    A state shows whether there is a proposal, and where there is one whether it is accepted; an acceptance probability
    between 0 and 1 counts as that share of an accepted and the rest of a rejected draft.
    """
    shape = (len(lengths), int(lengths.max()))
    inside = np.arange(shape[1]) < lengths[:, None]
    accepted, proposed = np.zeros(shape), np.zeros(shape)
    accepted[inside], proposed[inside] = first, offered
    mean = float(first[offered].mean())
    accept, propose = np.array([(1 + mean) / 2, mean / 2]), np.full(2, float(offered.mean()))
    if not offered.all():
        propose = np.array([(1 + propose[0]) / 2, propose[0] / 2])
    move = np.array([[0.9, 0.1], [0.1, 0.9]])
    for _ in range(_ITERATIONS):
        accept, propose = np.clip(accept, _EDGE, 1 - _EDGE), np.clip(propose, _EDGE, 1 - _EDGE)
        states, moves = _posterior(_likelihood(accepted, proposed, inside, accept, propose), move, inside)
        weights = states * inside[..., None]
        offers = weights * proposed[..., None]
        accept = (offers * accepted[..., None]).sum(axis=(0, 1)) / np.maximum(offers.sum(axis=(0, 1)), _EDGE)
        propose = offers.sum(axis=(0, 1)) / np.maximum(weights.sum(axis=(0, 1)), _EDGE)
        move = (moves + _EDGE) / (moves + _EDGE).sum(axis=1, keepdims=True)
    easy, hard = (0, 1) if accept[0] * propose[0] >= accept[1] * propose[1] else (1, 0)
    leaving = np.array([move[easy, hard], move[hard, easy]])
    leaving /= max(1.0, float(leaving.sum()))  # the law knows stretches that persist only
    always = bool(offered.all())
    return MarkovAcceptance(
        float(accept[easy]),
        float(accept[hard]),
        float(leaving[0]),
        float(leaving[1]),
        easy_proposal_rate=1.0 if always else float(propose[easy]),
        hard_proposal_rate=1.0 if always else float(propose[hard]),
    )


def _likelihood(accepted: Rates, proposed: Rates, inside: Flags, accept: Rates, propose: Rates) -> Rates:
    """P(what is seen at each position | state), shape (prompts, positions, 2); 1 past the end of a prompt."""
    a, o = accepted[..., None], proposed[..., None]
    seen = o * (np.log(propose) + a * np.log(accept) + (1 - a) * np.log(1 - accept)) + (1 - o) * np.log(1 - propose)
    likelihood: Rates = np.where(inside[..., None], np.exp(seen), 1.0)
    return likelihood


def _posterior(likelihood: Rates, move: Rates, inside: Flags) -> tuple[Rates, Rates]:
    """(P(state at each position | all), expected moves from state to state) by the scaled forward-backward recursion."""
    prompts, positions, _ = likelihood.shape
    start = np.array([move[1, 0], move[0, 1]]) / max(move[1, 0] + move[0, 1], _EDGE)
    forward, backward = np.empty_like(likelihood), np.ones_like(likelihood)
    scale = np.empty((prompts, positions, 1))
    before = np.broadcast_to(start, (prompts, 2))
    for t in range(positions):
        joint = before * likelihood[:, t]
        scale[:, t] = joint.sum(axis=1, keepdims=True)
        forward[:, t] = joint / scale[:, t]
        before = forward[:, t] @ move
    for t in range(positions - 2, -1, -1):
        backward[:, t] = ((likelihood[:, t + 1] * backward[:, t + 1]) @ move.T) / scale[:, t + 1]
    ahead = likelihood[:, 1:] * backward[:, 1:] / scale[:, 1:] * inside[:, 1:, None]
    moves = np.einsum("pti,ij,ptj->ij", forward[:, :-1], move, ahead)
    return forward * backward, moves
