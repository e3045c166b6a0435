"""An operating point resolved: names looked up, blanks filled, what cannot be refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

from simulator.acceptance import AcceptanceSpec
from simulator.architecture import ModelArchitecture, find_model, published_weights, stored_weights, tower_note
from simulator.cost.deployment import Deployment
from simulator.cost.parallelism import Parallelism
from simulator.draft_tree import TREE_EXAMPLES, Tree, read_tree
from simulator.engine_start import as_it_starts, mixed_heads_note, overlap_note, start_faults, started
from simulator.hardware import Hardware, bridge_note, find_hardware
from simulator.kernel_switches import KernelSwitches
from simulator.number_format import FORMATS, CacheFormat, nearest_format, read_precision
from simulator.prediction.devices import as_joined, check_parallel, on_devices, remote_draft_of
from simulator.prediction.drafter import drafter_weights_of, find_drafter
from simulator.prediction.point import ACCEPTANCE_FIELDS, FLAGS, SWITCHES, OperatingPoint, is_table
from simulator.prediction.question import DEFAULT_CONTEXT, Question
from simulator.prediction.unsupported import UnknownNameError, UnsupportedError, found_or_unsupported
from simulator.serving_engine import ServingEngine, find_engine
from simulator.spec import Document, Location, SpecError, check, nearest
from simulator.speculation import (
    DEFAULT_DRAFT_KV_TOKENS,
    HEAD_FAMILIES,
    METHODS,
    MODELLESS_METHODS,
    TREE_METHODS,
    arithmetic_warning,
    mixed_warning,
    unread_warning,
    weights_warning,
)
from simulator.workload import DatasetLengths, dataset_names, usual_lengths


def resolve(point: OperatingPoint, document: Document) -> Question:
    """Every name and every blank settled. Raises `UnsupportedError`, or `SpecError` for input that is wrong."""
    warnings: list[str] = []
    gamma, tree = _shape(point, document)
    hardware, engine, target = found_or_unsupported(
        lambda: find_hardware(point.hardware, document.where(("hardware",)), ""),
        lambda: find_engine(point.engine, document.where(("engine",)), "", point.year),
        lambda: find_model(point.target_model, document.where((FLAGS["target_model"],)), "", "target model"),
    )
    if target.kind == "draft_head":
        raise SpecError([document.problem((FLAGS["target_model"],), "must be a whole model, not a draft head", target.name)])
    if point.year is not None and not is_table(document) and not find_engine(point.engine).until:
        raise SpecError([document.problem(("year",), f"must be left out: {point.engine} is one version", point.year)])
    hardware = as_joined(hardware, point, document)
    switches = _switches(point, engine, document)
    warnings += mixed_heads_note(engine, switches, target) + overlap_note(engine, switches, point.method)
    if (switches := as_it_starts(engine, switches, target)) != KernelSwitches():
        engine = started(engine, switches, point.max_model_len or target.max_position_embeddings)
    _check_uses(point, engine, document)
    weights, kv_cache = _precision(point, hardware, document, warnings)
    weights = engine.stored(weights)
    warnings += arithmetic_warning(hardware, weights)
    warnings += mixed_warning(point.target_model, target, weights)
    warnings += tower_note(point.target_model)
    drafter, extra_std = find_drafter(point, target, gamma, document, warnings)
    kv_tokens = (point.draft_kv_tokens or DEFAULT_DRAFT_KV_TOKENS) if point.method == "sparse_kv" else None
    remote = remote_draft_of(point, document)
    own = hardware if remote is None else remote.hardware
    drafter_weights = engine.stored(drafter_weights_of(point, drafter, weights, own, document, warnings))
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
    deployment, tp_std = on_devices(point, deployment, gamma, document, warnings)
    warnings += bridge_note(hardware.profile, deployment.tensor_parallel_size)
    check_parallel(deployment, document)
    prompt, output, context, usual = _lengths(point, document, warnings)
    _check_positions(target, prompt, output, context, point, document)
    acceptance = _acceptance(point, document)
    unknown = point.context_len is None and (prompt is None or output is None)
    extra_std = math.hypot(extra_std, tp_std)
    together = bool(point.prompts_together)
    return Question(
        deployment, gamma, point.batch, context, prompt, output, acceptance, extra_std, tuple(warnings), usual, unknown, together
    )


def _switches(point: OperatingPoint, engine: ServingEngine, document: Document) -> KernelSwitches:
    """The kernels that the point chooses. Raises `SpecError` where the engine has no such."""
    given = {name: value for name in SWITCHES if (value := getattr(point, name)) is not None}
    switches = check(KernelSwitches, Document(document.source, given, document.lines))
    problems = [document.problem((key,), must, got, known) for key, must, got, known in start_faults(engine, switches)]
    if problems:
        raise SpecError(problems)
    return switches


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


def _precision(point: OperatingPoint, hardware: Hardware, document: Document, warnings: list[str]) -> tuple[str, str]:
    """(weights, KV cache) from what people write, else as the model is published. Raises `UnsupportedError` for types that are
    not priced."""
    wide, text, stored = hardware.wide_dtype, point.precision, stored_weights(point.target_model)
    published = published_weights(point.target_model)
    if not text and published is not None:
        if stored is None:
            warnings.append(f"precision taken as published, {published}")
        return published, published if published in ("fp32", "fp16", "bf16") else wide
    if not text:
        warnings += unread_warning(point.target_model, wide, "precision") or [f"precision assumed {wide}"]
        return wide, wide
    weights, kv_cache = _read(text, document)
    warnings += weights_warning(weights, stored)
    weights = weights or published or wide
    kept = weights if weights in ("fp32", "fp16", "bf16") else wide
    return weights, kv_cache or kept


def _read(text: str, document: Document) -> tuple[str | None, str | None]:
    """(weights, KV cache) of a precision. Raises `UnknownNameError` for types that are not priced, with the nearest that is."""
    caches = get_args(CacheFormat)
    try:
        weights, kv_cache = read_precision(text)
    except ValueError as error:
        must, near = f"must name known types ({', '.join(FORMATS)}), and not {error}", nearest_format(str(error))
    else:
        if kv_cache is None or kv_cache in caches:
            return weights, kv_cache
        must, near = f"must have a KV cache in one of {', '.join(caches)}", nearest(kv_cache, caches)
    problem = document.problem(("precision",), must, text)
    raise UnknownNameError(SpecError([replace(problem, nearest=near)]))


def _check_uses(point: OperatingPoint, engine: ServingEngine, document: Document) -> None:
    """Every field given must change the answer, save the columns of a table. Raises `SpecError`."""
    idle = [
        ("draft_layers", "goes with method layer_skip only", point.method != "layer_skip"),
        ("draft_kv_tokens", "goes with method sparse_kv only", point.method != "sparse_kv"),
        ("max_model_len", "must be left out: kernels here do not depend on it", engine.idle_block_s is None),
        ("prompts_together", "goes with a batch of several", point.batch == 1),
    ]
    if not is_table(document):
        drafterless = point.method in MODELLESS_METHODS
        no_lengths = point.dataset is None and (point.prompt_len is None or point.output_len is None)
        idle += [
            ("prompts_together", "goes with the lengths of prompts and outputs, or a dataset's", no_lengths),
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


def _lengths(
    point: OperatingPoint, document: Document, warnings: list[str]
) -> tuple[int | None, int | None, float, DatasetLengths | None]:
    """(prompt, output, mean context while decoding) from what is given or usual for the dataset; and in which ranges, where both
    are only usual."""
    prompt, output = point.prompt_len, point.output_len
    usual = usual_lengths(point.dataset) if point.dataset and point.context_len is None else None
    if point.dataset and usual_lengths(point.dataset) is None:
        must = "must be a dataset whose lengths are known"
        if not is_table(document):
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
    warnings.append(f"context unknown: {prompt or DEFAULT_CONTEXT} tokens taken, prefill share left out of all but the interval")
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
