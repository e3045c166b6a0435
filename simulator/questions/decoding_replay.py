"""What the simulator says of a decoding loop: traces replayed by the serving engine's own event loop, passes priced by a table.

The scheduler plans each step, the acceptance trace says what it accepts, and every step is taken apart into the passes that a
loop with KV caches runs for it:

    prefill         the target over the prompts; yields the first token of each
    draft prefill   the draft's first pass, over prompt and first token, where it has a cache of its own
    catch-up        a first pass of a round over two tokens, after a round whose drafts were all accepted
    draft           any other draft pass, also of a head, or a search of the text
    verify          the target over the last token and the drafts; `decode` where nothing is ever drafted
    sampling        choosing and accepting tokens, and taking rejected ones back from the caches

Nothing here is a fitted law of cost: a pass takes what passes of its model, batch, new tokens and context were seen to take
(between two measured contexts: linear). Laws say only how many passes of which kind there are. In a batch the new tokens of all
sequences share slots of one cache, as wide as the widest, so that short proposals cost as much as the longest beside them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from calibration.decoding_pass import TARGET, DecodingPass, PassTime
from simulator.acceptance import AcceptancePath, TraceAcceptance
from simulator.serving import BatchingRules, ServingResult, serve
from simulator.workload import Request

# search: looks its own text up. own_cache: a model that must see the prompt and every accepted token itself. shared_cache: some
# of the target's first layers, which read the target's cache. heads: all drafts from the target's last state at once. recurrence:
# a head with a cache of its own, fed each round with the target's states of the tokens just emitted.
Drafting = Literal["search", "own_cache", "shared_cache", "heads", "recurrence"]
TERMS = ("prefill", "decode", "draft prefill", "catch-up", "draft", "verify", "sampling")
# What a request pays once; the rest is paid by round or step.
ONCE = ("prefill", "draft prefill")
_PLENTY = 1 << 20


@dataclass(frozen=True, slots=True)
class Decoding:
    """A way to decode. gamma 0: plain. drafter: the model of its passes, `TARGET` where the target drafts for itself."""

    gamma: int = 0
    drafting: Drafting = "search"
    drafter: str = ""


@dataclass(frozen=True, slots=True)
class TracedPrompt:
    """A prompt's length and the acceptance along its output; `max_new_tokens` is what a loop would have been allowed."""

    prompt_tokens: int
    max_new_tokens: int
    trace: TraceAcceptance

    @property
    def output_tokens(self) -> int:
        return int(self.trace.lengths[0])


@dataclass(frozen=True, slots=True)
class Replay:
    """One replay: (proposed, accepted) of every round by sequence, passes by (pass, context), seconds by term.

    steps: rounds, or plain steps, of the batch.
    """

    rounds: tuple[tuple[tuple[int, int], ...], ...]
    passes: Counter[tuple[DecodingPass, int]]
    terms: dict[str, float]
    steps: int
    seconds: float


class PassTimes(Protocol):
    """Where the price of a pass comes from."""

    def time(self, asked: DecodingPass, context: float) -> PassTime: ...


class UnitTimes:
    """Every pass takes a second: what a replay is made of does not depend on what it costs."""

    def time(self, asked: DecodingPass, context: float) -> PassTime:  # noqa: ARG002
        return PassTime(1.0, 0.0, 0.0)


def replay(prompts: Sequence[TracedPrompt], decoding: Decoding, times: PassTimes, batched: bool) -> Replay:
    """Decodes the prompts together from time 0 on. `batched`: over one masked cache; else there must be one prompt.

    Raises KeyError where `times` lacks a pass, ValueError for several prompts that are not batched.
    """
    if len(prompts) != 1 and not batched:
        raise ValueError(f"several prompts are decoded in a batch (got {len(prompts)})")
    pricer = _LoopPricer(decoding, times, batched)
    paths = [_Path(prompt, index, pricer) for index, prompt in enumerate(prompts)]
    rules = BatchingRules(
        max_num_seqs=len(prompts), max_num_batched_tokens=_PLENTY, max_model_len=_PLENTY, total_blocks=_PLENTY
    )  # fmt: skip
    requests = [Request(index, 0.0, prompt.prompt_tokens, prompt.output_tokens) for index, prompt in enumerate(prompts)]
    # The readable engine asks, prices and accepts step by step, which the pricer follows along.
    result = serve(requests, rules, pricer, lambda request: paths[request.request_id], lambda _: decoding.gamma, readable=True)
    return _summed(result, paths, pricer)


