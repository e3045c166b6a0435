"""predict: one operating point, or a table of them → R, speedup, break-even, verdict and interval. No queueing.

`r` is decode-only; `speedup` is the throughput ratio a benchmark would report: where prompt and output lengths are known
or usual for the dataset, both sides also pay for their prefills.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from simulator import resources, theory
from simulator.acceptance import AcceptanceLaw, AcceptanceSpec, resolve_acceptance, resolve_tree_acceptance
from simulator.architecture import ModelArchitecture, config_path, find_model, stand_in_draft, stored_weights
from simulator.cost.deployment import Deployment
from simulator.cost.doubts import Doubts, shipped_doubts
from simulator.cost.parallelism import Parallelism, parallel_faults
from simulator.cost.remote_draft import RemoteDraft
from simulator.cost.round import StepPricer
from simulator.cost.uncertainty import Z80, UncertainPricer
from simulator.draft_tree import TREE_EXAMPLES, Tree, read_tree
from simulator.hardware import Hardware, find_hardware
from simulator.number_format import FORMATS, CacheFormat, WeightFormat, read_precision
from simulator.serving_engine import find_engine
from simulator.spec import Document, Location, Problem, Spec, SpecError, check, nearest, plain_scalar, shown
from simulator.speculation import (
    DEFAULT_DRAFT_KV_TOKENS,
    HEAD_FAMILIES,
    METHODS,
    MODELLESS_METHODS,
    REMOTE_METHODS,
    SELF_METHODS,
    TREE_METHODS,
    arithmetic_warning,
    built_head,
    default_drafter_weights,
    drafter_problem,
    drafts_at_once,
    other_target_warning,
    self_draft,
    tokenizer_problem,
    weights_warning,
)
from simulator.workload import MAX_TOKENS, DatasetLengths, dataset_names, usual_lengths

Positive = Annotated[float, Field(ge=1e-9, le=1e9)]
Count = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Rates = tuple[Annotated[float, Field(ge=0, le=1)], ...]
DEFAULT_CONTEXT = 1024
MEMORY_UTILIZATION = 0.9
# A head that is not known is built from its target: its cost is known to about a twentieth.
STAND_IN_STD = 0.05
# A measured plain step so many times longer or shorter than the modelled one is doubted, or refused.
SURPRISING, INCREDIBLE = 5.0, 100.0
# What a module is taken to be where it is not an EAGLE head.
_USUAL_HEADS = {
    "medusa": "one block and an LM head a draft", "hydra": "a layer, then four blocks and an LM head a draft",
    "mtp": "one layer as the target's", "block": "five layers, target width",
}  # fmt: skip


class OperatingPoint(Spec):
    """One question: hardware, models, method, γ, batch and context. Field names are the columns of `predict --table`, but for
    those in `FLAGS_ONLY`.

    batch: sequences that decode on the whole deployment, all data-parallel ranks together. draft_hardware: a device of the
    draft's own, of which there are draft_tensor_parallel_size; draft_link_latency_s, draft_overlap: as in
    `speculation.DraftDevice`.
    """

    id: str = ""
    hardware: str
    gpu_count: Count | None = None
    tensor_parallel_size: Count | None = None
    precision: str | None = None
    engine: str = "generic"
    target_model: str
    method: str
    draft_model: str | None = None
    draft_params: str | None = None
    drafter_weights: WeightFormat | None = None
    draft_layers: Count | None = None
    draft_kv_tokens: Annotated[int, Field(ge=16, le=MAX_TOKENS)] | None = None
    draft_tensor_parallel_size: Count | None = None
    pipeline_parallel_size: Annotated[int, Field(ge=1, le=64)] | None = None
    data_parallel_size: Annotated[int, Field(ge=1, le=256)] | None = None
    expert_parallel: bool | None = None
    nodes: Annotated[int, Field(ge=1, le=256)] | None = None
    draft_hardware: str | None = None
    draft_link_latency_s: Annotated[float, Field(ge=0, le=10)] | None = None
    draft_overlap: bool | None = None
    num_speculative_tokens: Annotated[int, Field(ge=1, le=64)] | None = None
    tree_shape: str | None = None
    batch: Count
    dataset: str | None = None
    context_len: Count | None = None
    prompt_len: Count | None = None
    output_len: Count | None = None
    mean_acceptance_length: Annotated[float, Field(ge=1)] | None = None
    acceptance_rate: Annotated[float, Field(ge=0, le=1)] | None = None
    acceptance_rates_per_position: Rates | None = None
    conditional_acceptance_rates: Rates | None = None
    plain_step_s: Positive | None = None
    plain_tokens_per_s: Positive | None = None


ACCEPTANCE_FIELDS = ("mean_acceptance_length", "acceptance_rate", "acceptance_rates_per_position", "conditional_acceptance_rates")
FLAGS_ONLY = (
    "pipeline_parallel_size", "data_parallel_size", "expert_parallel", "nodes",
    "draft_hardware", "draft_link_latency_s", "draft_overlap",
)  # fmt: skip
REQUIRED = ("hardware", "target_model", "method", "batch")
FLAGS = {"target_model": "target", "draft_model": "draft"}
_TABLE_FIELDS = tuple(name for name in OperatingPoint.model_fields if name not in FLAGS_ONLY)
# Other spellings of columns, and of arguments of `predict`.
_ALIASES = {flag: field for field, flag in FLAGS.items()} | {
    "mean_acceptance_rates_per_position": "acceptance_rates_per_position"
}


@dataclass(frozen=True)
class Prediction:
    """The answer at one operating point. Seconds; intervals hold 80 %; None where it cannot be said.

    largest_acceptance_length: tokens of a round whose drafts are all accepted; above it no break-even can be reached.
    """

    id: str
    status: Literal["ok", "unsupported"]
    reason: str = ""
    plain_step_s: float | None = None
    round_s: float | None = None
    r: float | None = None
    r_low: float | None = None
    r_high: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    break_even_acceptance_length: float | None = None
    break_even_acceptance_rate: float | None = None
    verdict: Literal["win", "lose", "close", ""] = ""
    bound: str = ""
    draft_share: float | None = None
    verification_cost_ratio: float | None = None
    mean_acceptance_length: float | None = None
    largest_acceptance_length: float | None = None
    textbook_speedup: float | None = None
    causes: tuple[tuple[str, float], ...] = ()
    warnings: tuple[str, ...] = ()


COLUMNS = (
    "id", "status", "reason", "plain_step_s", "round_s", "r", "r_low", "r_high", "speedup", "speedup_low", "speedup_high",
    "break_even_acceptance_length", "break_even_acceptance_rate", "verdict", "bound", "draft_share", "verification_cost_ratio",
    "warnings",
)  # fmt: skip


class UnsupportedError(Exception):
    """A sound question that this version cannot price; its text says why."""


def predict(point: OperatingPoint | None = None, /, **fields: Any) -> Prediction:
    """The prediction at one point, given as an `OperatingPoint` or by its fields.

    Raises `SpecError` for input that is wrong; a sound question that is not priced has status `unsupported`.
    """
    if point is None:
        named = {_ALIASES.get(name, name): value for name, value in fields.items()}
        point = check(OperatingPoint, Document("", named))
    return _answered(point, Document("", point.model_dump(exclude_none=True)))


def _answered(point: OperatingPoint, document: Document) -> Prediction:
    try:
        return predict_document(point, document)
    except UnsupportedError as reason:
        return Prediction(point.id, "unsupported", str(reason))


# --------------------------------------------------------------------------------------------------------------- tables


def predict_table(path: str | Path) -> list[Prediction]:
    """One prediction per row of a CSV file, in order. A row that cannot be priced says why; the others are unaffected.

    Raises `SpecError` where the file cannot be read or lacks a required column.
    """
    return [_predict_row(row, document) for row, document in table_rows(str(path))]


def table_rows(path: str) -> Iterable[tuple[dict[str, Any], Document]]:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            header = reader.fieldnames or []
            missing = [name for name in REQUIRED if name not in header and FLAGS.get(name) not in header]
            if missing:
                raise SpecError(_missing_column(path, name, header) for name in missing)
            for raw in reader:
                row = {name: _cell(name, raw[name]) for name in _columns(header) if (raw.get(name) or "").strip()}
                for written, field in _ALIASES.items():
                    if written in row:
                        row.setdefault(field, row.pop(written))
                row.setdefault("id", str(reader.line_num - 1))
                yield row, Document(path, row, {(): reader.line_num})
    except FileNotFoundError:
        raise SpecError([Problem(path, "", "no such file")]) from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SpecError([Problem(path, "", f"must be a CSV file: {error}")]) from None


def _missing_column(path: str, name: str, header: Sequence[str]) -> Problem:
    separator = next((mark for mark in ";\t|" if len(header) == 1 and mark in header[0]), None)
    if separator is not None:
        return Problem(f"{path}:1", name, f"must be a column, columns apart by commas (this file has {separator!r})")
    must = f"must be a column; columns: {', '.join(OperatingPoint.model_fields)}"
    return Problem(f"{path}:1", name, must, "", nearest(name, header))


def _columns(header: Iterable[str]) -> list[str]:
    known = {*_TABLE_FIELDS, *_ALIASES}
    return [name for name in header if name in known]


def _cell(name: str, text: str) -> Any:
    """A cell as its field's type: text stays text, lists are numbers between brackets, commas, semicolons or spaces."""
    text = text.strip()
    if name.endswith(("rates_per_position", "acceptance_rates")):
        return tuple(plain_scalar(part) for part in re.split(r"[\s,;\[\]]+", text) if part)
    field = OperatingPoint.model_fields[_ALIASES.get(name, name)]
    return text if "str" in str(field.annotation) else _whole(plain_scalar(text))


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _predict_row(row: dict[str, Any], document: Document) -> Prediction:
    try:
        return _answered(check(OperatingPoint, document), document)
    except SpecError as error:
        return Prediction(str(row.get("id", "")), "unsupported", "; ".join(str(error).splitlines()))
    except ArithmeticError as error:
        return Prediction(str(row.get("id", "")), "unsupported", f"a number is too large or too small to compute with: {error}")


