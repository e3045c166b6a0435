"""Question: an operating point with everything resolved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simulator.acceptance import AcceptanceLaw, AcceptanceSpec, resolve_acceptance, resolve_tree_acceptance
from simulator.cost.deployment import Deployment
from simulator.spec import Document
from simulator.workload import DatasetLengths

# Tokens of a prompt, and of an answer, where nobody says.
DEFAULT_CONTEXT, DEFAULT_OUTPUT = 1024, 512
MEMORY_UTILIZATION = 0.9


@dataclass(frozen=True)
class Question:
    """An operating point with everything resolved. extra_std: doubt of ln R from what had to be assumed. usual: the lengths' fair
    ranges, where they are a dataset's usual ones. lengths_unknown: neither lengths nor a context were given, so that the share of
    prompts in a throughput is left out. prompts_together: those of a batch share passes."""

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
    lengths_unknown: bool = False
    prompts_together: bool = False

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
