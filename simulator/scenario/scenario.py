"""Scenario: one question with every name resolved."""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulator.acceptance import ResolvedAcceptance
from simulator.cost.deployment import Deployment
from simulator.draft_policy import Policy
from simulator.draft_tree import Tree
from simulator.hardware import Hardware
from simulator.scenario.acceptance import acceptance_law
from simulator.scenario.file import ScenarioFile
from simulator.spec import Document, SpecError
from simulator.workload import RequestSource


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
        if self.file.acceptance is None:
            return None
        alone = len(self.shapes) == 1
        return acceptance_law(self.file.acceptance, self.document, gamma, self.gammas, tree, alone)

    def deployed(self, shape: Tree) -> Deployment:
        """The deployment as it drafts a shape."""
        return replace(self.deployment, tree=None if shape.is_chain else shape)