def as_row(prediction: Prediction) -> dict[str, Any]:
    """The columns of a predictions table; numbers to six digits, warnings joined."""
    row: dict[str, Any] = {}
    for name in COLUMNS:
        value = getattr(prediction, name)
        row[name] = (
            "; ".join(value)
            if name == "warnings"
            else f"{value:.6g}"
            if isinstance(value, float)
            else ""
            if value is None
            else value
        )
    return row


# ---------------------------------------------------------------------------------------------------------------- one


@dataclass(frozen=True)
class Question:
    """An operating point with everything resolved. extra_std: doubt of ln R from what had to be assumed. usual: the lengths' fair
    ranges, where they are a dataset's usual ones."""

    deployment: Deployment
    gamma: int
    batch: int
    context: float
    prompt_tokens: int | None
    output_tokens: int | None
    acceptance: AcceptanceSpec | None
    extra_std: float
    warnings: tuple[str, ...]
    usual: DatasetLengths | None = None

    def law(self, document: Document) -> Callable[[int], AcceptanceLaw | None]:
        """The acceptance law by γ; a lone mean acceptance length holds at the question's own γ."""

        def at(gamma: int) -> AcceptanceLaw | None:
            if self.acceptance is None:
                return None
            if self.deployment.tree is not None:
                return resolve_tree_acceptance(self.acceptance, document, self.deployment.tree, True, ()).law
            stated_at = self.gamma if self.acceptance.mean_acceptance_length is not None else gamma
            return resolve_acceptance(self.acceptance, document, stated_at, ()).law

        return at


