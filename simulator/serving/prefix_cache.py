"""Blocks whose contents are kept to be found again: a radix tree over the texts of prompts, by whole blocks.

A block stands for all tokens up to its end: two requests share one where they agree up to there. A node is a stretch of blocks
that were always found together; a path from the root is a text. Blocks that a sequence reads are referenced and stay; the others
are dropped when the pool needs their room, least recently released first, the end of a text before its beginning (SGLang's radix
cache; vLLM keeps the same order in its queue of free blocks).
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import NamedTuple

from simulator.workload import Content

Run = tuple[Hashable, int]
"""Consecutive blocks inside one text, or one block across the border of two: (what it begins with, blocks)."""


@lru_cache(maxsize=2)  # a router looks for one text on every replica, and then sends it to one
def block_runs(content: Content, block_tokens: int) -> tuple[Run, ...]:
    """The full blocks of a text.

    >>> block_runs(((7, 40), (8, 30)), 16)
    (((7, 0), 2), (((7, 32, 8), (8, 0, 8)), 1), ((8, 8), 1))
    """
    runs: list[Run] = []
    begun: list[tuple[int, int, int]] = []  # pieces of a block that is not full yet
    room = block_tokens
    for text, tokens in content:
        start = min(room, tokens) if begun else 0
        if begun:
            begun.append((text, 0, start))
            room -= start
            if room:
                continue
            runs.append((tuple(begun), 1))
        whole, rest = divmod(tokens - start, block_tokens)
        if whole:
            runs.append(((text, start), whole))
        begun, room = ([(text, tokens - rest, rest)], block_tokens - rest) if rest else ([], block_tokens)
    return tuple(runs)


class Node:
    """A stretch of blocks. `references`: sequences that read it; `released`: which release of all was the last of it."""

    __slots__ = ("blocks", "children", "key", "parent", "references", "released")

    def __init__(self, key: Hashable, blocks: int, parent: Node | None):
        self.key, self.blocks, self.parent = key, blocks, parent
        self.children: dict[Hashable, Node] = {}
        self.references = 0
        self.released = 0


class Match(NamedTuple):
    """What is cached of a text: blocks in all, those of them that nobody reads, the last node that matches whole, and of its
    child `inside` some blocks more."""

    blocks: int
    unreferenced: int
    node: Node | None = None
    inside: Node | None = None
    inside_blocks: int = 0


NOTHING = Match(0, 0)


class PrefixCache:
    """The tree. `referenced_blocks` of it are read by sequences, `spare_blocks` by nobody."""

    def __init__(self, block_tokens: int):
        self.block_tokens = block_tokens
        self.root = Node(None, 0, None)
        self.referenced_blocks = self.spare_blocks = 0
        self._leaves: list[tuple[int, int, Node]] = []  # that could be dropped, or could once
        self._serial = self._releases = 0

    def match(self, runs: Sequence[Run], most_blocks: int) -> Match:
        """The longest cached beginning of a text, of at most so many blocks. Changes nothing."""
        node, blocks, unreferenced = self.root, 0, 0
        for key, count in runs:
            left = min(count, most_blocks - blocks)
            if not left:
                break
            while left:
                child = node.children.get(key)
                if child is None:
                    return Match(blocks, unreferenced, node)
                taken = min(left, child.blocks)
                blocks += taken
                unreferenced += 0 if child.references else taken
                if taken < child.blocks:
                    return Match(blocks, unreferenced, node, child, taken)
                node, left = child, left - taken
                key = self._further(key, taken)
        return Match(blocks, unreferenced, node)

    def acquire(self, match: Match) -> Node:
        """Lets a sequence read what was matched. Returns its handle."""
        node = match.node
        assert node is not None
        if match.inside is not None:
            node = self._split(match.inside, match.inside_blocks)
        above = node
        while above.parent is not None:
            self._refer(above)
            above = above.parent
        return node

    def extend(self, node: Node, runs: Sequence[Run], done: int, upto: int) -> tuple[Node, int]:
        """Puts blocks `done` to `upto` - 1 of a text below `node`, whose reader has computed them.

        Returns its new handle, and how many of them were there already, read by others: its own copies of those are not needed.
        """
        first = last = shared = 0
        for key, count in runs:
            first, last = last, last + count
            if last <= done:
                continue
            if first >= upto:
                break
            begin, end = max(done, first), min(upto, last)
            part = self._further(key, begin - first) if begin > first else key
            while begin < end:
                child = node.children.get(part)
                if child is None:
                    child = node.children[part] = Node(part, end - begin, node)
                    self.spare_blocks += child.blocks
                elif child.blocks > end - begin:
                    child = self._split(child, end - begin)
                shared += child.blocks if child.references else 0
                self._refer(child)
                node, begin = child, begin + child.blocks
                part = self._further(part, child.blocks)
        return node, shared

    def release(self, node: Node) -> int:
        """Lets go of all that a handle reads. Returns how many blocks nobody reads any more."""
        self._releases += 1
        freed, here = 0, node
        while here.parent is not None:
            here.references -= 1
            here.released = self._releases
            if not here.references:
                freed += here.blocks
                self._offer(here)
            here = here.parent
        self.referenced_blocks -= freed
        self.spare_blocks += freed
        return freed

    def trim(self, most_spare: int) -> None:
        """Drops the blocks released longest ago, until at most so many are spare."""
        while self.spare_blocks > most_spare:
            released, _, node = heapq.heappop(self._leaves)
            if node.references or node.children or node.released != released or node.parent is None:
                continue  # read again since, or part of a longer text, or gone
            dropped = min(node.blocks, self.spare_blocks - most_spare)
            node.blocks -= dropped
            self.spare_blocks -= dropped
            if node.blocks:
                self._offer(node)
                continue
            parent, node.parent = node.parent, None
            del parent.children[node.key]
            self._offer(parent)

    def _refer(self, node: Node) -> None:
        if not node.references:
            self.referenced_blocks += node.blocks
            self.spare_blocks -= node.blocks
        node.references += 1

    def _offer(self, node: Node) -> None:
        """Notes a leaf that nobody reads."""
        if node.parent is not None and not node.references and not node.children:
            self._serial += 1
            heapq.heappush(self._leaves, (node.released, self._serial, node))

    def _split(self, node: Node, blocks: int) -> Node:
        """Makes the first `blocks` blocks of a node its parent, and returns that; handles to the node read both."""
        upper = Node(node.key, blocks, node.parent)
        upper.references, upper.released = node.references, node.released
        assert node.parent is not None
        node.parent.children[node.key] = upper
        node.key, node.blocks, node.parent = self._further(node.key, blocks), node.blocks - blocks, upper
        upper.children[node.key] = node
        return upper

    def _further(self, key: Hashable, blocks: int) -> Hashable:
        """What a run begins with after its first `blocks` blocks. A block across a border has no more."""
        if isinstance(key, tuple) and isinstance(key[0], int):
            return key[0], key[1] + blocks * self.block_tokens
        return None
