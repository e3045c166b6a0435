"""StepPricer: what plain steps, speculative rounds and mixed steps of one configuration take."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Literal, NamedTuple, cast

from simulator.cost.alike import AlikeRounds, PromptsBeside
from simulator.cost.cache_groups import cache_groups
from simulator.cost.drafting import FUSING_METHODS, LAUNCH_WAIT, Drafter, draft_prefill_terms, drafting_terms, idle_terms
from simulator.cost.forward import ForwardCost
from simulator.cost.forward_pass import ForwardPass, uniform_pass
from simulator.cost.parallelism import fullest_prompts, share
from simulator.cost.pipeline import bubble
from simulator.cost.roofline import logits_s
from simulator.cost.round import RoundCost
from simulator.cost.step_scale import AS_PRICED, UNOVERLAPPED, StepScale
from simulator.cost.tape import Tape, added, larger
from simulator.cost.terms import CostTerm, PassCost
from simulator.serving_engine import ServingEngine
from simulator.theory import break_even_acceptance_rate


class StepCost(NamedTuple):
    """One engine step: `terms` (name, seconds) sum to `seconds`. Names of prompt work start with ``prefill``."""

    seconds: float
    terms: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class StepPricer:
    """Prices plain steps, rounds and mixed steps of one configuration. `drafter` None = no speculation.

    drafts_at: tokens that the policy drafts while so many sequences decode, so that no text is searched where it is off; None:
    always. scale: of the decoding part of engine steps (`price`, `alike`), beside what the formulas say.
    """

    target: ForwardCost
    drafter: Drafter | None = None
    drafts_at: Callable[[int], int] | None = None
    scale: StepScale = AS_PRICED
    _alike_rounds: dict[tuple[int, int], AlikeRounds | None] = field(default_factory=dict, init=False, repr=False, compare=False)
    _prompts_by_drafts: dict[int, PromptsBeside] = field(default_factory=dict, init=False, repr=False, compare=False)

    def round(self, gamma: int, sequences: int, context: float, proposal_rate: float = 1.0) -> RoundCost:
        """A round of `sequences` at equal `context`, beside the plain step.

        Over several ranks and stages both are the time in which every sequence of the deployment moves on once: that of the
        fullest rank, with a microbatch in each stage.
        proposal_rate: share of sequences whose drafter proposes anything (n-gram); the others run one row.
        """
        assert self.drafter is not None
        window = self.target.window
        sequences, in_flight, load = self._share(sequences)
        plain = self._undrafted_terms(uniform_pass(sequences, 1, context, window)._replace(load=load))
        tree = self.drafter.tree
        if tree is not None:
            asked = uniform_pass(sequences, tree.nodes, context, window)._replace(load=load)
            verify = self._pass_terms(asked, speculative=True)
        else:
            verify = self._verified(gamma, sequences, context, proposal_rate, plain, load)
        draft = drafting_terms(self.drafter, gamma, sequences, sequences * context)
        draft = self._exposed(draft, verify, gamma)
        verify = verify + bubble(self.target, self.drafter, in_flight, verify, draft)
        return RoundCost(
            gamma, tuple(draft), tuple(verify), tuple(plain + bubble(self.target, self.drafter, in_flight, plain, []))
        )

    def _share(self, sequences: int) -> tuple[int, int, float]:
        """(sequences of the fullest rank's microbatch, microbatches in flight, load of the mean rank over the fullest)."""
        beyond = self.target.parallelism
        ranks = beyond.data_parallel_size
        rank = share(sequences, ranks)
        in_flight = beyond.microbatches(rank, self.target.engine)
        each = share(rank, in_flight)
        # A rank without a sequence runs one empty row, to keep step with the others.
        return each, in_flight, min(max(sequences, ranks) / (ranks * in_flight * max(each, 1)), 1.0)

    def _exposed(self, draft: list[CostTerm], verify: Sequence[CostTerm], gamma: int) -> list[CostTerm]:
        """Drafting terms as far as the round waits for them: a device of its own may draft ahead during verification, and passes
        without a graph are launched while the device verifies."""
        assert self.drafter is not None
        remote = self.drafter.remote
        if any(term.name == LAUNCH_WAIT for term in draft):
            device_s = added([term.seconds for term in verify if term.bound != "host"])
            waited = [term._replace(seconds=larger(term.seconds - device_s, 0.0)) for term in draft if term.name == LAUNCH_WAIT]
            draft = [term for term in draft if term.name != LAUNCH_WAIT] + waited
        if remote is None or not remote.overlap or gamma == 0:
            return draft
        draft_s, verify_s = added([term.seconds for term in draft]), added([term.seconds for term in verify])
        kept = remote.exposed_share(draft_s, verify_s, self.drafter.full_acceptance_rate, gamma)
        return [term._replace(seconds=kept * term.seconds) for term in draft]

    def _verified(
        self, gamma: int, sequences: int, context: float, proposal_rate: float, plain: list[CostTerm], load: float
    ) -> list[CostTerm]:
        """Verification, on average over steps: those in which nobody has a proposal are plain steps."""
        some = 1 - (1 - proposal_rate) ** sequences
        if some == 0:
            return plain
        rows = 1 + gamma * proposal_rate / some
        asked = uniform_pass(sequences, rows, context, self.target.window)._replace(load=load)
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

    def with_engine(self, engine: ServingEngine) -> StepPricer:
        """The same under other constants of the same engine."""
        drafter = self.drafter
        if drafter is not None:
            passes = None if drafter.passes is None else drafter.passes.with_engine(engine)
            drafter = replace(drafter, engine=engine, passes=passes)
        return StepPricer(self.target.with_engine(engine), drafter)

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
        """One plain step of `sequences` at equal `context`, as in `round`."""
        sequences, in_flight, load = self._share(sequences)
        asked = uniform_pass(sequences, 1, context, self.target.window)._replace(load=load)
        terms = self._undrafted_terms(asked)
        return PassCost(tuple(terms + bubble(self.target, self.drafter, in_flight, terms, [])))

    def prefill_s(self, prompt_tokens: int, chunk_tokens: int) -> float:
        """Seconds of one prompt taken alone in chunks, draft's pass included where there is a drafter."""
        total_s = 0.0
        for before in range(0, prompt_tokens, chunk_tokens):
            new = min(chunk_tokens, prompt_tokens - before)
            total_s += self.price((), ((new, before),), int(before + new == prompt_tokens)).seconds
        return total_s

    def prefill_s_each(self, prompt_tokens: int, chunk_tokens: int, waiting: int) -> float:
        """Seconds of one of equal prompts, of which as many as wait and fit share a step; alone in chunks where none do."""
        together = min(chunk_tokens // prompt_tokens, waiting)
        if together < 2:
            return self.prefill_s(prompt_tokens, chunk_tokens)
        return self.price((), ((prompt_tokens, 0),) * together, together).seconds / together

    def price(
        self,
        decode: Sequence[tuple[int, int]],
        prefill: Sequence[tuple[int, int]],
        prompts_finished: int,
        draft_prefill: Sequence[tuple[int, int]] = (),
    ) -> StepCost:
        """One engine step. decode: (context, drafted) per sequence; prefill: (new tokens, cached before) per chunk, and
        draft_prefill what the drafter computes of them where that is not the same.

        Over several ranks and stages it is the step of the whole deployment, as in `round`.
        """
        ranks = self.target.parallelism.data_parallel_size
        all_rows, tokens = len(decode) + sum(d for _, d in decode), sum(new for new, _ in prefill)
        decode, prefill, prompts_finished, in_flight = self._fullest(decode, prefill, prompts_finished)
        ways = in_flight * ranks
        asked = self._asked(decode)
        if ways > 1:
            own_tokens = asked.rows + sum(new for new, _ in prefill)
            mixed_load = min(max(all_rows + tokens, ranks) / (ways * max(own_tokens, 1)), 1.0)
            asked = asked._replace(load=min(max(all_rows, ranks) / (ways * max(asked.rows, 1)), 1.0))
        else:
            mixed_load = 1.0
        drafting = [(context, drafted) for context, drafted in decode if drafted]
        if self.drafter is None or self.drafter.passes is None or not drafting:
            group = len(decode), asked.context_tokens
        else:
            group = len(drafting), sum(context for context, _ in drafting)
        gamma = max((drafted for _, drafted in drafting), default=0)
        terms = self._decode_terms(asked, gamma, *group)
        own = _named(terms)
        if in_flight > 1:
            draft = [term for term in terms if term.name.startswith("draft")]
            verify = [term for term in terms if not term.name.startswith("draft")]
            terms += bubble(self.target, self.drafter, in_flight, verify, draft)
        named = self.scale.scaled(_named(terms), gamma > 0)
        if prefill:
            mixed = asked._replace(prefill=tuple(prefill), logit_rows=asked.logit_rows + prompts_finished, load=mixed_load)
            named += self._prefill_terms(mixed, _target_s(own), bool(drafting), draft_prefill)
        return StepCost(added(seconds for _, seconds in named), tuple(named))

    @property
    def sums_suffice(self) -> bool:
        """Whether `alike` holds: not where ranks or microbatches share the sequences, since the fullest part's count."""
        beyond = self.target.parallelism
        return beyond.data_parallel_size * beyond.microbatches(beyond.pipeline_parallel_size, self.target.engine) == 1

    def alike(self, sequences: int, drafted: int) -> AlikeRounds | None:
        """The cost of rounds of `sequences` that all verify `drafted` drafts; None where a formula must know the contexts."""
        found = self._alike_rounds.get((sequences, drafted), ...)
        if found is ...:
            found = self._alike_rounds[sequences, drafted] = self._recorded(sequences, drafted)
        return found

    def _recorded(self, sequences: int, drafted: int) -> AlikeRounds | None:
        window = self.window
        tape = Tape((1000.0 * sequences, float(sequences * min(1000, window or 1000)), 1000.0))
        try:
            context, windowed, longest = cast(list[float], tape.inputs)
            asked = self._alike_pass(sequences, drafted, context, windowed, longest)
            own = _named(self._decode_terms(asked, drafted, sequences, asked.context_tokens))
            beside = self._prompts_by_drafts.get(drafted)
            if beside is None:
                # By formulas that do not know this pricer, so that no reference cycle keeps it and all that it remembers.
                beside = self._prompts_by_drafts[drafted] = PromptsBeside(partial(replace(self)._prompts_beside, drafted))
            return AlikeRounds(tape, self.scale.scaled(own, drafted > 0), _target_s(own), partial(beside, sequences))
        except TypeError:
            return None

    def _prompts_beside(
        self,
        drafted: int,
        sequences: int,
        context: float,
        windowed: float,
        longest: float,
        target_s: float,
        prompts_finished: int,
        prefill: Sequence[tuple[int, int]],
        draft_prefill: Sequence[tuple[int, int]] = (),
    ) -> list[tuple[str, float]]:
        _, prefill, prompts_finished, _ = self._fullest((), prefill, prompts_finished)
        mixed = self._alike_pass(sequences, drafted, context, windowed, longest, tuple(prefill), prompts_finished)
        return self._prefill_terms(mixed, target_s, drafted > 0, draft_prefill)

    def _alike_pass(
        self,
        sequences: int,
        drafted: int,
        context: float,
        windowed: float,
        longest: float,
        prefill: tuple[tuple[int, int], ...] = (),
        prompts_finished: int = 0,
    ) -> ForwardPass:
        rows = sequences * (1 + drafted)
        windowed = windowed if self.window else context
        return ForwardPass(sequences, rows, context, windowed, longest, prefill, rows + prompts_finished)

    @property
    def window(self) -> int | None:
        """The smallest attention window of the target, up to which `alike` wants each context counted."""
        return self.target.window

    def _decode_terms(self, asked: ForwardPass, gamma: int, drafting: int, drafting_context: float) -> list[CostTerm]:
        """The decoding sequences, of which `drafting` draft up to `gamma` tokens."""
        if not asked.sequences:
            return []
        terms = self._pass_terms(asked, speculative=gamma > 0)
        if self.drafter is None:
            return terms
        if self.drafter.passes is None:
            if gamma or self.drafts_at is None or self.drafts_at(asked.sequences):
                terms += drafting_terms(self.drafter, 1, drafting, drafting_context)
        elif gamma:
            terms += self._exposed(drafting_terms(self.drafter, gamma, drafting, drafting_context), terms, gamma)
        elif self.drafter.remote is None:
            terms += idle_terms(self.drafter, asked.sequences, asked.context_tokens)
        return terms

    def _fullest(
        self, decode: Sequence[tuple[int, int]], prefill: Sequence[tuple[int, int]], prompts_finished: int
    ) -> tuple[Sequence[tuple[int, int]], Sequence[tuple[int, int]], int, int]:
        """(decode, prefill, prompts finished) of the fullest rank and microbatch, and the microbatches in flight."""
        beyond, engine = self.target.parallelism, self.target.engine
        ranks = beyond.data_parallel_size
        if ranks * beyond.pipeline_parallel_size == 1:
            return decode, prefill, prompts_finished, 1
        rank = decode[::ranks]
        ways = ranks * beyond.microbatches(beyond.pipeline_parallel_size, engine)
        prompts = fullest_prompts(prefill, ways, engine.max_num_batched_tokens)
        in_flight = beyond.microbatches(max(len(rank), share(len(prefill), ranks)), engine)
        return rank[::in_flight], prompts, min(share(prompts_finished, ways), len(prompts)), in_flight

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
        self, mixed: ForwardPass, target_s: float, speculative: bool, draft_prefill: Sequence[tuple[int, int]] = ()
    ) -> list[tuple[str, float]]:
        """What the prompts add: the mixed pass less `target_s`, the pass without them, and the draft's own prefill."""
        drafts_of = tuple(self._fullest((), draft_prefill, 0)[1]) or mixed.prefill
        if self.drafter is not None and self.target.engine.drafting_prompts_alone:
            return self._prompts_alone(mixed.prefill, drafts_of)
        mixed_s = added([term.seconds for term in self._pass_terms(mixed, speculative)])
        named = [("prefill", mixed_s - target_s)]
        if speculative and self.beside_rounds_s:
            named.append(("prefill_beside_rounds", self.beside_rounds_s))
        if self.drafter is not None:
            drafts = draft_prefill_terms(self.drafter, drafts_of, mixed.load)
            # A device of its own takes in the prompt while the target does.
            beside_s = named[0][1] if self.drafter.remote is not None else 0.0
            named += [(term.name, larger(term.seconds - beside_s, 0.0)) for term in drafts]
        return named

    def _prompts_alone(
        self, prefill: tuple[tuple[int, int], ...], drafts_of: tuple[tuple[int, int], ...]
    ) -> list[tuple[str, float]]:
        """Each chunk as a pass of its own, and each of the draft's, of which the fullest rank may have another number."""
        assert self.drafter is not None
        named = []
        for chunk in prefill:
            asked = ForwardPass(0, 0, 0.0, 0.0, 0.0, (chunk,), 1)
            named.append(("prefill", added([term.seconds for term in self._pass_terms(asked, False)])))
        for chunk in drafts_of:
            named += [(term.name, term.seconds) for term in draft_prefill_terms(self.drafter, (chunk,))]
        return named

    def _pass_terms(self, asked: ForwardPass, speculative: bool) -> list[CostTerm]:
        """The target's pass with sampling and the host's share of a step."""
        terms = self._undrafted_terms(asked, speculative)
        engine, drafter = self.target.engine, self.drafter
        by_method = drafter is not None and drafter.method in engine.unoverlapped_methods
        if not by_method and not self._unoverlapped_target:
            return terms
        seconds = self._in_the_open("round") if speculative else 0.0
        if by_method and not self._unoverlapped_target:
            seconds += self._in_the_open("step") + self._requests(asked) * self._in_the_open("request")
        return [*terms, CostTerm(UNOVERLAPPED, seconds, "host")]

    @cached_property
    def _unoverlapped_target(self) -> bool:
        """Whether the engine prepares no step ahead under this target, whatever drafts."""
        kinds = self.target.engine.unoverlapped_layers
        return bool(kinds) and any(group.attention in kinds for group in self.target.groups)

    def _in_the_open(self, part: Literal["step", "round", "request", "recurrent"]) -> float:
        """What the host takes of a step that was not prepared ahead."""
        told = self.target.engine.unoverlapped_s.get(part)
        return 0.0 if told is None else self.target.host_time_factor * told.value

    def _requests(self, asked: ForwardPass) -> float:
        return asked.sequences + len(asked.prefill)

    def _undrafted_terms(self, asked: ForwardPass, speculative: bool = False) -> list[CostTerm]:
        """The same where the engine's steps overlap as they do without a drafter."""
        engine, hardware = self.target.engine, self.target.hardware
        requests = self._requests(asked)
        slower = self.target.host_time_factor
        host_s = slower * (engine.step_overhead_s.value + requests * engine.request_overhead_s.value)
        passes = (engine.rejection_passes if speculative else engine.sampler_passes).value
        sampling_s = logits_s(asked.logit_rows, self.target.architecture.vocab_size, passes, hardware)
        terms = [
            CostTerm("sampling", sampling_s, "memory"),
            CostTerm("host", host_s, "host"),
        ]
        if self._unoverlapped_target:
            open_s = self._in_the_open("step") + self._in_the_open("recurrent") + requests * self._in_the_open("request")
            terms.append(CostTerm("unoverlapped_step", open_s, "host"))
        if speculative:
            terms += self._round_overheads()
        workers = self.target.tensor_parallel_size * self.target.parallelism.pipeline_parallel_size
        if engine.broadcast_s is not None and workers > 1:
            each_s = engine.broadcast_request_s.value if engine.broadcast_request_s is not None else 0.0
            terms.append(CostTerm("broadcast", slower * (engine.broadcast_s.value + requests * each_s), "host"))
        passed = self.target.price(asked).terms
        terms += passed
        if self.metadata_s and (speculative or asked.prefill):
            device_s = added([term.seconds for term in passed if term.bound != "host"])
            terms.append(CostTerm("metadata_wait", larger(self.metadata_s - device_s, 0.0), "host"))
        return terms

    @cached_property
    def metadata_s(self) -> float:
        """Host time to prepare the cache groups of one step under speculation, which runs beside the device's work.

        The same on every host: runs of EAGLE-3 on Gemma 4 beside A100 show no wait that slower hosts would make.
        """
        each = self.target.engine.cache_group_overhead_s
        if each is None or self.drafter is None:
            return 0.0
        passes = self.drafter.passes if self.drafter.has_cache and self.drafter.remote is None else None
        groups = cache_groups(self.target.architecture, passes.architecture if passes is not None else None)
        return groups * each.value if groups > 1 else 0.0

    @cached_property
    def beside_rounds_s(self) -> float:
        """What a step takes longer for holding prompts and rounds at once: recurrent layers are launched kernel by kernel, those
        of rounds and those of prompts apart, and every cache group prepares both."""
        engine = self.target.engine
        times = engine.mixed_recurrent_launches
        if times is None or self.drafter is None or not self.target.recurrent_layers:
            return 0.0
        return times.value * self.target.launched_recurrent_layers * self.target.launch_per_layer_s + self.metadata_s

    def _round_overheads(self) -> list[CostTerm]:
        """What the host adds to a speculative round, and bringing recurrent states back to the last accepted position."""
        engine, drafter, slower = self.target.engine, self.drafter, self.target.host_time_factor
        seconds = engine.round_overhead_s.value
        if drafter is not None and drafter.tree is not None:
            seconds += engine.tree_round_overhead_s.value
        if drafter is not None and drafter.method in FUSING_METHODS:
            seconds += engine.feature_overhead_s.value
        terms = [CostTerm("round_overhead", slower * seconds, "host")]
        if self.target.recurrent_layers:
            rollback_s = slower * self.target.recurrent_layers * engine.state_rollback_s.value
            terms.append(CostTerm("state_rollback", rollback_s, "host"))
        return terms


def _named(terms: Sequence[CostTerm]) -> list[tuple[str, float]]:
    return [(term.name, term.seconds) for term in terms]


def _target_s(terms: Sequence[tuple[str, float]]) -> float:
    """What all terms take besides drafting."""
    draft_s = added(seconds for name, seconds in terms if name.startswith("draft"))
    return added(seconds for _, seconds in terms) - draft_s