def predict_document(point: OperatingPoint, document: Document) -> Prediction:
    """As `predict`, with the document that errors point into. Raises `UnsupportedError` for what is not priced."""
    return answer(resolve(point, document), point, document)


def answer(question: Question, point: OperatingPoint, document: Document, doubts: Doubts | None = None) -> Prediction:
    """The prediction of a question whose names are resolved; its deployment may hold other constants than the shipped ones, and
    `doubts` may add up in another way."""
    deployment, gamma, batch = question.deployment, question.gamma, question.batch
    tau, full, notes = accepted(question, document)
    unserved = cannot_be_served(deployment, batch, question.context)
    notes += (unserved,) if unserved else ()
    pricer = UncertainPricer(deployment, full, doubts or shipped_doubts())
    cost = pricer.base.round(gamma, batch, question.context)
    measured_s = _measured_plain_step_s(point, question, pricer.base)
    if measured_s is not None:
        notes += _surprising(measured_s / cost.plain_step_s, point, document)
    if measured_s is None:
        shift, log_std = 0.0, pricer.log_std(gamma, batch, question.context)
    else:
        shift, log_std = pricer.given_plain_step(measured_s, gamma, batch, question.context)
    log_std = math.hypot(log_std, question.extra_std)
    # Linear in the surprise: a step measured far from the model must not make a round cheaper than the step it contains.
    r = max(cost.r * math.exp(shift), min(cost.r, 1.0))
    plain_s = cost.plain_step_s if measured_s is None else measured_s
    low, high = r * math.exp(-Z80 * log_std), r * math.exp(Z80 * log_std)
    speedups = with_interval(question, pricer.base, tau, (r, high, low), plain_s) if tau else (None, None, None)
    even_rate = pricer.base.break_even_rate(gamma, batch, question.context, log_shift=shift)
    return Prediction(
        id=point.id, status="ok", plain_step_s=plain_s, round_s=r * plain_s, r=r, r_low=low, r_high=high,
        speedup=speedups[0], speedup_low=speedups[1], speedup_high=speedups[2],
        break_even_acceptance_length=r, break_even_acceptance_rate=None if deployment.tree else even_rate,
        verdict="" if unserved else verdict(speedups[1], speedups[2]),
        bound=cost.bound, draft_share=cost.draft_share, verification_cost_ratio=cost.verification_cost_ratio,
        mean_acceptance_length=tau, largest_acceptance_length=gamma + 1.0,
        textbook_speedup=theory.textbook_speedup(tau, gamma, cost.cost_coefficient) if tau else None,
        causes=tuple(cost.causes()), warnings=(*question.warnings, *notes),
    )  # fmt: skip


def cannot_be_served(deployment: Deployment, batch: int, context: float, utilization: float = MEMORY_UTILIZATION) -> str:
    """Why no server could hold so many sequences of so many tokens, or ""."""
    tokens = deployment.kv_tokens(utilization)
    devices = f"{deployment.devices} × {deployment.hardware.name}"
    if tokens <= 0:
        return f"no verdict: the models do not fit on {devices} at {100 * utilization:.0f} % of memory"
    if tokens < batch * context:
        return f"no verdict: the KV cache of {devices} holds {tokens:,} tokens, not {batch * context:,.0f}"
    return ""


