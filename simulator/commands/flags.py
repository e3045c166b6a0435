"""Flags that several verbs share, and an operating point from flags."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from simulator.spec import Document, Problem, SpecError, check, plain_scalar

if TYPE_CHECKING:
    from simulator.interchange.detection import Imported
    from simulator.prediction import OperatingPoint

T = TypeVar("T")
# As `interchange.sglang` names it; not imported here, where every verb begins.
SGLANG_LOG = "sglang-log"

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else.")]
ScenarioPath = Annotated[str, typer.Argument(help="Path of a scenario YAML, or the name of a shipped one.")]


def path_of(text: str) -> Path:
    """A path that was named: an empty text would mean the working folder."""
    if not text.strip():
        raise typer.BadParameter("must be a name, not an empty text")
    return Path(text)


OutDir = Annotated[
    Path | None, typer.Option("--out", parser=path_of, metavar="FOLDER", help="Folder for the report, figures and records.")
]


# An operating point, flag by flag, and what each says. All are read as text: what is wrong is told as in a file.
POINT_FLAGS = {
    "hardware": "Device: id, name or path.",
    "target": "Target model.",
    "method": "draft_model, eagle, eagle3, medusa, hydra, mtp, ngram, suffix, block, layer_skip, sparse_kv.",
    "num_speculative_tokens": "γ, tokens drafted per round.",
    "batch": "Sequences decoding at once (default 1).",
    "draft": "Drafter; a head is built from the target where left out.",
    "draft_params": "Size of a draft model that is not known, such as 1.24B.",
    "drafter_weights": "Type of its weights; left out: by convention.",
    "draft_layers": "layer_skip: the target's first layers that draft.",
    "draft_kv_tokens": "sparse_kv: cached tokens read while drafting.",
    "tree_shape": "Such as steps=5,topk=4,draft_tokens=8 or nodes=64.",
    "engine": "Engine profile; left out: generic, wider interval.",
    "attention_backend": "Attention kernels the server is started with.",
    "deterministic": "true: kernels that give the same at any batch.",
    "graphs": "piecewise or none, where steps are not captured whole.",
    "year": "Of the engine's release, where no version is named.",
    "overlap": "false: no step is prepared ahead; true: also where the engine must be asked to.",
    "peer_to_peer": "true: cards over PCIe reach each other's memory; false: through the host's.",
    "max_model_len": "Longest sequence the server admits, for kernels that depend on it.",
    "precision": "Such as bf16, fp8, or 'fp8 weights, bf16 KV'.",
    "tensor_parallel_size": "Devices that share each layer.",
    "draft_tensor_parallel_size": "The same for the drafter.",
    "pipeline_parallel_size": "Stages that the layers are cut into.",
    "data_parallel_size": "Replicas; of a mixture, ranks that share its experts.",
    "expert_parallel": "true: whole experts on each device instead of slices.",
    "nodes": "Servers that the devices are spread over evenly.",
    "draft_hardware": "A device of the draft's own.",
    "draft_link_latency_s": "Link to it, seconds one way.",
    "draft_overlap": "true: it drafts ahead while the target verifies.",
    "context_len": "Mean tokens in the KV cache per sequence.",
    "mean_acceptance_length": "τ, tokens per round, bonus included.",
    "acceptance_rate": "α, given that all drafts before were accepted.",
    "acceptance_rates_per_position": "Unconditional, comma-separated.",
    "conditional_acceptance_rates": "Conditional, comma-separated.",
}


def takes_point(**words: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a verb a flag for each of `POINT_FLAGS` in place of its parameter `point`, which holds those that were given.

    words: what the verb says otherwise of a flag, or flags of its own that belong to the point.
    """
    texts = {**POINT_FLAGS, **words}
    flags = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, typer.Option(help=text)])
        for name, text in texts.items()
    ]

    def taking(verb: Callable[..., None]) -> Callable[..., None]:
        @wraps(verb)
        def taken(**given: Any) -> None:
            said = {name: given.pop(name) for name in texts}
            verb(point={name: text for name, text in said.items() if text is not None}, **given)

        own = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in signature(verb, eval_str=True).parameters.values()]
        place = [each.name for each in own].index("point")
        shown = [*own[:place], *flags, *own[place + 1 :]]
        taken.__signature__ = Signature(shown)  # type: ignore[attr-defined]
        taken.__annotations__ = {each.name: each.annotation for each in shown} | {"return": None}
        return taken

    return taking


def refuse_idle_counts(found: Imported, num_speculative_tokens: int | None, draft_tokens: int | None) -> None:
    """Raises `SpecError` where γ or SGLang's draft tokens are given for files that nothing of them is read into."""
    if num_speculative_tokens is not None and not any(run.speculative for run in found.runs):
        must = "must be left out: no run of these files has acceptance in it"
        raise SpecError([Problem("--num-speculative-tokens", "", must, str(num_speculative_tokens))])
    if draft_tokens is not None and not any(run.format == SGLANG_LOG for run in found.runs):
        must = "goes with a log of SGLang only: no file here is one"
        raise SpecError([Problem("--draft-tokens", "", must, str(draft_tokens))])


def at_point(given: dict[str, Any], answer: Callable[[OperatingPoint, Document], T]) -> T:
    """The answer at the operating point that flags describe; what cannot be answered is a user's mistake."""
    from simulator import prediction

    document = _flags_document(given, prediction.FLAGS)
    point = check(prediction.OperatingPoint, document)
    try:
        return answer(point, document)
    except prediction.UnknownNameError as unknown:
        raise unknown.error from None
    except prediction.UnsupportedError as reason:
        raise SpecError([Problem("", "", str(reason))]) from None


def _flags_document(given: dict[str, Any], flags: dict[str, str]) -> Document:
    """Flags as a document of an operating point, every value read as YAML reads it."""
    fields = {flag: field for field, flag in flags.items()}
    data: dict[str, Any] = {"batch": 1}
    for flag, text in given.items():
        field = fields.get(flag, flag)
        if field.endswith(("rates_per_position", "acceptance_rates")):
            data[field] = tuple(plain_scalar(part.strip()) for part in text.split(",") if part.strip())
        else:
            data[field] = text if field in _TEXT_FIELDS else plain_scalar(text)
    return _FlagDocument("", data, {})


_TEXT_FIELDS = (
    "hardware",
    "target_model",
    "method",
    "draft_model",
    "draft_params",
    "draft_hardware",
    "drafter_weights",
    "engine",
    "attention_backend",
    "graphs",
    "precision",
    "dataset",
    "tree_shape",
)


class _FlagDocument(Document):
    """A document whose keys are flags: the target model is `--target`."""

    def where(self, location: tuple[str | int, ...]) -> str:
        from simulator.prediction import FLAGS

        name = str(location[0]) if location else ""
        return "--" + FLAGS.get(name, name).replace("_", "-") if name else ""
