"""Scenario: one question with every name resolved."""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulator.acceptance import ResolvedAcceptance
from simulator.cost.deployment import Deployment
from simulator.draft_policy import Policy
from simulator.draft_tree import Tree
from simulator.hardware import Hardware
from simulator.scenario.acceptance import acceptance_law
from simulator.scenario.alternatives import names_of
from simulator.scenario.file import ScenarioFile
from simulator.scenario.limits import Limits
from simulator.scenario.prefill_instances import PrefillInstances
from simulator.spec import Document, SpecError
from simulator.workload import RequestSource


@dataclass(frozen=True)
class Scenario:
    """One question with every name resolved.

    `deployment` speculates where the scenario does; `source` is the trace or profile of the requests. further_hardware: what the
    further replicas of each kind run on, and how many they are. prefill: instances that compute prompts for all of these.
    alternatives: the same service, drafted for in another way.
    """

    name: str
    document: Document
    file: ScenarioFile
    deployment: Deployment
    limits: Limits
    source: RequestSource | None
    warnings: tuple[str, ...]
    further_hardware: tuple[tuple[Hardware, int], ...] = ()
    prefill: PrefillInstances | None = None
    alternatives: tuple[Scenario, ...] = ()

    @property
    def methods(self) -> tuple[tuple[str, Scenario], ...]:
        """(name, scenario) of the scenario's own way to draft and of each alternative; empty without speculation."""
        each = (self, *self.alternatives) if self.deployment.speculative else ()
        return tuple(zip(names_of([scenario.deployment for scenario in each]), each, strict=True))

    @property
    def remarks(self) -> tuple[str, ...]:
        """The warnings of all methods."""
        return tuple(dict.fromkeys(warning for one in (self, *self.alternatives) for warning in one.warnings))

    def alone(self) -> Scenario:
        """The scenario without its alternatives, of which the question knows nothing, and a warning that says so."""
        if not self.alternatives:
            return self
        said = f"about {self.methods[0][0]} alone: run, capacity and sweep compare the alternatives too"
        return replace(self, alternatives=(), warnings=(*self.warnings, said))

    @property
    def devices(self) -> str:
        """How many of which: ``2 × NVIDIA H100 SXM and 4 × NVIDIA L40S``; those that compute prompts alone last."""
        each = self.deployment.replica().devices
        kinds = [(self.deployment.devices, self.deployment.hardware)]
        kinds += [(each * count, hardware) for hardware, count in self.further_hardware]
        named = " and ".join(_counted(count, hardware) for count, hardware in kinds)
        return named if self.prefill is None else f"{named}, prompts on {_counted(self.prefill.devices, self.prefill.hardware)}"

    @property
    def num_devices(self) -> int:
        """All of them, a draft's own included."""
        remote, each = self.deployment.remote_draft, self.deployment.replica().devices
        further = sum(each * count for _, count in self.further_hardware)
        own = self.deployment.devices + further + (0 if self.prefill is None else self.prefill.devices)
        return own + (0 if remote is None else remote.tensor_parallel_size)

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


def _counted(count: int, hardware: Hardware) -> str:
    return f"{count} × {hardware.name}" if count > 1 else hardware.name
