"""Tree: what one round drafts, a chain of γ tokens or a tree of several tokens a depth; read from what people write."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from simulator.spec import Spec


@dataclass(frozen=True, slots=True)
class Tree:
    """What a round drafts. nodes: rows verified per sequence, root included. steps: draft passes. width: rows of each later
    pass, 1 in a chain."""

    nodes: int
    steps: int
    width: int

    @classmethod
    def chain(cls, num_speculative_tokens: int) -> Tree:
        """γ drafts one after the other.

        >>> Tree.chain(3)
        Tree(nodes=4, steps=3, width=1)
        """
        return cls(num_speculative_tokens + 1, num_speculative_tokens, 1)

    @property
    def is_chain(self) -> bool:
        return self.width == 1

    @property
    def depth(self) -> int:
        """The most drafts that a round can accept: one a step, where there are nodes for it."""
        return min(self.steps, self.nodes - 1)

    @property
    def name(self) -> str:
        """``γ = 3``, or ``tree 5/4/8``: steps / width / nodes."""
        return f"γ = {self.steps}" if self.is_chain else f"tree {self.steps}/{self.width}/{self.nodes}"


TreeSize = Annotated[int, Field(ge=1, le=1024)]


class TreeSpec(Spec):
    """A tree by its sizes: steps, topk and draft_tokens as SGLang means them (root counted), or nodes and depth."""

    steps: TreeSize | None = None
    topk: TreeSize | None = None
    draft_tokens: TreeSize | None = None
    nodes: TreeSize | None = None
    depth: TreeSize | None = None

    @model_validator(mode="after")
    def _is_a_tree(self) -> TreeSpec:
        read_tree(self.sizes())
        return self

    def sizes(self) -> dict[str, int]:
        return self.model_dump(exclude_none=True)


def _tree_text(text: str) -> str:
    read_tree(text)
    return text


TreeShape = Annotated[str, AfterValidator(_tree_text)] | TreeSpec
TREE_EXAMPLES = "steps=5,topk=4,draft_tokens=8, nodes=60,depth=5 or nodes=64"


def read_tree(shape: str | Mapping[str, int] | TreeSpec) -> Tree:
    """A tree as people write it: ``steps=5,topk=4,draft_tokens=8`` (SGLang: root counted), ``nodes=60,depth=5`` or ``nodes=64``.

    Where depth or width is not said, EAGLE-2's five steps of ten are taken. ``topk=1`` is a chain, of one node more than steps.
    Raises ValueError for what is no tree.

    >>> read_tree("steps=5,topk=4,draft_tokens=8"), read_tree({"steps": 3, "topk": 1})
    (Tree(nodes=8, steps=5, width=4), Tree(nodes=4, steps=3, width=1))
    """
    given = _sizes(shape) if isinstance(shape, str) else shape.sizes() if isinstance(shape, TreeSpec) else dict(shape)
    for one, other in (("nodes", "draft_tokens"), ("steps", "depth")):
        if one in given and other in given:
            raise ValueError(f"must say {one} or {other}, not both")
    nodes = given.get("nodes", given.get("draft_tokens"))
    steps, width = given.get("steps", given.get("depth")), given.get("topk")
    if width == 1:
        steps = steps or (nodes or 0) - 1
        if steps < 1 or (nodes or steps + 1) != steps + 1:
            raise ValueError(
                f"must have one node more than steps where topk is 1: a chain and its root (got {nodes} and {steps})"
            )
        return Tree.chain(steps)
    if nodes is None or nodes < 2:
        raise ValueError(f"must say how many nodes are verified, root included: such as {TREE_EXAMPLES}")
    if steps is not None and width is not None and nodes > 1 + width + (steps - 1) * width**2:
        raise ValueError(
            f"must have at most 1 + topk + (steps - 1)·topk² = {1 + width + (steps - 1) * width**2} nodes (got {nodes})"
        )
    return Tree(nodes, steps or 5, min(width or 10, nodes))


def _sizes(text: str) -> dict[str, int]:
    """``steps=5,topk=4`` as a mapping."""
    given = {}
    for part in text.replace(" ", "").split(","):
        name, _, value = part.partition("=")
        if name not in TreeSpec.model_fields or name in given or not re.fullmatch("[0-9]{1,4}", value) or int(value) < 1:
            raise ValueError(f"must be such as {TREE_EXAMPLES}")
        given[name] = int(value)
    return given