def verdict(low: float | None, high: float | None) -> Literal["win", "lose", "close", ""]:
    """From an 80 % interval of a speedup: `close` when it contains 1."""
    if low is None or high is None:
        return ""
    return "win" if low > 1 else "lose" if high < 1 else "close"


def with_interval(
    question: Question, pricer: StepPricer, tau: float, ratios: tuple[float, float, float], plain_s: float
) -> tuple[float, float, float]:
    """(speedup, low, high) for (R, its high, its low), widened by what lengths that nobody stated leave open."""
    middle, low, high = (benchmark_speedup(question, pricer, tau, ratio, plain_s) for ratio in ratios)
    spread = _lengths_spread(question, pricer, tau, ratios[0], plain_s)
    down, up = math.hypot(math.log(middle / low), spread), math.hypot(math.log(high / middle), spread)
    return middle, middle * math.exp(-down), middle * math.exp(up)


def _lengths_spread(question: Question, pricer: StepPricer, tau: float, r: float, plain_s: float) -> float:
    """Half the width of an 80 % interval of ln(speedup), from where a dataset's mean lengths may fairly fall."""
    if question.usual is None:
        return 0.0
    prompt, output = question.usual.prompt_tokens, question.usual.output_tokens

    prompts = [replace(question, prompt_tokens=tokens) for tokens in (prompt.low, prompt.high)]
    outputs = [replace(question, output_tokens=tokens) for tokens in (output.low, output.high)]

    def change(ends: list[Question]) -> float:
        low, high = (benchmark_speedup(end, pricer, tau, r, plain_s) for end in ends)
        return math.log(high / low) / 2

    return math.hypot(change(prompts), change(outputs))


def benchmark_speedup(question: Question, pricer: StepPricer, tau: float, r: float, plain_step_s: float) -> float:
    """Throughput ratio at constant batch: device time of one request without and with speculation.

    plain = prefill + (wait + (n-1)·step)/b;  speculative = prefill (draft's included) + (wait + (n-1)/τ·R·step)/b, where wait is
    the time outside of passes, in which only the request's own place in the batch is idle. Pipeline stages and data-parallel
    ranks take in prompts side by side.
    """
    if question.prompt_tokens is None or question.output_tokens is None:
        return tau / r
    budget = question.deployment.engine.max_num_batched_tokens
    tokens = max(question.output_tokens - 1, 0) / question.batch * plain_step_s
    wait_s = question.deployment.engine.prompt_overhead_s.value / question.batch
    side_by_side = _prompts_at_once(question.deployment)
    plain_prefill_s = wait_s + _plain_prefill_s(question, pricer, budget) / side_by_side
    prefill_s = wait_s + pricer.prefill_s(question.prompt_tokens, budget) / side_by_side
    return (plain_prefill_s + tokens) / (prefill_s + tokens * r / tau)


