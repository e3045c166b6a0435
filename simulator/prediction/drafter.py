"""The drafter of an operating point: found, built from the target, or guessed from its size."""

from __future__ import annotations

import re
from pathlib import Path

from simulator import resources
from simulator.architecture import ModelArchitecture, cache_reader, config_path, find_model, stand_in_draft, stored_weights
from simulator.hardware import Hardware
from simulator.prediction.point import FLAGS, OperatingPoint, is_table
from simulator.prediction.unsupported import UnsupportedError
from simulator.printed_numbers import significant
from simulator.spec import Document, SpecError, shown
from simulator.speculation import (
    HEAD_FAMILIES,
    MODELLESS_METHODS,
    SELF_METHODS,
    built_head,
    default_drafter_weights,
    drafter_problem,
    drafts_at_once,
    other_target_warning,
    self_draft,
    tokenizer_problem,
    unread_warning,
)

# A head that is not known is built from its target: its cost is known to about a twentieth.
STAND_IN_STD = 0.05
# What a module is taken to be where it is not an EAGLE head.
_USUAL_HEADS = {
    "medusa": "one block and an LM head a draft", "hydra": "a layer, then four blocks and an LM head a draft",
    "mtp": "one layer as the target's", "block": "five layers, target width",
}  # fmt: skip


def find_drafter(
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
    found = _named_drafter(point, document, warnings)
    if found is None and method in HEAD_FAMILIES:
        return _usual_module(point, target, gamma, warnings)
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
    if point.draft_params is not None and not is_table(document):
        raise SpecError(
            [document.problem(("draft_params",), f"must be left out: the size of {found.name} is known", point.draft_params)]
        )
    warnings += other_target_warning(target, found)
    return found, 0.0


def _usual_module(
    point: OperatingPoint, target: ModelArchitecture, gamma: int, warnings: list[str]
) -> tuple[ModelArchitecture, float]:
    """A module for a head method whose own is not known: the one published drafter that reads this target's cache, or one built
    from the target; and the doubt of it."""
    usual = cache_reader(target) if point.method == "mtp" and point.draft_model is None else None
    if usual is not None:
        warnings.append(f"drafter unknown: {usual.name} taken")
        return usual, 0.0
    name = f"drafter {point.draft_model}" if point.draft_model else "drafter"
    warnings.append(f"{name} unknown: built from the target ({_USUAL_HEADS.get(point.method, 'one layer, target width')})")
    return built_head(target, point.method, gamma), STAND_IN_STD


def drafter_weights_of(
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
    chosen, warning = default_drafter_weights(point.method, weights, hardware.wide_dtype, stored, drafter)
    warnings += unread_warning(point.draft_model, chosen, "drafter_weights") or ([warning] if warning else [])
    return chosen


def _named_drafter(point: OperatingPoint, document: Document, warnings: list[str]) -> ModelArchitecture | None:
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
    if not is_table(document) or point.method not in HEAD_FAMILIES:
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
        must = (
            f"must be at least {significant(shape.parameter_count / 2e6)}M: a decoder needs a vocabulary of {target.vocab_size:,}"
        )
        raise SpecError([document.problem(("draft_params",), must, text)])
    return shape
