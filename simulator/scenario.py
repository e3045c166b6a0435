"""Scenario: one question, fully stated. Reads the file, resolves every name, checks what must hold between sections.

All mistakes of a file are reported together: a section that is wrong does not keep the others from being checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Discriminator, Field, Tag, model_validator

from simulator import resources
from simulator.acceptance import AcceptanceSpec, ResolvedAcceptance, read_profile, resolve_acceptance, resolve_tree_acceptance
from simulator.architecture import ModelArchitecture, find_model, is_same_model, stored_weights
from simulator.cost.deployment import Deployment
from simulator.cost.parallelism import Parallelism, parallel_faults
from simulator.cost.remote_draft import RemoteDraft
from simulator.draft_policy import Policy
from simulator.draft_tree import Tree
from simulator.hardware import Hardware, HardwareOverride, find_hardware, override
from simulator.interchange.request_traces import request_source
from simulator.number_format import CacheFormat, WeightFormat
from simulator.planning import PlanningSpec
from simulator.serving import RouterName
from simulator.serving_engine import ServingEngine, find_engine
from simulator.spec import Document, Problem, Spec, SpecError, check_sections, load_yaml
from simulator.speculation import (
    DEFAULT_DRAFT_KV_TOKENS,
    HEAD_FAMILIES,
    MODELLESS_METHODS,
    SELF_METHODS,
    Speculation,
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
from simulator.workload import RequestSource, RequestTrace, ServiceLevel, WorkloadSpec, shares_prefixes, source_problems

T = TypeVar("T")
Count = Annotated[int, Field(ge=1)]
UNLIMITED_MODEL_LEN = 131072


class FurtherReplicas(Spec):
    """Replicas on other devices, by the name or path of their profile; alike in everything else."""

    hardware: str
    count: Annotated[int, Field(ge=1, le=256)] = 1


class ParallelSpec(Spec):
    """Devices: tensor × pipeline × data of them, spread evenly over nodes (meanings: `cost.parallelism`).

    draft_tensor_parallel_size: as many as the target's where left out. data_parallel_size: replicas, each with limits of its own.
    further_replicas: beside them, on other devices. router: which of all replicas a request goes to, in turn where left out.
    expert_parallel: whole experts on each device instead of a slice of all.
    """

    tensor_parallel_size: Annotated[int, Field(ge=1, le=64)] = 1
    draft_tensor_parallel_size: Annotated[int, Field(ge=1, le=64)] | None = None
    pipeline_parallel_size: Annotated[int, Field(ge=1, le=64)] = 1
    data_parallel_size: Annotated[int, Field(ge=1, le=256)] = 1
    further_replicas: Annotated[tuple[FurtherReplicas, ...], Field(max_length=16)] = ()
    router: RouterName | None = None
    expert_parallel: bool = False
    nodes: Annotated[int, Field(ge=1, le=256)] = 1

    def beyond_tensor(self) -> Parallelism:
        return Parallelism(self.pipeline_parallel_size, self.data_parallel_size, self.expert_parallel, self.nodes)


class TargetSpec(Spec):
    """The model that is served, the type of its weights and of its KV cache.

    weights: left out, what the model's config.json says; bf16 where there is none.
    """

    model: str
    weights: WeightFormat | None = None
    kv_cache: CacheFormat = "bf16"


class LimitsSpec(Spec):
    """The server's limits in vLLM's words; what is left out is the engine's default.

    prefix_caching: blocks of prompts that begin alike are found again. preemption: whether a sequence that loses its blocks
    computes them again later, or has them moved to the host and back. swap_space_bytes: what the host keeps for each device then;
    4 GiB where left out.
    """

    max_num_seqs: Count | None = None
    max_num_batched_tokens: Count | None = None
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    max_model_len: Count | None = None
    prefix_caching: bool | None = None
    preemption: Literal["recompute", "swap"] = "recompute"
    swap_space_bytes: Annotated[float, Field(ge=1e6, le=1e15)] | None = None

    @model_validator(mode="after")
    def _swap_space_is_used(self) -> LimitsSpec:
        if self.swap_space_bytes is not None and self.preemption != "swap":
            raise ValueError("swap_space_bytes goes with preemption swap")
        return self


# vLLM's default of its swap space, for each GPU.
SWAP_SPACE_BYTES = 4 * 2.0**30


class SweepSpec(Spec):
    """What `specsim sweep` varies. set: key of a scenario → values, a list or a range; several keys with commas between change
    together. The other verbs answer the scenario as it stands."""

    question: str = "run"
    set: Annotated[dict[str, Any], Field(min_length=1)]


def _kind_of_hardware(value: object) -> str:
    return "a name" if isinstance(value, str) else "a mapping with base"


HardwareChoice = Annotated[
    Annotated[str, Tag("a name")] | Annotated[HardwareOverride, Tag("a mapping with base")], Discriminator(_kind_of_hardware)
]


class ScenarioFile(Spec):
    """A scenario as it is written. Keys carry their unit; everything is SI."""

    hardware: HardwareChoice
    parallel: ParallelSpec = ParallelSpec()
    engine: str
    target: TargetSpec
    speculation: Speculation | None = None
    acceptance: AcceptanceSpec | None = None
    workload: WorkloadSpec
    limits: LimitsSpec = LimitsSpec()
    service_level: ServiceLevel | None = None
    planning: PlanningSpec = PlanningSpec()
    sweep: SweepSpec | None = None
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 0


@dataclass(frozen=True)
class Limits:
    """The server's limits with the engine's defaults filled in.

    prefix_caching: also only where some prompts begin alike. swap_space_bytes: 0 where preempted sequences are recomputed.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    max_model_len: int
    prefix_caching: bool = False
    swap_space_bytes: float = 0.0