def _plain_prefill_s(question: Question, pricer: StepPricer, budget: int) -> float:
    """Of one prompt; where drafting keeps prompts apart, those of the batch share passes without it."""
    prompt, plain = question.prompt_tokens or 1, StepPricer(pricer.target)
    if not question.deployment.engine.drafting_prompts_alone:
        return plain.prefill_s(prompt, budget)
    together = max(min(question.batch, budget // prompt), 1)
    return plain.price((), ((prompt, 0),) * together, together).seconds / together


def _prompts_at_once(deployment: Deployment) -> int:
    beyond = deployment.parallelism
    return beyond.data_parallel_size * beyond.microbatches(beyond.pipeline_parallel_size, deployment.engine)


def _measured_plain_step_s(point: OperatingPoint, question: Question, pricer: StepPricer) -> float | None:
    """The plain step that was measured, from a throughput too: b·(n/throughput - prefill)/(n-1)."""
    if point.plain_step_s is not None or point.plain_tokens_per_s is None:
        return point.plain_step_s
    n, prompt = question.output_tokens, question.prompt_tokens
    if n is None or n < 2 or prompt is None:
        return question.batch / point.plain_tokens_per_s
    prefill_s = StepPricer(pricer.target).prefill_s(prompt, question.deployment.engine.max_num_batched_tokens)
    prefill_s = (
        prefill_s / _prompts_at_once(question.deployment) + question.deployment.engine.prompt_overhead_s.value / question.batch
    )
    decode_s = n / point.plain_tokens_per_s - prefill_s
    return question.batch * decode_s / (n - 1) if decode_s > 0 else question.batch / point.plain_tokens_per_s


def _surprising(ratio: float, point: OperatingPoint, document: Document) -> tuple[str, ...]:
    """What to say of a measured plain step so many times as long as the modelled one. Raises `SpecError` beyond a hundred
    times."""
    key = "plain_step_s" if point.plain_step_s is not None else "plain_tokens_per_s"
    size = f"{ratio:.3g} times the modelled plain step" if ratio > 1 else f"only {ratio:.2g} of the modelled plain step"
    if not 1 / INCREDIBLE < ratio < INCREDIBLE:
        unit = "seconds of one step of the whole batch" if key == "plain_step_s" else "tokens of the whole batch per second"
        raise SpecError([document.problem((key,), f"must be {unit}: this is {size}", getattr(point, key))])
    return (f"{key} says {size}: check its unit, the batch and the model",) if not 1 / SURPRISING < ratio < SURPRISING else ()


def accepted(question: Question, document: Document) -> tuple[float | None, float, tuple[str, ...]]:
    """(τ or None, share of rounds accepted in full, notes)."""
    if question.acceptance is None:
        return None, 0.5, ()
    if question.deployment.tree is not None:
        resolved = resolve_tree_acceptance(question.acceptance, document, question.deployment.tree, True, ())
    else:
        resolved = resolve_acceptance(question.acceptance, document, question.gamma, ())
    law = resolved.law.at_context(round(question.context))
    return law.mean_acceptance_length(question.gamma), float(law.conditional_rates(question.gamma).prod()), resolved.warnings


# ------------------------------------------------------------------------------------------------------------ resolving


def resolve(point: OperatingPoint, document: Document) -> Question:
    """Every name and every blank settled. Raises `UnsupportedError`, or `SpecError` for input that is wrong."""
    warnings: list[str] = []
    gamma, tree = _shape(point, document)
    _check_uses(point, document)
    hardware, engine, target = _known(
        lambda: find_hardware(point.hardware, document.where(("hardware",)), ""),
        lambda: find_engine(point.engine, document.where(("engine",)), ""),
        lambda: find_model(point.target_model, document.where((FLAGS["target_model"],)), "", "target model"),
    )
    if target.kind == "draft_head":
        raise SpecError([document.problem((FLAGS["target_model"],), "must be a whole model, not a draft head", target.name)])
    if point.engine == "generic":
        warnings.append("engine unknown: generic overheads, wider interval")
    weights, kv_cache = _precision(point, hardware, warnings)
    warnings += arithmetic_warning(hardware, weights)
    drafter, extra_std = _drafter(point, target, gamma, document, warnings)
    kv_tokens = (point.draft_kv_tokens or DEFAULT_DRAFT_KV_TOKENS) if point.method == "sparse_kv" else None
    remote = _remote_draft(point, document)
    own = hardware if remote is None else remote.hardware
    drafter_weights = _drafter_weights(point, drafter, weights, own, document, warnings)
    deployment = Deployment(
        hardware,
        engine,
        target,
        weights,
        kv_cache,
        1,
        point.method,
        drafter,
        drafter_weights,
        draft_kv_tokens=kv_tokens,
        tree=tree,
        parallelism=Parallelism(
            point.pipeline_parallel_size or 1, point.data_parallel_size or 1, point.expert_parallel or False, point.nodes or 1
        ),
        remote_draft=remote,
    )
    deployment, tp_std = _parallel(point, deployment, gamma, document, warnings)
    _check_parallel(deployment, document)
    prompt, output, context, usual = _lengths(point, document, warnings)
    _check_positions(target, prompt, output, context, point, document)
    acceptance = _acceptance(point, document)
    return Question(
        deployment, gamma, point.batch, context, prompt, output, acceptance, math.hypot(extra_std, tp_std), tuple(warnings), usual
    )


def _known(*finds: Callable[[], Any]) -> list[Any]:
    """What each finds. Names that are not known make a question unsupported; all of them are reported."""
    found: list[Any] = []
    problems: list[Problem] = []
    for find in finds:
        try:
            found.append(find())
        except SpecError as error:
            problems += error.problems
    if problems:
        raise UnknownNameError(SpecError(problems))
    return found


class UnknownNameError(UnsupportedError):
    """A hardware, engine or model that is not known; `error` holds the problem as a user's mistake."""

    def __init__(self, error: SpecError):
        super().__init__("; ".join(str(replace(problem, where="")) for problem in error.problems))
        self.error = error


def _shape(point: OperatingPoint, document: Document) -> tuple[int, Tree | None]:
    """(γ, tree): for a tree γ is its depth, the most drafts a round can accept."""
    if point.method not in METHODS or point.method == "none":
        raise SpecError([document.problem(("method",), f"must be one of {', '.join(METHODS[1:])}", point.method, METHODS[1:])])
    if point.tree_shape is not None:
        tree = _tree(point.tree_shape, document)
        if not tree.is_chain and point.method not in TREE_METHODS:
            raise UnsupportedError(f"draft trees are priced for {', '.join(TREE_METHODS)}, not for {point.method}")
        gamma = point.num_speculative_tokens
        # vLLM counts a tree's drafts, SGLang its steps.
        if gamma is not None and gamma not in (tree.steps, tree.nodes - 1):
            must = f"must be left out beside tree_shape, or agree with its {tree.steps} steps and {tree.nodes - 1} drafts"
            raise SpecError([document.problem(("num_speculative_tokens",), must, gamma)])
        if tree.is_chain:
            return tree.steps, None
        return tree.depth, tree
    if point.num_speculative_tokens is None:
        raise SpecError([document.problem(("num_speculative_tokens",), "must be given")])
    return point.num_speculative_tokens, None


def _tree(text: str, document: Document) -> Tree:
    try:
        return read_tree(text)
    except ValueError as error:
        must = str(error) if TREE_EXAMPLES in str(error) else f"{error}; such as {TREE_EXAMPLES}"
        raise SpecError([document.problem(("tree_shape",), must, text)]) from None


def _precision(point: OperatingPoint, hardware: Hardware, warnings: list[str]) -> tuple[str, str]:
    """(weights, KV cache) from what people write, else from the model's config.json. Raises `UnsupportedError` for types that are
    not priced."""
    wide, text, stored = hardware.wide_dtype, point.precision, stored_weights(point.target_model)
    if not text and stored is not None:
        return stored, stored if stored in ("fp32", "fp16", "bf16") else wide
    if not text:
        warnings.append(f"precision assumed {wide}")
        return wide, wide
    try:
        weights, kv_cache = read_precision(text)
    except ValueError as word:
        known = ", ".join(FORMATS)
        raise UnsupportedError(f"precision {text!r} is not supported: {word} is unknown; supported: {known}") from None
    if kv_cache is not None and kv_cache not in get_args(CacheFormat):
        known = ", ".join(get_args(CacheFormat))
        raise UnsupportedError(f"precision {text!r} is not supported: a KV cache in {kv_cache}; supported: {known}")
    warnings += weights_warning(weights, stored)
    weights = weights or stored or wide
    kept = weights if weights in ("fp32", "fp16", "bf16") else wide
    return weights, kv_cache or kept


def _drafter(
    point: OperatingPoint, target: ModelArchitecture, gamma: int, document: Document, warnings: list[str]
) -> tuple[ModelArchitecture | None, float]:
    """The drafter, built from the target where a module is not known, and the doubt that brings."""
    method = point.method
    given = [name for name in ("draft_model", "draft_params") if getattr(point, name) is not None]
    if method in (*MODELLESS_METHODS, *SELF_METHODS) and given:
        must = f"must be left out: method {method} has no drafter model"
        raise SpecError([document.problem((FLAGS.get(given[0], given[0]),), must, getattr(point, given[0]))])
    if method in MODELLESS_METHODS:
        return None, 0.0
    if method == "layer_skip" and point.draft_layers is None:
        raise UnsupportedError("layer_skip needs draft_layers, the target's first layers that draft")
    if (point.draft_layers or 0) > target.num_hidden_layers:
        must = f"must be at most {target.num_hidden_layers}, the layers of {target.name}"
        raise SpecError([document.problem(("draft_layers",), must, point.draft_layers)])
    if method in ("layer_skip", "sparse_kv"):
        return self_draft(target, method, point.draft_layers), 0.0
    found = _find_drafter(point, document, warnings)
    if found is None and method in HEAD_FAMILIES:
        name = f"drafter {point.draft_model}" if point.draft_model else "drafter"
        warnings.append(f"{name} unknown: built from the target ({_USUAL_HEADS.get(method, 'one layer, target width')})")
        return built_head(target, method, gamma), STAND_IN_STD
    if found is None:
        if point.draft_params is None:
            raise UnsupportedError(f"draft model {shown(point.draft_model or None)} is unknown: give draft_params, such as 1.24B")
        warnings.append(f"draft model unknown: a dense shape of {point.draft_params} parameters is taken")
        return _stand_in(point.draft_params, target, document), 2 * STAND_IN_STD
    problem = tokenizer_problem(target, found)
    if problem:
        raise SpecError([document.problem((FLAGS["draft_model"],), problem)])
    limit, what = drafts_at_once(found)
    if limit is not None and gamma > limit:
        must = f"must be at most {limit}, the {what} of drafter {found.name}"
        key = "num_speculative_tokens" if point.tree_shape is None else "tree_shape"
        raise SpecError([document.problem((key,), must, gamma)])
    if point.draft_params is not None and not _is_table(document):
        raise SpecError(
            [document.problem(("draft_params",), f"must be left out: the size of {found.name} is known", point.draft_params)]
        )
    warnings += other_target_warning(target, found)
    return found, 0.0


def _drafter_weights(
    point: OperatingPoint,
    drafter: ModelArchitecture | None,
    weights: str,
    hardware: Hardware,
    document: Document,
    warnings: list[str],
) -> str:
    """Type of the drafter's weights: as given, else by convention. Raises `SpecError` where there is no drafter model."""
    if drafter is None:
        if point.drafter_weights is not None:
            raise SpecError([document.problem(("drafter_weights",), f"must be left out: {point.method} has no drafter model")])
        return hardware.wide_dtype
    if point.drafter_weights is not None:
        if point.method in SELF_METHODS:
            raise SpecError([document.problem(("drafter_weights",), f"must be left out: {point.method} drafts with the target")])
        return point.drafter_weights
    stored = None if point.draft_model is None else stored_weights(point.draft_model)
    chosen, warning = default_drafter_weights(point.method, weights, hardware.wide_dtype, stored)
    warnings += [warning] if warning else []
    return chosen


def _find_drafter(point: OperatingPoint, document: Document, warnings: list[str]) -> ModelArchitecture | None:
    """The drafter that is named, None where its name is not known. Raises `SpecError` for a file that cannot be read, and for a
    model that cannot draft this way; in a table such a head is only warned of."""
    if point.draft_model is None:
        return None
    where = (FLAGS["draft_model"],)
    try:
        found = find_model(point.draft_model, document.where(where))
    except SpecError:
        if config_path(point.draft_model) is not None or resources.is_file(Path(point.draft_model)):
            raise
        return None
    fault = drafter_problem(point.method, found)
    if fault is None:
        return found
    if not _is_table(document) or point.method not in HEAD_FAMILIES:
        raise SpecError([document.problem(where, fault, point.draft_model)])
    warnings.append(f"drafter {point.draft_model} {fault}")
    return None


def _parameters(text: str, document: Document) -> float:
    said = re.sub(r"\(.*?\)", "", text).strip()
    match = re.fullmatch(r"([0-9.]+)\s*([MB])(?:\s*(?:parameters|params))?", said, re.IGNORECASE)
    try:
        if match:
            return float(match[1]) * {"M": 1e6, "B": 1e9}[match[2].upper()]
    except ValueError:
        pass
    raise SpecError([document.problem(("draft_params",), "must be a count such as 1.24B or 68M", text)])


def _stand_in(text: str, target: ModelArchitecture, document: Document) -> ModelArchitecture:
    """A dense draft of that size; not one much smaller than its vocabulary allows."""
    parameters = _parameters(text, document)
    shape = stand_in_draft(parameters, target)
    if parameters < shape.parameter_count / 2:
        must = f"must be at least {shape.parameter_count / 2e6:.3g}M: a decoder needs a vocabulary of {target.vocab_size:,}"
        raise SpecError([document.problem(("draft_params",), must, text)])
    return shape


def _is_table(document: Document) -> bool:
    """Whether the point is a row of a table, whose columns may say more than one row needs."""
    return bool(document.source)


def _check_uses(point: OperatingPoint, document: Document) -> None:
    """Every field given must change the answer, save the columns of a table. Raises `SpecError`."""
    idle = [
        ("draft_layers", "goes with method layer_skip only", point.method != "layer_skip"),
        ("draft_kv_tokens", "goes with method sparse_kv only", point.method != "sparse_kv"),
    ]
    if not _is_table(document):
        drafterless = point.method in MODELLESS_METHODS
        idle += [
            ("draft_params", "must be left out: heads are built from the target", point.method in HEAD_FAMILIES),
            ("draft_tensor_parallel_size", f"must be left out: method {point.method} has no drafter model", drafterless),
            ("plain_tokens_per_s", "must be left out beside plain_step_s: either says it", point.plain_step_s is not None),
        ]
    problems = [
        document.problem((key,), must, getattr(point, key))
        for key, must, is_idle in idle
        if is_idle and getattr(point, key) is not None
    ]
    if problems:
        raise SpecError(problems)


def _check_positions(
    target: ModelArchitecture, prompt: int | None, output: int | None, context: float, point: OperatingPoint, document: Document
) -> None:
    """A sequence must not be longer than the model knows positions. Raises `SpecError` naming the key that is too large."""
    positions, longest = target.max_position_embeddings, max(context, (prompt or 0) + (output or 0))
    if positions is None or longest <= positions:
        return
    longer = "prompt_len" if (prompt or 0) >= (output or 0) else "output_len"
    key = "context_len" if (point.context_len or 0) > positions else longer
    must = f"must fit {positions:,} tokens, the positions of {target.name} (the sequence has {longest:,.0f})"
    raise SpecError([document.problem((key,), must)])


def _parallel(
    point: OperatingPoint, deployment: Deployment, gamma: int, document: Document, warnings: list[str]
) -> tuple[Deployment, float]:
    """Tensor parallelism as given, else the number of devices, else the smallest that fits; and the doubt of a guess."""
    given = point.tensor_parallel_size or point.gpu_count
    _check_heads(point, deployment, given, document)
    if given is not None:
        chosen = _with_parallel(deployment, given, point.draft_tensor_parallel_size or given)
        if chosen.kv_cache_bytes(MEMORY_UTILIZATION) <= 0:
            warnings.append(f"models do not fit on {given} × {deployment.hardware.name} at {MEMORY_UTILIZATION:.0%} of memory")
        return chosen, 0.0
    sizes = [size for size in (1, 2, 4, 8) if (deployment.target.num_attention_heads or 0) % size == 0]
    drafting = point.draft_tensor_parallel_size if deployment.remote_draft is None else None
    tried = (_with_parallel(deployment, size, drafting or size) for size in sizes if size >= (drafting or 1))
    fitting = [each for each in tried if each.kv_cache_bytes(MEMORY_UTILIZATION) > 0]
    if not fitting:
        raise UnsupportedError(f"{deployment.target.name} does not fit on up to 8 × {deployment.hardware.name}")
    warnings.append(f"tensor parallelism unknown: {fitting[0].tensor_parallel_size} taken, the smallest that fits")
    if len(fitting) == 1:
        return fitting[0], 0.0
    ratios = [d.pricer().round(gamma, point.batch, point.context_len or DEFAULT_CONTEXT).r for d in fitting[:2]]
    return fitting[0], abs(math.log(ratios[1] / ratios[0])) / 2


def _check_parallel(deployment: Deployment, document: Document) -> None:
    draft = None if deployment.remote_draft is not None else deployment.draft_tensor_parallel_size
    faults = parallel_faults(
        deployment.parallelism, deployment.tensor_parallel_size, draft,
        deployment.target, deployment.drafter, deployment.engine, deployment.method,
    )  # fmt: skip
    problems = [document.problem((key,), must, got) for key, must, got in faults]
    if problems:
        raise SpecError(problems)


def _remote_draft(point: OperatingPoint, document: Document) -> RemoteDraft | None:
    """The draft's own device. Raises `SpecError` where the rest of its description is missing or without use."""
    if point.draft_hardware is None:
        for name in ("draft_link_latency_s", "draft_overlap"):
            if getattr(point, name) is not None:
                raise SpecError([document.problem((name,), "goes with draft_hardware only", getattr(point, name))])
        return None
    if point.method not in REMOTE_METHODS:
        must = f"goes with method {', '.join(REMOTE_METHODS)}: {point.method} needs the target's own states or text"
        raise SpecError([document.problem(("draft_hardware",), must, point.draft_hardware)])
    if point.draft_link_latency_s is None:
        raise SpecError([document.problem(("draft_link_latency_s",), "must be given with draft_hardware: seconds, one way")])
    (hardware,) = _known(lambda: find_hardware(point.draft_hardware or "", document.where(("draft_hardware",)), ""))
    return RemoteDraft(hardware, point.draft_tensor_parallel_size or 1, point.draft_link_latency_s, bool(point.draft_overlap))


def _check_heads(point: OperatingPoint, deployment: Deployment, size: int | None, document: Document) -> None:
    """Attention heads divide over devices. Raises `SpecError` where they do not."""
    sides = (
        ("tensor_parallel_size" if point.tensor_parallel_size else "gpu_count", size, deployment.target),
        ("draft_tensor_parallel_size", point.draft_tensor_parallel_size, deployment.drafter),
    )
    for key, devices, model in sides:
        if devices is not None and model is not None and (model.num_attention_heads or 0) % devices:
            must = f"must divide the {model.num_attention_heads} attention heads of {model.name}"
            raise SpecError([document.problem((key,), must, devices)])


def _with_parallel(deployment: Deployment, size: int, draft_size: int) -> Deployment:
    """The same on so many devices; a drafter whose heads do not divide over them stays on one."""
    if deployment.drafter is not None and (deployment.drafter.num_attention_heads or 0) % draft_size:
        draft_size = 1
    return replace(deployment, tensor_parallel_size=size, draft_tensor_parallel_size=draft_size)


def _lengths(
    point: OperatingPoint, document: Document, warnings: list[str]
) -> tuple[int | None, int | None, float, DatasetLengths | None]:
    """(prompt, output, mean context while decoding) from what is given or usual for the dataset; and in which ranges, where both
    are only usual."""
    prompt, output = point.prompt_len, point.output_len
    usual = usual_lengths(point.dataset) if point.dataset and point.context_len is None else None
    if point.dataset and usual_lengths(point.dataset) is None:
        must = "must be a dataset whose lengths are known"
        if not _is_table(document):
            raise SpecError([document.problem(("dataset",), must, point.dataset, dataset_names())])
        warnings.append(f"dataset {point.dataset} is not known: no usual lengths")
    stated = prompt is not None or output is not None
    if usual is not None and (prompt is None or output is None):
        prompt, output = prompt or usual.prompt_tokens.usual, output or usual.output_tokens.usual
        warnings.append(f"lengths usual for {point.dataset}: prompt {prompt}, output {output}")
    if point.context_len is not None:
        return prompt, output, point.context_len, None
    if prompt is not None and output is not None:
        return prompt, output, prompt + output / 2, None if stated else usual
    warnings.append(f"context unknown: {prompt or DEFAULT_CONTEXT} tokens taken, prefill share left out")
    return prompt, output, prompt or DEFAULT_CONTEXT, None


def _acceptance(point: OperatingPoint, document: Document) -> AcceptanceSpec | None:
    given: Mapping[str, Any] = {name: getattr(point, name) for name in ACCEPTANCE_FIELDS if getattr(point, name) is not None}
    if len(given) > 1:
        names = " and ".join(given)
        raise SpecError([document.problem((list(given)[1],), f"must stand alone: {names} are given, one is enough")])
    if not given:
        return None
    location: Location = ()
    return check(AcceptanceSpec, Document(document.source, dict(given), document.lines), location)
