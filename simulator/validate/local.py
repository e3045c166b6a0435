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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

from simulator.extra import needed_for
from simulator.questions.local_validation import LocalValidation, Machine
from simulator.spec import Problem, SpecError
from simulator.validate.bench import Bench
from simulator.validate.comparison import compare, with_floors

if TYPE_CHECKING:
    from calibration.pairs import Pair
    from calibration.prompts import Prompt
    from simulator.simulation import Progress

COPY_KINDS = ("copy", "edit")
KINDS = ("copy-heavy", "ordinary")
LEAST_BLOCKS = 2
MOST_DRAFTED = 64
# By target: drafts and γ. Prompt lookup drafts long, where a pass over many rows costs a CPU hardly more than over three.
STANDARD = {
    "byte_pair": (("byte_pair", 4), ("ngram", 12), ("self", 3)),
    "smollm2": (("skip:12-17", 2), ("ngram", 12), ("self", 3)),
}


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
    with needed_for("validate --local"):
        from calibration.decoding import DecodingError
        from calibration.device import Device, one_thread
        from calibration.model_files import ModelFileError
        from calibration.pairs import PairError
    begin_s = time.perf_counter()
    try:
        with one_thread():
            benches, skipped = _benches(order, asked, progress)
            blocks = _measure(order, benches, begin_s, progress)
            processor = Device("cpu").facts.name
    except (DecodingError, ModelFileError, PairError) as error:
        raise SpecError([Problem("--pairs" if order.pairs else "", "", str(error))]) from None
    cases = [case for each in benches for case in compare(each)]
    every = [run for each in benches for runs in each.runs.values() for run in runs]
    factor = sum(run.wall_s for run in every) / sum(run.cpu_s for run in every)
    minutes = (time.perf_counter() - begin_s) / 60
    cores, version = os.cpu_count() or 1, metadata.version("torch")
    machine = Machine(processor, cores, _load_average(), factor, version, blocks, minutes)
    return LocalValidation(machine, tuple(with_floors(cases)), tuple(skipped))


def _benches(
    order: LocalOrder, asked: Mapping[str, Sequence[tuple[str, int]]], progress: Progress
) -> tuple[list[Bench], list[str]]:
    from calibration.model_files import ModelFileError

    found: list[Bench] = []
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


def _benches_of(order: LocalOrder, target: str, drafts: Sequence[tuple[str, int]], progress: Progress) -> Iterator[Bench]:
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
        bench = Bench(target, kind, pair, ways, chosen, order.max_new_tokens, order.batches, traced)
        if not any(len(text) > 1 for text in bench.texts):
            must = f"must let {target} emit more than one token after some of its {kind} prompts"
            raise SpecError([Problem("--max-new-tokens", "", must, str(order.max_new_tokens))])
        yield bench


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


def _measure(order: LocalOrder, benches: Sequence[Bench], begin_s: float, progress: Progress) -> int:
    """Block after block: every way of every bench, alone and in a batch, in turning order. Returns the number of blocks."""
    jobs = [(each, way, batched) for each in benches for batched in each.batches for way in range(len(each.ways))]
    for each in benches:
        each.warm_up()
    block, block_s = 0, 0.0
    while block < LEAST_BLOCKS or time.perf_counter() - begin_s + block_s < 60 * order.minutes:
        since_s = time.perf_counter()
        for done, (each, way, batched) in enumerate(jobs if block % 2 == 0 else reversed(jobs)):
            progress(f"block {block + 1}", done, len(jobs))
            each.run(way, batched)
        for each in benches:
            each.finish_block()
        progress(f"block {block + 1}", len(jobs), len(jobs))
        block, block_s = block + 1, time.perf_counter() - since_s
    return block
