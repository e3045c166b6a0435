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
from simulator.workload import Request, RequestSource, requests_of


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
        """(name, scenario of that method alone) of the scenario's own way to draft and of each alternative; empty without
        speculation."""
        own = replace(self, alternatives=()) if self.alternatives else self
        each = (own, *self.alternatives) if self.deployment.speculative else ()
        return tuple(zip(names_of([scenario.deployment for scenario in each]), each, strict=True))

    @property
    def remarks(self) -> tuple[str, ...]:
        """The warnings of all methods."""
        return tuple(dict.fromkeys(warning for one in (self, *self.alternatives) for warning in one.warnings))

    def alone(self) -> Scenario:
        """The scenario without its alternatives, of which the question knows nothing, and a warning that says so."""
        if not self.alternatives:
            return self
        others = "run, capacity, schedule, sweep and the map of break-even compare the alternatives too"
        return replace(self, alternatives=(), warnings=(*self.warnings, f"about {self.methods[0][0]} alone: {others}"))

    @property
    def devices(self) -> str:
        """How many of which: ``2 × NVIDIA H100 SXM and 4 × NVIDIA L40S``; those that compute prompts alone last."""
        named = " and ".join(_counted(hardware, count) for hardware, count in self._decoding(self.deployment))
        return named if self.prefill is None else f"{named}, prompts on {_counted(self.prefill.hardware, self.prefill.devices)}"

    def hardware_counts(self, deployment: Deployment) -> tuple[tuple[Hardware, int], ...]:
        """(device, how many) of all that serve, with `deployment` where the scenario has its own: a draft's device too."""
        counts = self._decoding(deployment)
        if deployment.remote_draft is not None:
            counts.append((deployment.remote_draft.hardware, deployment.remote_draft.tensor_parallel_size))
        if self.prefill is not None:
            counts.append((self.prefill.hardware, self.prefill.devices))
        return tuple(counts)

    def _decoding(self, deployment: Deployment) -> list[tuple[Hardware, int]]:
        each = deployment.replica().devices
        further = [(hardware, each * count) for hardware, count in self.further_hardware]
        return [(deployment.hardware, deployment.devices), *further]

    def require_one_server(self, question: str) -> None:
        """Raises `SpecError` where replicas run on several kinds of devices, or prompts on some of their own: what `question`
        takes from measured runs is of one engine on one kind of device that does both."""
        for key, stated in (("further_replicas", self.further_hardware), ("disaggregated_prefill", self.prefill)):
            if stated:
                must = f"must be left out: {question} holds measured runs of one engine against one kind of device; ask for each"
                raise SpecError([self.document.problem(("parallel", key), must)])

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

    def requests(self) -> tuple[Request, ...]:
        """The requests of its workload in order of arrival, drawn by its seed."""
        return requests_of(self.file.workload, self.file.seed, self.source)

    def acceptance(self, gamma: int, tree: Tree | None = None) -> ResolvedAcceptance | None:
        """The acceptance law at γ or of a tree, or None where the scenario leaves acceptance open."""
        if self.file.acceptance is None:
            return None
        alone = len(self.shapes) == 1
        return acceptance_law(self.file.acceptance, self.document, gamma, self.gammas, tree, alone)

    def deployed(self, shape: Tree) -> Deployment:
        """The deployment as it drafts a shape."""
        return replace(self.deployment, tree=None if shape.is_chain else shape)


def _counted(hardware: Hardware, count: int) -> str:
    return f"{count} × {hardware.name}" if count > 1 else hardware.name