def _summed(result: ServingResult, paths: Sequence[_Path], pricer: _LoopPricer) -> Replay:
    return Replay(
        rounds=tuple(tuple(path.rounds) for path in paths),
        passes=pricer.passes,
        terms=dict(result.term_seconds),
        steps=int((result.steps.column("decode_sequences") > 0).sum()),
        seconds=float(result.steps.column("seconds").sum()),
    )


class _Path:
    """One sequence's acceptance, cut at the token budget as a loop cuts it, which cannot know where the output will end."""

    def __init__(self, prompt: TracedPrompt, number: int, pricer: _LoopPricer):
        self.prompt, self.pricer = prompt, pricer
        self.trace: AcceptancePath = prompt.trace.path(number, prompt.output_tokens, 0)
        self.rounds: list[tuple[int, int]] = []
        self.draft_holds = 0  # tokens of the text in the draft's cache

    def proposed(self, position: int, num_speculative_tokens: int) -> int:
        wanted = min(num_speculative_tokens, self.prompt.max_new_tokens - position - 1)
        drafts = self.trace.proposed(position, wanted) if wanted else 0
        self.rounds.append((drafts, 0))
        self.pricer.round_of.append((self, wanted))
        return drafts

    def accepted(self, position: int, drafted: int) -> int:
        count = min(self.trace.accepted(position, drafted), self.prompt.output_tokens - position)
        self.rounds[-1] = (drafted, count)
        return count


@dataclass(frozen=True, slots=True)
class _StepCost:
    terms: tuple[tuple[str, float], ...]

    @property
    def seconds(self) -> float:
        return sum(seconds for _, seconds in self.terms)


