"""One speculative round against one plain step: RoundCost, and R, the ratio everything turns on.

R = round / plain step at equal batch and context;  decode speedup = τ / R;  R is the break-even acceptance length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from simulator.cost.drafting import Drafter, draft_prefill_terms, drafting_terms, idle_terms
from simulator.cost.forward import CostTerm, ForwardCost, ForwardPass, PassCost, dominant_bound, uniform_pass
from simulator.cost.roofline import Bound
from simulator.cost.tape import Tape
from simulator.theory import break_even_acceptance_rate


@dataclass(frozen=True, slots=True)
class RoundCost:
    """Drafting, verification and overhead of one round, and the plain step it replaces. All terms sum to the totals.

    draft, verify, plain: terms. `verify` and `plain` hold sampling and host time too, so that like is compared with like.
    """

    num_speculative_tokens: int
    draft: tuple[CostTerm, ...]
    verify: tuple[CostTerm, ...]
    plain: tuple[CostTerm, ...]

    @property
    def draft_s(self) -> float:
        return sum(term.seconds for term in self.draft)

    @property
    def verify_s(self) -> float:
        return sum(term.seconds for term in self.verify)

    @property
    def round_s(self) -> float:
        return self.draft_s + self.verify_s

    @property
    def plain_step_s(self) -> float:
        return sum(term.seconds for term in self.plain)

    @property
    def r(self) -> float:
        """Round cost ratio = break-even acceptance length."""
        return self.round_s / self.plain_step_s

    @property
    def draft_share(self) -> float:
        return self.draft_s / self.round_s

    @property
    def verification_cost_ratio(self) -> float:
        """v = T(γ+1 rows) / T(1 row)."""
        return self.verify_s / self.plain_step_s

    @property
    def cost_coefficient(self) -> float:
        """c: one draft pass over one plain step. An output: it moves with batch."""
        return self.draft_s / self.num_speculative_tokens / self.plain_step_s

    @property
    def bound(self) -> Bound:
        return dominant_bound((*self.draft, *self.verify))

    def causes(self) -> list[tuple[str, float]]:
        """Terms of R - 1, largest first: (what, share of a plain step)."""
        plain = {term.name: term.seconds for term in self.plain}
        grown = [(f"verify: {t.name}", t.seconds - plain.get(t.name, 0.0)) for t in self.verify]
        grown += [(f"draft: {t.name.removeprefix('draft_')}", t.seconds) for t in self.draft]
        return sorted(((name, s / self.plain_step_s) for name, s in grown if s != 0), key=lambda item: -abs(item[1]))


@dataclass(frozen=True, slots=True)
class StepCost:
    """One engine step: `terms` (name, seconds) sum to `seconds`. Names of prompt work start with ``prefill``."""

    seconds: float
    terms: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class StepPricer:
    """Prices plain steps, rounds and mixed steps of one configuration. `drafter` None = no speculation."""

    target: ForwardCost
    drafter: Drafter | None = None
    _tapes: dict[tuple[int, int], Tape] = field(default_factory=dict, init=False, repr=False, compare=False)

    def round(self, gamma: int, sequences: int, context: float, proposal_rate: float = 1.0) -> RoundCost:
        """A round of `sequences` at equal `context`, beside the plain step.

        proposal_rate: share of sequences whose drafter proposes anything (n-gram); the others run one row.
        """
        assert self.drafter is not None
        window = self.target.window
        plain = self._pass_terms(uniform_pass(sequences, 1, context, window), speculative=False)
        tree = self.drafter.tree
        if tree is not None:
            verify = self._pass_terms(uniform_pass(sequences, tree.nodes, context, window), speculative=True)
        else:
            verify = self._verified(gamma, sequences, context, proposal_rate, plain)
        draft = drafting_terms(self.drafter, gamma, sequences, sequences * context)
        return RoundCost(gamma, tuple(draft), tuple(verify), tuple(plain))

    def _verified(
        self, gamma: int, sequences: int, context: float, proposal_rate: float, plain: list[CostTerm]
    ) -> list[CostTerm]:
        """Verification, on average over steps: those in which nobody has a proposal are plain steps."""
        some = 1 - (1 - proposal_rate) ** sequences
        if some == 0:
            return plain
        rows = 1 + gamma * proposal_rate / some
        asked = uniform_pass(sequences, rows, context, self.target.window)
        verify = self._pass_terms(asked, speculative=True)
        if some == 1:
            return verify
        missing = {term.name: term for term in plain}
        blended = [
            CostTerm(t.name, some * t.seconds + (1 - some) * (missing[t.name].seconds if t.name in missing else 0.0), t.bound)
            for t in verify
        ]
        only_plain = missing.keys() - {term.name for term in verify}
        return blended + [CostTerm(name, (1 - some) * missing[name].seconds, missing[name].bound) for name in sorted(only_plain)]

    def with_full_acceptance_rate(self, rate: float) -> StepPricer:
        """The same where `rate` of the rounds accept every draft."""
        return self if self.drafter is None else replace(self, drafter=replace(self.drafter, full_acceptance_rate=rate))

    def break_even_rate(
        self, gamma: int, batch: int, context: float, proposal_rate: float = 1.0, log_shift: float = 0.0
    ) -> float | None:
        """α* where τ(α*) = R·e^log_shift, a fixed point since full acceptance widens the next first pass in some engines.

        With proposals in a share s of the rounds, τ = 1 + s·(τ of a proposal - 1). None: no acceptance repays the round.
        """
        rate: float | None = 0.5
        for _ in range(20):
            full = (rate if rate is not None else 1.0) ** gamma
            r = self.with_full_acceptance_rate(full).round(gamma, batch, context, proposal_rate).r * math.exp(log_shift)
            needed = 1 + (r - 1) / proposal_rate if proposal_rate > 0 else math.inf
            found = break_even_acceptance_rate(needed, gamma)
            if found is None or rate is None or abs(found - rate) < 1e-6:
                return found
            rate = found
        return rate

    def plain(self, sequences: int, context: float) -> PassCost:
        """One plain step of `sequences` at equal `context`."""
        return PassCost(tuple(self._pass_terms(uniform_pass(sequences, 1, context, self.target.window), speculative=False)))

    def prefill_s(self, prompt_tokens: int, chunk_tokens: int) -> float:
        """Seconds of one prompt taken alone in chunks, draft's pass included where there is a drafter."""
        total_s = 0.0
        for before in range(0, prompt_tokens, chunk_tokens):
            new = min(chunk_tokens, prompt_tokens - before)
            total_s += self.price((), ((new, before),), int(before + new == prompt_tokens)).seconds
        return total_s

    def price(self, decode: Sequence[tuple[int, int]], prefill: Sequence[tuple[int, int]], prompts_finished: int) -> StepCost:
        """One engine step. decode: (context, drafted) per sequence; prefill: (new tokens, cached before) per chunk."""
        asked = self._asked(decode)
        drafting = [(context, drafted) for context, drafted in decode if drafted]
        if self.drafter is None or self.drafter.passes is None or not drafting:
            group = len(decode), asked.context_tokens
        else:
            group = len(drafting), sum(context for context, _ in drafting)
        gamma = max((drafted for _, drafted in drafting), default=0)
        terms = self._decode_terms(asked, gamma, *group)
        if prefill:
            terms += self._prefill_terms(asked, tuple(prefill), prompts_finished, terms, gamma > 0)
        return StepCost(_total(terms), tuple(terms))

    def price_alike(
        self,
        sequences: int,
        drafted: int,
        context_tokens: float,
        windowed_tokens: float,
        longest_tokens: float,
        prefill: Sequence[tuple[int, int]] = (),
        prompts_finished: int = 0,
    ) -> StepCost:
        """As `price`, for `sequences` that all verify `drafted` drafts, by the sums and the longest of their contexts.

        Several rounds at once: arrays of one number per round instead of floats, in the answer too.
        windowed_tokens: each context counts up to `window`; left unread where that is None.
        """
        contexts = (context_tokens, windowed_tokens, longest_tokens)
        tape = self._tapes.get((sequences, drafted))
        if tape is None:
            tape = self._tapes[sequences, drafted] = self._recorded(sequences, drafted, contexts)
        terms = tape.replay(contexts)
        if prefill:
            asked = self._alike(sequences, drafted, *contexts)
            terms += self._prefill_terms(asked, tuple(prefill), prompts_finished, terms, drafted > 0)
        return StepCost(_total(terms), tuple(terms))

    def _recorded(self, sequences: int, drafted: int, contexts: Sequence[float]) -> Tape:
        """The terms of a round for any contexts."""
        tape = Tape([float(context[0]) if isinstance(context, np.ndarray) else context for context in contexts])
        asked = self._alike(sequences, drafted, *cast(list[float], tape.inputs))
        return tape.keep(self._decode_terms(asked, drafted, sequences, asked.context_tokens))

    def _alike(self, sequences: int, drafted: int, context: float, windowed: float, longest: float) -> ForwardPass:
        rows = sequences * (1 + drafted)
        return ForwardPass(sequences, rows, context, windowed if self.window else context, longest, (), rows)

    @property
    def window(self) -> int | None:
        """The smallest attention window of the target, up to which `price_alike` wants each context counted."""
        return self.target.window

    def _decode_terms(self, asked: ForwardPass, gamma: int, drafting: int, drafting_context: float) -> list[tuple[str, float]]:
        """The decoding sequences, of which `drafting` draft up to `gamma` tokens."""
        if not asked.sequences:
            return []
        terms = self._pass_terms(asked, speculative=gamma > 0)
        if self.drafter is not None:
            if gamma or self.drafter.passes is None:
                terms += drafting_terms(self.drafter, gamma, drafting, drafting_context)
            else:
                terms += idle_terms(self.drafter, asked.sequences, asked.context_tokens)
        return [(term.name, term.seconds) for term in terms]

    def _asked(self, decode: Sequence[tuple[int, int]]) -> ForwardPass:
        window = self.target.window
        total = longest = drafted_tokens = windowed = 0
        for context, drafted in decode:
            total += context
            drafted_tokens += drafted
            if context > longest:
                longest = context
            if window:
                windowed += context if context < window else window
        rows = len(decode) + drafted_tokens
        return ForwardPass(len(decode), rows, total, windowed if window else total, longest, (), rows)

    def _prefill_terms(
        self,
        asked: ForwardPass,
        prefill: tuple[tuple[int, int], ...],
        finished: int,
        terms: list[tuple[str, float]],
        speculative: bool,
    ) -> list[tuple[str, float]]:
        """What the prompts add: the mixed pass less the same pass without them, and the draft's own prefill."""
        mixed = ForwardPass(
            asked.sequences,
            asked.rows,
            asked.context_tokens,
            asked.windowed_tokens,
            asked.longest_tokens,
            prefill,
            asked.logit_rows + finished,
        )
        decode_s = _total(terms)
        draft_s = sum(seconds for name, seconds in terms if name.startswith("draft"))
        mixed_s = sum(term.seconds for term in self._pass_terms(mixed, speculative))
        named = [("prefill", mixed_s - (decode_s - draft_s))]
        if self.drafter is not None:
            named += [(term.name, term.seconds) for term in draft_prefill_terms(self.drafter, prefill)]
        return named

    def _pass_terms(self, asked: ForwardPass, speculative: bool) -> list[CostTerm]:
        """The target's pass with sampling and the host's share of a step."""
        engine, hardware = self.target.engine, self.target.hardware
        requests = asked.sequences + len(asked.prefill)
        host_s = engine.step_overhead_s.value + requests * engine.request_overhead_s.value
        passes = (engine.rejection_passes if speculative else engine.sampler_passes).value
        logits_bytes = 4.0 * asked.logit_rows * self.target.architecture.vocab_size
        terms = [
            CostTerm("sampling", passes * logits_bytes / hardware.bandwidth_bytes_per_s, "memory"),
            CostTerm("host", host_s, "host"),
        ]
        if speculative:
            tree_s = engine.tree_round_overhead_s.value if self.drafter is not None and self.drafter.tree is not None else 0.0
            terms.append(CostTerm("round_overhead", engine.round_overhead_s.value + tree_s, "host"))
        terms += self.target.price(asked).terms
        return terms


def _total(terms: Sequence[tuple[str, float]]) -> float:
    """Term by term: what does not depend on contexts stands first, and is one number for many rounds."""
    total = 0.0
    for _, seconds in terms:
        total = total + seconds
    return total