@dataclass(frozen=True)
class Scenario:
    """One question with every name resolved.

    `deployment` speculates where the scenario does; `source` is the trace or profile of the requests. further_hardware: what the
    further replicas of each kind run on, and how many they are.
    """

    name: str
    document: Document
    file: ScenarioFile
    deployment: Deployment
    limits: Limits
    source: RequestSource | None
    warnings: tuple[str, ...]
    further_hardware: tuple[tuple[Hardware, int], ...] = ()

    @property
    def devices(self) -> str:
        """How many of which: ``2 × NVIDIA H100 SXM and 4 × NVIDIA L40S``."""
        each = self.deployment.replica().devices
        kinds = [(self.deployment.devices, self.deployment.hardware)]
        kinds += [(each * count, hardware) for hardware, count in self.further_hardware]
        return " and ".join(f"{count} × {hardware.name}" if count > 1 else hardware.name for count, hardware in kinds)

    def require_one_kind(self, question: str) -> None:
        """Raises `SpecError` where replicas run on several kinds of devices, of which `question` knows nothing."""
        if self.further_hardware:
            must = f"must be left out: {question} is about replicas that are alike"
            raise SpecError([self.document.problem(("parallel", "further_replicas"), must)])

    @property
    def shapes(self) -> tuple[Tree, ...]:
        """Every chain and tree to compare; empty without speculation."""
        return self.file.speculation.shapes if self.file.speculation else ()

    @property
    def variants(self) -> tuple[tuple[Tree, Policy], ...]:
        """Every shape and the policy that drafts it; empty without speculation."""
        return self.file.speculation.variants if self.file.speculation else ()

    @property
    def gammas(self) -> tuple[int, ...]:
        """Every number of speculative tokens to compare, of chains; empty without speculation."""
        return self.file.speculation.gammas if self.file.speculation else ()

    def acceptance(self, gamma: int, tree: Tree | None = None) -> ResolvedAcceptance | None:
        """The acceptance law at γ or of a tree, or None where the scenario leaves acceptance open."""
        spec = self.file.acceptance
        return None if spec is None else _resolved(spec, self.document, gamma, self.gammas, tree, alone=len(self.shapes) == 1)

    def deployed(self, shape: Tree) -> Deployment:
        """The deployment as it drafts a shape."""
        return replace(self.deployment, tree=None if shape.is_chain else shape)


