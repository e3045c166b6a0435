"""Flags that several verbs share, and an operating point from flags."""

from __future__ import annotations

from collections.abc import Callable
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


# An operating point, flag by flag, as predict and explain take it.
HardwareFlag = Annotated[str | None, typer.Option(help="Device: id, name or path.")]
TargetFlag = Annotated[str | None, typer.Option(help="Target model.")]
MethodFlag = Annotated[
    str | None, typer.Option(help="draft_model, eagle, eagle3, medusa, hydra, mtp, ngram, suffix, block, layer_skip, sparse_kv.")
]
NumSpeculativeTokensFlag = Annotated[str | None, typer.Option(help="γ, tokens drafted per round.")]
DraftFlag = Annotated[str | None, typer.Option(help="Drafter; a head is built from the target where left out.")]
DraftParamsFlag = Annotated[str | None, typer.Option(help="Size of a draft model that is not known, such as 1.24B.")]
DrafterWeightsFlag = Annotated[str | None, typer.Option(help="Type of its weights; left out: by convention.")]
DraftLayersFlag = Annotated[str | None, typer.Option(help="layer_skip: the target's first layers that draft.")]
DraftKvTokensFlag = Annotated[str | None, typer.Option(help="sparse_kv: cached tokens read while drafting.")]
TreeShapeFlag = Annotated[str | None, typer.Option(help="Such as steps=5,topk=4,draft_tokens=8 or nodes=64.")]
EngineFlag = Annotated[str | None, typer.Option(help="Engine profile; left out: generic, wider interval.")]
AttentionBackendFlag = Annotated[str | None, typer.Option(help="Attention kernels the server is started with.")]
DeterministicFlag = Annotated[str | None, typer.Option(help="true: kernels that give the same at any batch.")]
GraphsFlag = Annotated[str | None, typer.Option(help="piecewise or none, where steps are not captured whole.")]
YearFlag = Annotated[str | None, typer.Option(help="Of the engine's release, where no version is named.")]
OverlapFlag = Annotated[
    str | None, typer.Option(help="false: no step is prepared ahead; true: also where the engine must be asked to.")
]
PeerToPeerFlag = Annotated[
    str | None, typer.Option(help="true: cards over PCIe reach each other's memory; false: through the host's.")
]
MaxModelLenFlag = Annotated[str | None, typer.Option(help="Longest sequence the server admits, for kernels that depend on it.")]
PrecisionFlag = Annotated[str | None, typer.Option(help="Such as bf16, fp8, or 'fp8 weights, bf16 KV'.")]
TensorParallelSizeFlag = Annotated[str | None, typer.Option(help="Devices that share each layer.")]
DraftTensorParallelSizeFlag = Annotated[str | None, typer.Option(help="The same for the drafter.")]
PipelineParallelSizeFlag = Annotated[str | None, typer.Option(help="Stages that the layers are cut into.")]
DataParallelSizeFlag = Annotated[str | None, typer.Option(help="Replicas; of a mixture, ranks that share its experts.")]
ExpertParallelFlag = Annotated[str | None, typer.Option(help="true: whole experts on each device instead of slices.")]
NodesFlag = Annotated[str | None, typer.Option(help="Servers that the devices are spread over evenly.")]
DraftHardwareFlag = Annotated[str | None, typer.Option(help="A device of the draft's own.")]
DraftLinkLatencySFlag = Annotated[str | None, typer.Option(help="Link to it, seconds one way.")]
DraftOverlapFlag = Annotated[str | None, typer.Option(help="true: it drafts ahead while the target verifies.")]
MeanAcceptanceLengthFlag = Annotated[str | None, typer.Option(help="τ, tokens per round, bonus included.")]
AcceptanceRateFlag = Annotated[str | None, typer.Option(help="α, given that all drafts before were accepted.")]
AcceptanceRatesPerPositionFlag = Annotated[str | None, typer.Option(help="Unconditional, comma-separated.")]
ConditionalAcceptanceRatesFlag = Annotated[str | None, typer.Option(help="Conditional, comma-separated.")]


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
