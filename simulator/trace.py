"""`python -m simulator trace`: an acceptance trace of a real pair, written as scenarios read it, and its summary."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.acceptance import TraceAcceptance, TraceFile, TraceSummary, check_trace_name, summarise, write_trace_file
from simulator.extra import needed_for
from simulator.spec import Problem, SpecError

if TYPE_CHECKING:
    from calibration.decoding import Sampling
    from calibration.pairs import Pair
    from calibration.prompts import Prompt
    from calibration.trace_log import TraceLog
    from calibration.tracing import PromptTrace
    from simulator.simulation import Progress

BUILTIN = "builtin"


@dataclass(frozen=True, slots=True)
class TraceOrder:
    """What to trace and how. Temperature 0 is greedy; `prompts` is `builtin` or a file of JSON lines."""

    target: str
    draft: str
    prompts: str = BUILTIN
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    max_new_tokens: int = 96
    seed: int = 0
    dtype: str = "fp32"
    device: str = "cpu"
    store_tokens: bool = False


@dataclass(frozen=True, slots=True)
class TraceOutcome:
    """The written trace, what it says, and how many prompts an earlier run had left done."""

    path: Path
    file: TraceFile
    summary: TraceSummary
    resumed: int


def trace_pair(order: TraceOrder, out: str | Path, progress: Progress = lambda *_: None) -> TraceOutcome:
    """Traces a pair and writes the file. Interrupted and called again, it goes on after the last finished prompt.

    Raises SpecError for whatever a user can get wrong, before anything is written.
    """
    path = Path(out)
    check_trace_name(path)
    idle = [name for name, changes in (("top_k", order.top_k), ("top_p", order.top_p < 1)) if changes and order.temperature == 0]
    if idle:
        raise SpecError([Problem(_flag(idle[0]), "", "must be left out at temperature 0, which takes the likeliest token")])
    if not path.parent.is_dir():
        raise SpecError([Problem("--out", "", "must lie in a folder that exists", str(path))])
    with needed_for("trace"):
        from calibration import pairs, prompts, tracing
        from calibration.decoding import DecodingError, Sampling
        from calibration.model_files import ModelFileError
        from calibration.trace_log import TraceLog
    try:
        sampling = Sampling(order.temperature, order.top_k, order.top_p)
        chosen = prompts.read_prompts(prompts.BUILTIN if order.prompts == BUILTIN else order.prompts)
        pair = pairs.load_pair(order.target, order.draft, order.dtype, order.device)
        encoded = [_encoded(pair, number, prompt, order.max_new_tokens) for number, prompt in enumerate(chosen, start=1)]
        provenance = _provenance(order, pair, chosen)
        log = _log(TraceLog, path, provenance)
        resumed, label = len(log.finished), f"{order.target} with {order.draft}"
        for index, prompt_ids in enumerate(encoded):
            progress(label, index, len(encoded))
            if index not in log.finished:
                log.append(index, _traced(tracing, pair, prompt_ids, order, sampling, index))
    except (DecodingError, ModelFileError, pairs.PairError, prompts.PromptError) as error:
        raise SpecError([_problem(str(error), order)]) from None
    progress(label, len(encoded), len(encoded))
    content = trace_file([log.finished[index] for index in range(len(encoded))], chosen, provenance, order.store_tokens)
    write_trace_file(path, content)
    log.remove()
    return TraceOutcome(path, content, summarise(content.trace, order.seed), resumed)


def _log(kind: type[TraceLog], path: Path, provenance: dict[str, Any]) -> TraceLog:
    """The log beside the trace to be. Raises SpecError where the folder cannot be written."""
    try:
        return kind(path.with_name(f".{path.name}.part"), provenance)
    except OSError as error:
        raise SpecError(
            [Problem("--out", "", f"must lie in a folder that can be written: {error.strerror}", str(path))]
        ) from None


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _problem(text: str, order: TraceOrder) -> Problem:
    """What measuring found wrong, with the flag it is about: it names fields, files, or what a flag said."""
    head, _, rest = text.partition(": ")
    if head in {field.name for field in fields(order)}:
        return Problem(_flag(head), "", rest)
    said = next((name for name in ("target", "draft", "prompts") if getattr(order, name) == head), None)
    return Problem("" if said is None else _flag(said), "", text if head else rest)


def trace_file(
    traces: Sequence[PromptTrace], prompts: Sequence[Prompt], provenance: dict[str, Any], store_tokens: bool = False
) -> TraceFile:
    """What was traced, as a file holds it. Raises SpecError where nothing was generated."""
    kept = [(trace, prompt) for trace, prompt in zip(traces, prompts, strict=True) if trace.tokens]
    if not kept:
        raise SpecError([Problem("--max-new-tokens", "", "must let the target emit at least one token")])
    proposed = [number for trace, _ in kept for number in trace.proposed or ()]
    confidence = [value for trace, _ in kept for value in trace.confidence or ()]
    category = np.array([prompt.category for _, prompt in kept])
    return TraceFile(
        TraceAcceptance(
            np.array([value for trace, _ in kept for value in trace.acceptance], dtype=float),
            np.array([len(trace.tokens) for trace, _ in kept]),
            np.array(proposed, dtype=np.int64) if proposed else None,
            category if category.all() else None,
            # As precise as a file holds it, so that what is told of a trace is what its file says.
            np.array(confidence, dtype=np.float32).astype(float) if confidence else None,
        ),
        provenance,
        np.array([trace.prompt_sha256 for trace, _ in kept]),
        np.array([trace.output_sha256 for trace, _ in kept]),
        np.array([token for trace, _ in kept for token in trace.tokens]) if store_tokens else None,
    )


def _traced(tracing: Any, pair: Pair, prompt_ids: list[int], order: TraceOrder, sampling: Sampling, index: int) -> PromptTrace:
    trace: PromptTrace = tracing.trace_prompt(
        pair.target,
        pair.drafter,
        prompt_ids,
        order.max_new_tokens,
        sampling=sampling,
        seed=order.seed,
        sequence=index,
        eos_ids=pair.eos_ids,
    )
    return trace


def _encoded(pair: Pair, number: int, prompt: Prompt, max_new_tokens: int) -> list[int]:
    ids = pair.encode(prompt.text)
    limit = pair.context_limit
    if limit is not None and len(ids) + max_new_tokens > limit:
        must = f"prompt {number} and its output must fit the context of {limit} tokens of target {pair.target.name}"
        raise SpecError([Problem("--max-new-tokens", "", must, f"{len(ids)} + {max_new_tokens}")])
    return ids


def _provenance(order: TraceOrder, pair: Pair, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """All that decides the trace, in a form that two runs can be compared by."""
    text = json.dumps([[prompt.category, prompt.text] for prompt in prompts])
    name = "built-in" if order.prompts == BUILTIN else Path(order.prompts).name
    sampler = "greedy" if order.temperature == 0 else f"temperature {order.temperature:g}"
    sampler += f", top-k {order.top_k}" if order.temperature and order.top_k else ""
    sampler += f", top-p {order.top_p:g}" if order.temperature and order.top_p < 1 else ""
    return {
        "target": _model_name(order.target),
        "target_fingerprint": pair.target_fingerprint,
        "draft": _model_name(order.draft),
        "draft_fingerprint": pair.draft_fingerprint,
        "prompts": f"{len(prompts)} {name} prompts, up to {order.max_new_tokens} new tokens each",
        "prompts_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "sampler": sampler,
        "seed": order.seed,
        "dtype": order.dtype,
        "device": order.device,
        "torch": metadata.version("torch"),
        "transformers": metadata.version("transformers"),
    }


def _model_name(reference: str) -> str:
    """A reference without the folders of the machine it was traced on."""
    return Path(reference).name if Path(reference).is_absolute() or reference.startswith((".", "~")) else reference