def _resolved(
    spec: AcceptanceSpec, document: Document, gamma: int, gammas: tuple[int, ...], tree: Tree | None = None, alone: bool = False
) -> ResolvedAcceptance:
    """The law at γ or of a tree. A lone mean acceptance length holds at the largest γ asked for; the others follow from its
    law."""
    if tree is not None and not tree.is_chain:
        return resolve_tree_acceptance(spec, document, tree, alone)
    if spec.mean_acceptance_length is None:
        return resolve_acceptance(spec, document, gamma)
    resolved = resolve_acceptance(spec, document, max(gammas))
    further = resolved.law.extrapolated(gamma)
    return replace(resolved, warnings=(*resolved.warnings, further) if further else resolved.warnings)


def load_scenario(path: str | Path) -> Scenario:
    """A scenario by path or by the id of a shipped one. Raises `SpecError` with every mistake found."""
    return scenario_of(scenario_document(path))


def scenario_document(path: str | Path) -> Document:
    """The same as it is written. Raises `SpecError` where there is no such file or it is no YAML."""
    found = resources.file_of("scenario", str(path))
    if found is None and not str(path).endswith((".yaml", ".yml")) and "/" not in str(path):
        raise resources.unknown("", "scenario", "scenario", str(path), resources.ids("scenario"))
    return load_yaml(found or path)


def scenario_of(document: Document) -> Scenario:
    """The scenario in a parsed document. Raises `SpecError` with every mistake found."""
    if not isinstance(document.data, dict):
        raise SpecError(
            [document.problem((), "must be a mapping of sections such as hardware, target and workload", document.data)]
        )
    sections, problems = check_sections(ScenarioFile, document)
    resolved = _Resolver(document, sections, problems)
    scenario = resolved.scenario()
    if problems or scenario is None:
        raise SpecError(sorted(dict.fromkeys(problems), key=_line))
    return scenario


def _line(problem: Problem) -> int:
    tail = problem.where.rpartition(":")[2]
    return int(tail) if tail.isdigit() else 0


