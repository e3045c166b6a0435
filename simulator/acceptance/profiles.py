"""Measured acceptance as files: `acceptance_profiles/*.yaml`, each number with its source, and the laws they state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from simulator import resources
from simulator.acceptance.laws import AcceptanceLaw
from simulator.acceptance.population import MixtureAcceptance
from simulator.acceptance.profile_spec import ProfileSpec, RowSpec
from simulator.acceptance.trace_files import load_trace
from simulator.acceptance.traces import TraceAcceptance
from simulator.acceptance.trees import TreeAcceptance
from simulator.draft_tree import Tree
from simulator.spec import Document, check, load_yaml


@dataclass(frozen=True, slots=True)
class Profile:
    """A checked profile: its spec, the document it came from, and its laws."""

    profile_id: str
    spec: ProfileSpec
    document: Document

    def law(self) -> AcceptanceLaw:
        """The law over all kinds of text. Raises `SpecError` where its trace cannot be read."""
        if self.spec.contexts is not None:
            return self.spec.contexts.law()
        if self.spec.trace is not None:
            return self._trace(self.spec.trace)
        if self.spec.domains is None:
            return self.spec.row_law()
        return self._mixed(self.table())

    @property
    def of_chains(self) -> bool:
        """Whether it says anything of chains; else it was measured with trees only."""
        return all(row.of_chains for row in (self.spec.domains or {"": self.spec}).values())

    def trees(self) -> tuple[Tree, ...]:
        """The trees with which every kind of text was measured."""
        measured = [{entry.shape: None for entry in row.trees or ()} for row in self._rows().values()]
        return tuple(shape for shape in measured[0] if all(shape in other for other in measured))

    def tree_table(self, tree: Tree) -> dict[str, TreeAcceptance]:
        """The law of each kind of text under a tree of `trees()`; the key is "" where the profile tells none apart."""
        return {name: next(entry.law() for entry in row.trees or () if entry.shape == tree) for name, row in self._rows().items()}

    def tree_law(self, tree: Tree) -> AcceptanceLaw:
        """The law under a tree of `trees()` over all kinds of text, by the profile's weights."""
        table = self.tree_table(tree)
        return next(iter(table.values())) if len(table) == 1 else self._mixed(table)

    def _mixed(self, table: Mapping[str, AcceptanceLaw]) -> MixtureAcceptance:
        """The laws of kinds of text by the profile's weights."""
        rows = self._rows()
        total = sum(row.weight for row in rows.values())
        note = f"requests are spread over {', '.join(table)} by the profile's weights"
        return MixtureAcceptance(tuple(rows[name].weight / total for name in table), tuple(table.values()), note=note)

    def _rows(self) -> Mapping[str, RowSpec]:
        return self.spec.domains or {"": self.spec}

    def table(self) -> dict[str, AcceptanceLaw]:
        """The law of each kind of text; empty where the profile tells none apart."""
        if self.spec.trace is not None:
            trace = self._trace(self.spec.trace)
            return {name: trace.of_category(name) for name in trace.category_names()}
        return {name: row.row_law() for name, row in (self.spec.domains or {}).items()}

    def _trace(self, name: str) -> TraceAcceptance:
        return load_trace(Path(self.document.source).parent / name)

    def warnings(self, law: AcceptanceLaw, domain: str | None, num_speculative_tokens: int) -> list[str]:
        """What a reader of the result must know: extrapolation, smoothing, contexts outside the measured ones."""
        row = self.spec if domain is None or self.spec.domains is None else self.spec.domains[domain]
        found = [law.extrapolated(num_speculative_tokens), *row.deviations(law, num_speculative_tokens)]
        if self.spec.contexts is not None:
            contexts = self.spec.contexts.mean_acceptance_length
            found.append(
                f"acceptance was measured at contexts of {min(contexts)} to {max(contexts)} tokens; outside, the nearest is held"
            )
        return [text for text in found if text]


@resources.once_per_file
def read_profile(path: str | Path) -> Profile:
    """Reads a profile file. Raises `SpecError` with every mistake and its line."""
    document = load_yaml(path)
    return Profile(Path(path).stem, check(ProfileSpec, document), document)


@cache
def shipped_profiles() -> Mapping[str, Profile]:
    """All shipped profiles by id."""
    return dict(each_shipped())


def each_shipped() -> Iterator[tuple[str, Profile]]:
    """(id, profile) of each shipped file, which is read when its turn comes."""
    for name in resources.ids("acceptance"):
        yield name, read_profile(resources.folder("acceptance") / f"{name}.yaml")
