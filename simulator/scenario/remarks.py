"""What is doubtful about a scenario though it is allowed."""

from __future__ import annotations

from collections.abc import Sequence

from simulator import resources
from simulator.acceptance import AcceptanceSpec, read_profile
from simulator.architecture import ModelArchitecture, is_same_model
from simulator.cost.deployment import Deployment
from simulator.hardware import Hardware, bridge_note
from simulator.scenario.limits import Limits
from simulator.scenario.prefill_instances import PrefillInstances
from simulator.scenario.reading import Reading
from simulator.speculation import Speculation, arithmetic_warning, other_target_warning


def remark(
    reading: Reading,
    deployment: Deployment,
    limits: Limits,
    further: Sequence[tuple[Hardware, int]],
    prefill: PrefillInstances | None,
) -> None:
    """Adds to the warnings of a scenario in which nothing is wrong."""
    target, drafter = deployment.target, deployment.drafter
    if further:
        reading.warnings.append(
            f"R, its doubt, causes, break-even and the size of the KV cache are those of {deployment.hardware.name}; "
            "replicas on other devices are served at their own prices and with their own memory"
        )
    if prefill is not None:
        reading.warnings.append(_of_prefill(deployment, prefill))
    if deployment.draft_device_binds(limits.gpu_memory_utilization):
        reading.warnings.append("the draft's own device holds fewer tokens than the target's: it limits how many requests run")
    for each in (deployment.hardware, *(other for other, _ in further)):
        reading.warnings.extend(arithmetic_warning(each, deployment.weights))
    reading.warnings.extend(bridge_note(deployment.hardware.profile, deployment.tensor_parallel_size))
    _warn_of_other_targets(reading, target, drafter)
    _warn_of_mtp_depth(reading, target)
    _warn_of_pauses(reading, deployment, limits)
    if limits.prefix_caching and target.has_recurrent_state:
        reading.warnings.append(
            f"the prefix cache is taken to keep {target.name}'s recurrent states at every block; engines keep few of them "
            "and find less"
        )


def _of_prefill(deployment: Deployment, prefill: PrefillInstances) -> str:
    """What instances that compute prompts mean for the answer, and what a cache of 1,000 tokens takes on its way."""
    transfer, tokens = prefill.transfer(deployment), 1000
    way_s = tokens * transfer.token_s + transfer.sequence_s + transfer.latency_s
    instances = f"{prefill.instances} instance{'s' if prefill.instances > 1 else ''}"
    return (
        f"prompts are computed on {instances} of {prefill.tensor_parallel_size} × {prefill.hardware.name}, and the KV cache of "
        f"1,000 tokens takes {1e3 * way_s:.3g} ms from there ({prefill.kv_transfer.replace('_', ' ')}): R, its doubt, causes and "
        "break-even are those of the instances that decode"
    )


def _warn_of_mtp_depth(reading: Reading, target: ModelArchitecture) -> None:
    """Beyond the depth a target was trained with, its last module is used again, and accepts less."""
    speculation: Speculation | None = reading.sections.get("speculation")
    if speculation is None or speculation.method != "mtp":
        return
    depth = target.num_nextn_predict_layers
    if depth and max((shape.depth for shape in speculation.shapes), default=0) > depth:
        reading.warnings.append(
            f"{target.name} has {depth} MTP module(s): beyond depth {depth} the last is used again and accepts less"
        )


def _warn_of_pauses(reading: Reading, deployment: Deployment, limits: Limits) -> None:
    """Where the drafter misses the tokens of steps without drafts."""
    speculation: Speculation | None = reading.sections.get("speculation")
    if speculation is None or not deployment.keeps_draft_cache or deployment.engine.draft_cache_when_off == "kept":
        return
    pausing = [policy.kind for policy in speculation.policies if policy.pauses(limits.max_num_seqs)]
    if pausing:
        reading.warnings.append(
            f"{deployment.engine.name}'s drafter does not see the tokens of steps without drafts: requests that live through a "
            f"pause of policy {', '.join(pausing)} are accepted less ever after; simulated as if its cache were kept in step"
        )


def _warn_of_other_targets(reading: Reading, target: ModelArchitecture, drafter: ModelArchitecture | None) -> None:
    """A head trained for another model, and acceptance measured on another one."""
    speculation: Speculation | None = reading.sections.get("speculation")
    if drafter is not None and speculation is not None and speculation.drafter is not None:
        reading.warnings.extend(other_target_warning(target, drafter))
    spec: AcceptanceSpec | None = reading.sections.get("acceptance")
    path = resources.file_of("acceptance", spec.profile) if spec is not None and spec.profile is not None else None
    measured_on = read_profile(path).spec.target if path is not None else target.name
    if not is_same_model(measured_on, target):
        reading.warnings.append(
            f"acceptance profile {spec.profile} was measured on {measured_on}, not on {target.name}: "  # type: ignore[union-attr]
            "acceptance differs between models"
        )