class _Resolver:
    """Resolves names section by section and collects problems; a check runs when all it looks at is there."""

    def __init__(self, document: Document, sections: dict[str, Any], problems: list[Problem]):
        self.document, self.sections, self.problems = document, sections, problems
        self.warnings: list[str] = []

    def scenario(self) -> Scenario | None:
        hardware = self._attempt(self._hardware)
        engine = self._attempt(self._engine)
        target = self._attempt(self._target)
        drafter = self._attempt(lambda: self._drafter(target))
        remote = self._attempt(self._remote_draft)
        further = self._attempt(self._further_hardware)
        source = self._attempt(self._source)
        self._acceptance_fits()
        self._collect(self._between_models(target, drafter))
        self._collect(self._parallel_problems(engine, target, drafter))
        self._collect(self._limit_problems(engine, target))
        self._collect(self._sharing_problems(source))
        if hardware is None or engine is None or target is None or further is None or self.problems:
            return None
        deployment = self._deployment(hardware, engine, target, drafter, remote)
        limits = self._limits(engine, target, source)
        self._collect(self._memory_problems(deployment, limits))
        self._collect(self._further_replica_problems(deployment, limits, further))
        self._collect(self._router_problems(deployment, limits, bool(further)))
        self._draft_window_warning(drafter, limits)
        if deployment.draft_device_binds(limits.gpu_memory_utilization):
            self.warnings.append("the draft's own device holds fewer tokens than the target's: it limits how many requests run")
        for each in (hardware, *(other for other, _ in further)):
            self.warnings += arithmetic_warning(each, deployment.weights)
        self._other_target_warnings(target, drafter)
        self._mtp_depth_warning(target)
        if limits.prefix_caching and target.has_recurrent_state:
            self.warnings.append(
                f"the prefix cache is taken to keep {target.name}'s recurrent states at every block; engines keep few of them "
                "and find less"
            )
        name = Path(self.document.source).stem
        file = ScenarioFile.model_construct(**self.sections)
        return Scenario(name, self.document, file, deployment, limits, source, tuple(self.warnings), further)

    def _attempt(self, resolve: Callable[[], T]) -> T | None:
        try:
            return resolve()
        except SpecError as error:
            self.problems += error.problems
        except KeyError:  # the section itself is missing or wrong, and already reported
            pass
        return None

    def _collect(self, problems: Iterator[Problem]) -> None:
        self.problems += problems

    # ------------------------------------------------------------------------------------------------------------ names

    def _hardware(self) -> Hardware:
        choice = self.sections["hardware"]
        if isinstance(choice, str):
            return find_hardware(choice, self.document.where(("hardware",)))
        base = find_hardware(choice.base, self.document.where(("hardware", "base")), "hardware.base")
        return override(base, choice, self.document)

    def _engine(self) -> ServingEngine:
        return find_engine(self.sections["engine"], self.document.where(("engine",)))

    def _remote_draft(self) -> RemoteDraft | None:
        """The draft's own device, where it has one."""
        speculation: Speculation | None = self.sections["speculation"]
        where = None if speculation is None else speculation.draft_device
        if where is None:
            return None
        location = ("speculation", "draft_device", "hardware")
        hardware = find_hardware(where.hardware, self.document.where(location), ".".join(location))
        return RemoteDraft(hardware, where.tensor_parallel_size, where.link_latency_s, where.overlap)

    def _further_hardware(self) -> tuple[tuple[Hardware, int], ...]:
        found = []
        for index, kind in enumerate(self.sections["parallel"].further_replicas):
            location = ("parallel", "further_replicas", index, "hardware")
            where = self.document.where(location)
            found.append((find_hardware(kind.hardware, where, "parallel.further_replicas.hardware"), kind.count))
        return tuple(found)

    def _target(self) -> ModelArchitecture:
        found = find_model(
            self.sections["target"].model, self.document.where(("target", "model")), "target.model", "target model"
        )
        if found.kind == "draft_head":
            raise SpecError([self.document.problem(("target", "model"), "must be a whole model, not a draft head", found.name)])
        return found

    def _drafter(self, target: ModelArchitecture | None) -> ModelArchitecture | None:
        """The drafter by name; for a head method without one, built from the target with a warning."""
        speculation: Speculation | None = self.sections["speculation"]
        if speculation is None or speculation.method in MODELLESS_METHODS:
            return None
        location = ("speculation", "drafter")
        if speculation.method in SELF_METHODS:
            layers = None if target is None else target.num_hidden_layers
            if layers is not None and (speculation.draft_layers or 0) > layers:
                must = f"must be at most {layers}, the layers of {target.name}"  # type: ignore[union-attr]
                raise SpecError([self.document.problem(("speculation", "draft_layers"), must, speculation.draft_layers)])
            return None if target is None else self_draft(target, speculation.method, speculation.draft_layers)
        if speculation.drafter is None:
            if target is None or speculation.method not in HEAD_FAMILIES:
                return None
            self.warnings.append(
                f"no drafter named: {speculation.method} drafting by a module built from the target, of the usual shape"
            )
            return built_head(target, speculation.method, max(shape.depth for shape in speculation.shapes))
        found = find_model(speculation.drafter, self.document.where(location), "speculation.drafter", "drafter")
        fault = drafter_problem(speculation.method, found)
        if fault:
            raise SpecError([self.document.problem(location, fault, speculation.drafter)])
        return found

    def _source(self) -> RequestSource | None:
        """The trace or profile that `workload.requests.trace` means."""
        workload: WorkloadSpec = self.sections["workload"]
        location = ("workload", "requests", "trace")
        source = None
        if workload.requests is not None:
            folder = Path(self.document.source).parent
            named = workload.requests.columns
            columns = named.model_dump() if named is not None else None
            tokenizer = workload.requests.tokenizer
            where = self.document.where(location)
            source = request_source(workload.requests.trace, folder, where, columns=columns, tokenizer=tokenizer)
        self._collect(iter(source_problems(workload, source, self.document, ("workload",))))
        if isinstance(source, RequestTrace):
            self.warnings += source.notes
        return source

    # ------------------------------------------------------------------------------------------------- between sections

    def _acceptance_fits(self) -> None:
        """Acceptance needs speculation, and must be possible at every γ asked for."""
        spec: AcceptanceSpec | None = self.sections.get("acceptance")
        if spec is None or "speculation" not in self.sections:
            return
        speculation: Speculation | None = self.sections["speculation"]
        if speculation is None or speculation.method == "none":
            self.problems.append(
                self.document.problem(("acceptance",), "must be left out without speculation: it would change nothing")
            )
            return
        if spec.proposal_rate is not None and speculation.method not in MODELLESS_METHODS:
            must = f"must be left out: {speculation.method} always proposes"
            self.problems.append(self.document.problem(("acceptance", "proposal_rate"), must, spec.proposal_rate))
        if self._profile_of_another_method(spec, speculation.method):
            return
        self._collect(self._trees_not_asked_for(spec, speculation))
        for shape in speculation.shapes:
            resolved = self._attempt(lambda shape=shape: self._law_of(spec, speculation, shape))  # type: ignore[misc]
            if resolved is None:
                return
            notes = (*resolved.warnings, *([resolved.law.note] if resolved.law.note else []))
            self.warnings += [note for note in notes if note not in self.warnings]

    def _law_of(self, spec: AcceptanceSpec, speculation: Speculation, shape: Tree) -> ResolvedAcceptance:
        return _resolved(spec, self.document, shape.steps, speculation.gammas, shape, alone=len(speculation.shapes) == 1)

    def _trees_not_asked_for(self, spec: AcceptanceSpec, speculation: Speculation) -> Iterator[Problem]:
        """Acceptance of trees that the scenario does not draft: it would change nothing."""
        for index, entry in enumerate(spec.trees or ()):
            if entry.shape not in speculation.shapes:
                must = f"must be a tree of the speculation section ({entry.shape.name} is not)"
                yield self.document.problem(("acceptance", "trees", index), must)
        if spec.law_key != "trees" and set(speculation.shapes) <= {entry.shape for entry in spec.trees or ()}:
            must = "must be left out: every shape has its own acceptance in trees"
            yield self.document.problem(("acceptance", spec.law_key), must)

    def _profile_of_another_method(self, spec: AcceptanceSpec, method: str) -> bool:
        """Whether the acceptance profile was measured for another way of drafting, which says nothing of this one."""
        path = resources.file_of("acceptance", spec.profile) if spec.profile is not None else None
        profile = self._attempt(lambda: read_profile(path)) if path is not None else None
        if profile is None or profile.spec.method == method:
            return False
        must = f"must be a profile measured for method {method} ({spec.profile} is for {profile.spec.method})"
        self.problems.append(self.document.problem(("acceptance", "profile"), must))
        return True

    def _mtp_depth_warning(self, target: ModelArchitecture | None) -> None:
        """Beyond the depth a target was trained with, its last module is used again, and accepts less."""
        speculation: Speculation | None = self.sections.get("speculation")
        if target is None or speculation is None or speculation.method != "mtp":
            return
        depth = target.num_nextn_predict_layers
        if depth and max((shape.depth for shape in speculation.shapes), default=0) > depth:
            self.warnings.append(
                f"{target.name} has {depth} MTP module(s): beyond depth {depth} the last is used again and accepts less"
            )

    def _between_models(self, target: ModelArchitecture | None, drafter: ModelArchitecture | None) -> Iterator[Problem]:
        """Target and drafter must share a vocabulary, γ must fit the drafter, and heads must divide over devices."""
        speculation: Speculation | None = self.sections.get("speculation")
        if target is not None and drafter is not None and speculation is not None:
            fault = tokenizer_problem(target, drafter)
            if fault and not speculation.heterogeneous_vocabulary:
                hint = (
                    "; set heterogeneous_vocabulary where the engine maps between them"
                    if speculation.method == "draft_model"
                    else ""
                )
                yield self.document.problem(("speculation", "drafter"), fault + hint)
            for shape in speculation.shapes:
                limit, what = drafts_at_once(drafter)
                if limit is not None and shape.depth > limit:
                    chain = "num_speculative_tokens" if speculation.num_speculative_tokens is not None else "by_batch"
                    chain = chain if getattr(speculation, chain) is not None else "policy"
                    must = f"must be at most {limit}, the {what} of drafter {drafter.name}"
                    yield self.document.problem(("speculation", chain if shape.is_chain else "tree"), must, shape.depth)
        yield from self._head_problems(target, drafter)

    def _head_problems(self, target: ModelArchitecture | None, drafter: ModelArchitecture | None) -> Iterator[Problem]:
        parallel: ParallelSpec | None = self.sections.get("parallel")
        if parallel is None:
            return
        size = parallel.tensor_parallel_size
        draft_size = parallel.draft_tensor_parallel_size
        if draft_size is not None and drafter is None and "speculation" in self.sections:
            must = "must be left out without a drafter model: it would change nothing"
            yield self.document.problem(("parallel", "draft_tensor_parallel_size"), must)
        speculation: Speculation | None = self.sections.get("speculation")
        device = speculation.draft_device if speculation is not None else None
        if draft_size is not None and device is not None:
            must = "must be left out where the draft has a device of its own, which states it"
            yield self.document.problem(("parallel", "draft_tensor_parallel_size"), must, draft_size)
        sides: list[tuple[tuple[str, ...], int | None, ModelArchitecture | None]] = [
            (("parallel", "tensor_parallel_size"), size, target),
            (("parallel", "draft_tensor_parallel_size"), draft_size, drafter),
        ]
        if device is not None:
            sides.append((("speculation", "draft_device", "tensor_parallel_size"), device.tensor_parallel_size, drafter))
        for key, devices, model in sides:
            if devices is not None and model is not None and (model.num_attention_heads or 0) % devices:
                must = f"must divide the {model.num_attention_heads} attention heads of {model.name}"
                yield self.document.problem(key, must, devices)

    def _parallel_problems(
        self, engine: ServingEngine | None, target: ModelArchitecture | None, drafter: ModelArchitecture | None
    ) -> Iterator[Problem]:
        """Stages, ranks, experts and nodes must fit the models, and the engine must run them."""
        parallel: ParallelSpec | None = self.sections.get("parallel")
        if parallel is None or engine is None or target is None or "speculation" not in self.sections:
            return
        speculation: Speculation | None = self.sections["speculation"]
        tensor, draft = parallel.tensor_parallel_size, parallel.draft_tensor_parallel_size
        method = speculation.method if speculation is not None else "none"
        for key, must, got in parallel_faults(parallel.beyond_tensor(), tensor, draft, target, drafter, engine, method):
            yield self.document.problem(("parallel", key), must, got)

    def _limit_problems(self, engine: ServingEngine | None, target: ModelArchitecture | None) -> Iterator[Problem]:
        """A sequence with its drafts must fit into a step, and the model must know the positions."""
        limits: LimitsSpec | None = self.sections.get("limits")
        speculation: Speculation | None = self.sections.get("speculation")
        if limits is None:
            return
        positions = target.max_position_embeddings if target is not None else None
        if limits.max_model_len is not None and positions is not None and limits.max_model_len > positions:
            must = f"must be at most {positions}, the positions of {target.name}"  # type: ignore[union-attr]
            yield self.document.problem(("limits", "max_model_len"), must, limits.max_model_len)
        budget = limits.max_num_batched_tokens or (engine.max_num_batched_tokens if engine is not None else None)
        largest = max(speculation.shapes, key=lambda shape: shape.nodes, default=None) if speculation is not None else None
        if largest is not None and budget is not None and largest.nodes > budget:
            rows = "num_speculative_tokens + 1" if largest.is_chain else f"the nodes of {largest.name}"
            must = f"must be at least {rows} = {largest.nodes}"
            yield self.document.problem(("limits", "max_num_batched_tokens"), must, budget)

    def _sharing_problems(self, source: RequestSource | None) -> Iterator[Problem]:
        """Caching of prefixes needs prompts that begin alike."""
        limits: LimitsSpec | None = self.sections.get("limits")
        if limits is None or limits.prefix_caching is None or "workload" not in self.sections:
            return
        if not shares_prefixes(self.sections["workload"], source):
            sharing = "workload.shared_prefix_tokens, workload.sessions, or a trace with hash_ids"
            must = f"must be left out: no two prompts begin alike; that takes {sharing}"
            yield self.document.problem(("limits", "prefix_caching"), must, limits.prefix_caching)

    def _further_replica_problems(
        self, deployment: Deployment, limits: Limits, further: Sequence[tuple[Hardware, int]]
    ) -> Iterator[Problem]:
        """Weights must leave room for a KV cache on every kind of device. A remark where there are several kinds."""
        for index, (hardware, _) in enumerate(further):
            if replace(deployment.replica(), hardware=hardware).kv_blocks(limits.gpu_memory_utilization) < 1:
                must = f"must hold a replica of {deployment.target.name} and a KV cache on {deployment.replica().devices} of them"
                yield self.document.problem(("parallel", "further_replicas", index, "hardware"), must, hardware.name)
        if further:
            self.warnings.append(
                f"R, its doubt, causes, break-even and the size of the KV cache are those of {deployment.hardware.name}; "
                "replicas on other devices are served at their own prices and with their own memory"
            )

    def _router_problems(self, deployment: Deployment, limits: Limits, further: bool) -> Iterator[Problem]:
        """A router needs replicas to choose from, and something to tell them by."""
        router = self.sections["parallel"].router
        if router is not None and deployment.independent_replicas == 1 and not further:
            must = "must be left out: there is one replica"
            if deployment.parallelism.data_parallel_size > 1:
                must += f", as the ranks of {deployment.target.name} step together"
            yield self.document.problem(("parallel", "router"), must, router)
        elif router == "prefix_aware" and not limits.prefix_caching:
            must = "must be another router: no replica keeps prefixes (limits.prefix_caching, and prompts that begin alike)"
            yield self.document.problem(("parallel", "router"), must, router)

    def _memory_problems(self, deployment: Deployment, limits: Limits) -> Iterator[Problem]:
        """Weights and the engine's own memory must leave room for one block."""
        if deployment.kv_blocks(limits.gpu_memory_utilization) > 0:
            return
        if deployment.plain().kv_blocks(limits.gpu_memory_utilization) > 0 and deployment.remote_draft is not None:
            name = deployment.remote_draft.hardware.name
            must = f"must hold the drafter and a KV cache on {deployment.remote_draft.tensor_parallel_size} × {name}"
            yield self.document.problem(("speculation", "draft_device"), must)
            return
        size = deployment.tensor_parallel_size
        fitting = [n for n in (2, 4, 8, 16) if n > size and self._fits(deployment, n, limits)]
        hint = f"; tensor_parallel_size {fitting[0]} would fit" if fitting else ""
        have = deployment.hardware.memory_bytes * limits.gpu_memory_utilization / 1e9
        need = (deployment.weight_bytes() + deployment.engine.reserved_bytes.value) / 1e9
        must = (
            f"must fit in memory at tensor_parallel_size {size}: weights and engine need {need:.1f} GB "
            f"of {have:.1f} GB usable on each {deployment.hardware.name}, before any KV cache{hint}"
        )
        yield self.document.problem(("target", "model"), must)

    @staticmethod
    def _fits(deployment: Deployment, size: int, limits: Limits) -> bool:
        wider = replace(
            deployment, tensor_parallel_size=size, draft_tensor_parallel_size=max(size, deployment.draft_tensor_parallel_size)
        )
        return wider.kv_blocks(limits.gpu_memory_utilization) > 0

    def _draft_window_warning(self, drafter: ModelArchitecture | None, limits: Limits) -> None:
        if drafter is None or drafter.max_position_embeddings is None or drafter.max_position_embeddings >= limits.max_model_len:
            return
        self.warnings.append(
            f"drafter {drafter.name} was trained for {drafter.max_position_embeddings} positions: "
            "beyond them acceptance is usually much lower than the profile's"
        )

    def _other_target_warnings(self, target: ModelArchitecture, drafter: ModelArchitecture | None) -> None:
        """A head trained for another model, and acceptance measured on another one."""
        speculation: Speculation | None = self.sections.get("speculation")
        if drafter is not None and speculation is not None and speculation.drafter is not None:
            self.warnings += other_target_warning(target, drafter)
        spec: AcceptanceSpec | None = self.sections.get("acceptance")
        path = resources.file_of("acceptance", spec.profile) if spec is not None and spec.profile is not None else None
        measured_on = read_profile(path).spec.target if path is not None else target.name
        if not is_same_model(measured_on, target):
            self.warnings.append(
                f"acceptance profile {spec.profile} was measured on {measured_on}, not on {target.name}: "  # type: ignore[union-attr]
                "acceptance differs between models"
            )

    # ----------------------------------------------------------------------------------------------------------- joining

    def _deployment(
        self,
        hardware: Hardware,
        engine: ServingEngine,
        target: ModelArchitecture,
        drafter: ModelArchitecture | None,
        remote: RemoteDraft | None,
    ) -> Deployment:
        parallel, spec = self.sections["parallel"], self.sections["target"]
        speculation: Speculation | None = self.sections["speculation"]
        draft_size = parallel.draft_tensor_parallel_size or parallel.tensor_parallel_size
        if drafter is not None and (drafter.num_attention_heads or 0) % draft_size:
            draft_size = 1
        kv_tokens = None
        if speculation is not None and speculation.method == "sparse_kv":
            kv_tokens = speculation.draft_kv_tokens or DEFAULT_DRAFT_KV_TOKENS
        weights = self._target_weights(spec)
        drafter_weights = self._drafter_weights(speculation, weights, hardware if remote is None else remote.hardware)
        return Deployment(
            hardware, engine, target, weights, spec.kv_cache, parallel.tensor_parallel_size,
            speculation.method if speculation else "none", drafter, drafter_weights, draft_size if drafter is not None else 1,
            kv_tokens, parallelism=parallel.beyond_tensor(), remote_draft=remote,
        )  # fmt: skip

    def _target_weights(self, spec: TargetSpec) -> str:
        stored = stored_weights(spec.model)
        self.warnings += weights_warning(spec.weights, stored)
        return spec.weights or stored or "bf16"

    def _drafter_weights(self, speculation: Speculation | None, weights: str, hardware: Hardware) -> str:
        if speculation is None or speculation.method in MODELLESS_METHODS:
            return hardware.wide_dtype
        if speculation.drafter_weights is not None:
            return speculation.drafter_weights
        stored = None if speculation.drafter is None else stored_weights(speculation.drafter)
        chosen, warning = default_drafter_weights(speculation.method, weights, hardware.wide_dtype, stored)
        self.warnings += [warning] if warning else []
        return chosen

    def _limits(self, engine: ServingEngine, target: ModelArchitecture, source: RequestSource | None) -> Limits:
        given: LimitsSpec = self.sections["limits"]
        return Limits(
            given.max_num_seqs or engine.max_num_seqs,
            given.max_num_batched_tokens or engine.max_num_batched_tokens,
            given.gpu_memory_utilization or engine.gpu_memory_utilization,
            given.max_model_len or target.max_position_embeddings or UNLIMITED_MODEL_LEN,
            self._caches_prefixes(engine, source),
            (given.swap_space_bytes or SWAP_SPACE_BYTES) if given.preemption == "swap" else 0.0,
        )

    def _caches_prefixes(self, engine: ServingEngine, source: RequestSource | None) -> bool:
        given: LimitsSpec = self.sections["limits"]
        wanted = engine.prefix_caching if given.prefix_caching is None else given.prefix_caching
        return wanted and shares_prefixes(self.sections["workload"], source)