@dataclass
class _LoopPricer:
    """Prices a step as the passes of a decoding loop.

    round_of: the paths asked for drafts since the last step, in the order of the batch, and the drafts each could use.
    """

    decoding: Decoding
    times: PassTimes
    batched: bool
    passes: Counter[tuple[DecodingPass, int]] = field(default_factory=Counter)
    round_of: list[tuple[_Path, int]] = field(default_factory=list)
    _before: list[tuple[_Path, int]] = field(default_factory=list)
    _slots: int = 0  # of the target's cache
    _draft_slots: int = 0
    _drafted_before: bool = False
    _terms: list[tuple[str, float]] = field(default_factory=list)

    def price(self, decode: Sequence[tuple[int, int]], prefill: Sequence[tuple[int, int]], prompts_finished: int) -> _StepCost:
        """One step of the engine; all prompts come first, in a step of their own."""
        self._terms = []
        if prefill:
            if decode or prompts_finished != len(prefill):
                raise ValueError("a decoding loop takes all prompts at once, before anything else")
            self._prefill([tokens for tokens, _ in prefill])
        elif self.decoding.gamma:
            self._round(decode)
        else:
            self._pass("decode", TARGET, len(decode), 1, 1, self._target_context(decode), cropped=self.batched)
            self._slots += 1
        return _StepCost(tuple(self._terms))

    def _prefill(self, tokens: list[int]) -> None:
        width = max(tokens)
        self._pass("prefill", TARGET, len(tokens), width, 1, 0, cropped=self.batched, prompt=True)
        self._slots = width

    def _round(self, decode: Sequence[tuple[int, int]]) -> None:
        self._settle()
        sequences, self.round_of = self.round_of, []
        context = self._target_context(decode)
        if self.decoding.drafting == "search":
            self._search(sequences)
        elif self.decoding.drafting == "heads":
            self._heads(sequences, max(drafts for _, drafts in decode))
        elif self.decoding.drafting == "recurrence":
            self._recurrence(sequences, [held for held, _ in decode])
        else:
            self._draft(sequences, [held + 1 for held, _ in decode], context)
        width = 1 + max(drafts for _, drafts in decode)
        self._pass("verify", TARGET, len(decode), width, width, context, cropped=True)
        self._before = sequences

    def _settle(self) -> None:
        """What the last round left in the caches of a batch: slots up to the last one that any sequence keeps."""
        rounds = [path.rounds[-2 if any(path is now for now, _ in self.round_of) else -1] for path, _ in self._before]
        if not rounds:
            return
        width = 1 + max(drafts for drafts, _ in rounds)
        self._slots += max(width - drafts + accepted for drafts, accepted in rounds)
        if self.decoding.drafting == "own_cache":
            self._draft_slots += max(min(accepted, max(drafts - 1, 0)) for drafts, accepted in rounds)

    def _search(self, sequences: Sequence[tuple[_Path, int]]) -> None:
        for _, wanted in sequences:
            if wanted or self.batched:
                asked = DecodingPass(self.decoding.drafter, 1, False, self.decoding.gamma, 0)
                self._terms.append(("draft", self._count(asked, 0).forward_s))

    def _heads(self, sequences: Sequence[tuple[_Path, int]], drafts: int) -> None:
        if drafts:
            self._pass("draft", self.decoding.drafter, len(sequences), 1, drafts, 0)

    def _recurrence(self, sequences: Sequence[tuple[_Path, int]], states: list[int]) -> None:
        """A first pass over the states the target has left since the last round; what drafts leave is cut with the round."""
        passes = max(wanted for _, wanted in sequences)
        if not passes:
            return
        rows = max(s - path.draft_holds for (path, wanted), s in zip(sequences, states, strict=True) if wanted)
        context = self._draft_slots if self.batched else sequences[0][0].draft_holds
        for step in range(passes):
            prompt = step == 0 and not self._drafted_before
            self._pass(
                "draft prefill" if prompt else "draft", self.decoding.drafter, len(sequences), 1 if step else rows, 1,
                0 if prompt else context, cropped=step == passes - 1, prompt=prompt,
            )  # fmt: skip
            context += 1 if step else rows
        self._drafted_before = True
        self._draft_slots += rows
        for (path, wanted), s in zip(sequences, states, strict=True):
            if wanted:
                path.draft_holds = s

    def _draft(self, sequences: Sequence[tuple[_Path, int]], texts: list[int], target_context: int) -> None:
        """As many passes as the longest proposal; every sequence still in the batch takes part in each."""
        own, passes = self.decoding.drafting == "own_cache", max(wanted for _, wanted in sequences)
        if not passes:
            return
        first_rows, context = 1, target_context
        if own:
            held = [min(path.draft_holds, text - 1) for (path, _), text in zip(sequences, texts, strict=True)]
            first_rows = max(t - h for (_, wanted), t, h in zip(sequences, texts, held, strict=True) if wanted)
            context = self._draft_slots if self.batched else held[0]
        for step in range(passes):
            prompt = own and step == 0 and not self._drafted_before
            rows = 1 if step else first_rows
            term = "draft" if rows == 1 else "draft prefill" if prompt else "catch-up"
            # One cut of the draft's cache a round.
            last = step == passes - 1
            self._pass(
                term, self.decoding.drafter, len(sequences), rows, 1, 0 if prompt else context, cropped=last, prompt=prompt
            )  # fmt: skip
            context += rows
        if own:
            self._drafted_before = True
            self._draft_slots += first_rows
            self._keep(sequences, texts)

    def _keep(self, sequences: Sequence[tuple[_Path, int]], texts: list[int]) -> None:
        """All drafts but the last were fed; what of them is accepted stays, and that is known when the next round begins."""
        for (path, wanted), text in zip(sequences, texts, strict=True):
            if wanted:
                path.draft_holds = text + wanted - 1

    def _target_context(self, decode: Sequence[tuple[int, int]]) -> int:
        return self._slots if self.batched else decode[0][0]

    # ------------------------------------------------------------------------------------------------------- one pass

    def _pass(
        self, term: str, model: str, sequences: int, rows: int, last: int, context: int,
        *, cropped: bool = False, prompt: bool = False,
    ) -> None:  # fmt: skip
        time = self._count(DecodingPass(model, sequences, self.batched, rows, last, prompt), context)
        self._terms.append((term, time.forward_s))
        self._terms.append(("sampling", time.choose_s + (time.crop_s if cropped else 0.0)))

    def _count(self, asked: DecodingPass, context: int) -> PassTime:
        self.passes[asked, context] += 1
        return self.times.time(asked, context)
