"""Laws under which requests differ: by their own α, by kind of text, by context length; and spreading a law over requests."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from simulator.acceptance.beta import beta_quantiles
from simulator.acceptance.laws import AcceptanceLaw, IndependentAcceptance, PerPositionAcceptance
from simulator.acceptance.path import AcceptancePath, Flags
from simulator.acceptance.rates import Rates, conditional_from_survival, survival_from_conditional
from simulator.acceptance.streams import UniformStream, request_stream
from simulator.theory import increasing_root

_BETA_NODES = 200
_SPREAD_CLASSES = 32
# Spread laws that are remembered: finding one takes tens of milliseconds, and a scenario asks for the same one often.
_REMEMBERED_SPREADS = 256


@dataclass(frozen=True, slots=True)
class BetaAcceptance(AcceptanceLaw):
    """One α per request, Beta distributed: `mean` over requests, `concentration` κ, so sd² = mean(1 - mean) / (κ + 1).

    Within a request acceptance is independent. Over rounds the first rate lies below `mean` and conditional rates rise
    with depth, the more so the larger γ: easy requests take fewer rounds.
    """

    mean: float
    concentration: float
    proposal_rate: float = field(default=1.0, kw_only=True)

    def conditional_rates(self, num_speculative_tokens: int) -> Rates:
        return conditional_from_survival(self._over_rounds(num_speculative_tokens)[1])

    def proposal_share(self, num_speculative_tokens: int) -> float:
        return self._over_rounds(num_speculative_tokens)[0]

    def path(self, request_id: int, output_tokens: int, seed: int, *, prompt_tokens: int = 0) -> AcceptancePath:
        shape = self.mean * self.concentration, (1 - self.mean) * self.concentration
        rate = float(request_stream(seed, b"acceptance-request", request_id).beta(*shape))
        law = IndependentAcceptance(rate, proposal_rate=self.proposal_rate)
        return law.path(request_id, output_tokens, seed, prompt_tokens=prompt_tokens)

    def _over_rounds(self, num_speculative_tokens: int) -> tuple[float, Rates]:
        points, weights = np.polynomial.legendre.leggauss(_BETA_NODES)
        rates = beta_quantiles(self.mean * self.concentration, (1 - self.mean) * self.concentration, (points + 1) / 2)
        survival = rates[:, None] ** np.arange(1, num_speculative_tokens + 1)
        return over_rounds(weights / 2, np.full(len(rates), self.proposal_rate), survival)


@dataclass(frozen=True, slots=True)
class MixtureAcceptance(AcceptanceLaw):
    """Each request follows one of several laws; `weights` are shares of requests (of equal output length), summing to 1."""

    weights: tuple[float, ...]
    laws: tuple[AcceptanceLaw, ...]

    def conditional_rates(self, num_speculative_tokens: int) -> Rates:
        return conditional_from_survival(self._over_rounds(num_speculative_tokens)[1])

    def proposal_share(self, num_speculative_tokens: int) -> float:
        return self._over_rounds(num_speculative_tokens)[0]

    @property
    def measured_up_to(self) -> int | None:
        limits = [law.measured_up_to for law in self.laws if law.measured_up_to is not None]
        return min(limits, default=None)

    def at_context(self, context_tokens: int) -> MixtureAcceptance:
        return MixtureAcceptance(self.weights, tuple(law.at_context(context_tokens) for law in self.laws), note=self.note)

    def path(self, request_id: int, output_tokens: int, seed: int, *, prompt_tokens: int = 0) -> AcceptancePath:
        drawn = request_stream(seed, b"acceptance-law", request_id).random()
        chosen = bisect_right(_upper_shares(self.weights), drawn)
        return self.laws[chosen].path(request_id, output_tokens, seed, prompt_tokens=prompt_tokens)

    def _over_rounds(self, num_speculative_tokens: int) -> tuple[float, Rates]:
        shares = np.array([law.proposal_share(num_speculative_tokens) for law in self.laws])
        survival = np.array([survival_from_conditional(law.conditional_rates(num_speculative_tokens)) for law in self.laws])
        return over_rounds(np.asarray(self.weights), shares, survival)


@lru_cache(_REMEMBERED_SPREADS)
def _upper_shares(weights: tuple[float, ...]) -> list[float]:
    """Where the share of each law ends and the next begins; the last ends at 1, which is not listed."""
    return list(accumulate(weights))[:-1]


def equal_mixture(laws: Sequence[AcceptanceLaw], note: str = "") -> MixtureAcceptance:
    """Requests spread evenly over the laws."""
    return MixtureAcceptance((1 / len(laws),) * len(laws), tuple(laws), note=note)


@dataclass(frozen=True, slots=True)
class ContextAcceptance(AcceptanceLaw):
    """α by context: `rates` holds (context tokens, α), read linearly in log context and held at both ends.

    Token t of a request has the context prompt_tokens + t. Asked without a context, the law answers for requests spread
    evenly over the measured contexts.
    """

    rates: tuple[tuple[int, float], ...]
    measured_at: int | None = field(default=None, kw_only=True)

    def at_context(self, context_tokens: int) -> IndependentAcceptance:
        rate = float(self._rates_at(np.array([context_tokens]))[0])
        return IndependentAcceptance(rate, measured_at=self.measured_at, note=self.note)

    def conditional_rates(self, num_speculative_tokens: int) -> Rates:
        return equal_mixture([IndependentAcceptance(rate) for _, rate in self.rates]).conditional_rates(num_speculative_tokens)

    @property
    def measured_up_to(self) -> int | None:
        return self.measured_at

    def path(self, request_id: int, output_tokens: int, seed: int, *, prompt_tokens: int = 0) -> AcceptancePath:
        uniforms = UniformStream(seed, b"acceptance", request_id)

        def flags(positions: int, depth: int) -> Flags:
            rates = self._rates_at(prompt_tokens + np.arange(positions + depth))
            agree: Flags = uniforms.first(positions + depth) < rates
            return agree

        return AcceptancePath(flags, output_tokens)

    def _rates_at(self, context_tokens: npt.NDArray[np.int64]) -> Rates:
        contexts, rates = zip(*self.rates, strict=True)
        found: Rates = np.interp(np.log(np.maximum(context_tokens, 1)), np.log(contexts), rates)
        return found


def over_rounds(weights: Rates, proposal_shares: Rates, survival: Rates) -> tuple[float, Rates]:
    """(share of rounds with a proposal, survival rates) of a population of requests, counted over all its rounds.

    weights (n,): share of output tokens; proposal_shares (n,); survival (n, γ). A request has weight / τ rounds.
    """
    rounds = weights / (1 + proposal_shares * survival.sum(axis=1))
    proposals = rounds * proposal_shares
    total = proposals.sum()
    mean: Rates = (proposals if total > 0 else rounds) @ survival / (total if total > 0 else rounds.sum())
    return float(total / rounds.sum()), mean


@lru_cache(_REMEMBERED_SPREADS)
def spread_over_requests(law: PerPositionAcceptance, standard_deviation: float) -> MixtureAcceptance:
    """The same τ at every measured γ, from requests that differ: sd of the first draft's rate over requests.

    Requests fall into equally large classes. Survival rates of one depth are Beta distributed over the classes, in the
    same order at every depth, with the means at which τ over all rounds is the law's at γ = 1, 2, … in turn. Raises
    ValueError where so wide a spread cannot give these τ.
    """
    survival = survival_from_conditional(law.conditional_acceptance_rates)
    spare = survival[0] * (1 - survival[0]) - standard_deviation**2
    if spare <= 0:
        raise ValueError(f"must be below {np.sqrt(survival[0] * (1 - survival[0])):.3g} about a first rate of {survival[0]:.3g}")
    concentration = spare / standard_deviation**2
    accepted, mean, by_depth = np.zeros(_SPREAD_CLASSES), 1.0, []
    for target in np.cumsum(survival):
        mean, classes = _classes_to(accepted, mean, concentration, float(target), law.proposal_rate)
        by_depth.append(classes)
        accepted = accepted + classes
    rates = [tuple(conditional_from_survival(column).tolist()) for column in np.array(by_depth).T]
    return equal_mixture([replace(law, conditional_acceptance_rates=row, note="") for row in rates], note=law.note)


def _classes_to(
    accepted: Rates, highest: float, concentration: float, target: float, proposal_rate: float
) -> tuple[float, Rates]:
    """(mean survival, at most `highest`, survival of each class) that bring accepted drafts per proposal over all rounds up to
    `target`."""
    classes: Rates | None = None

    def excess(mean: float) -> float:
        nonlocal classes
        classes = _beta_classes(mean, concentration, classes)
        emitted = 1 + proposal_rate * (accepted + classes)
        return float(1 / np.mean(1 / emitted)) - 1 - proposal_rate * target

    if excess(highest) < -1e-9:
        raise ValueError(f"must be smaller: requests that differ so much cannot accept {target:.3g} drafts per round on average")
    mean = increasing_root(excess, 0.0, highest)
    return mean, _beta_classes(mean, concentration, classes)


def _beta_classes(mean: float, concentration: float, near: Rates | None = None) -> Rates:
    """The middles of equally large classes of a Beta distribution. near: of one much like it."""
    if not 0 < mean < 1:
        return np.full(_SPREAD_CLASSES, mean)
    middles = (np.arange(_SPREAD_CLASSES) + 0.5) / _SPREAD_CLASSES
    return beta_quantiles(mean * concentration, (1 - mean) * concentration, middles, near)
