"""The pool of KV blocks: how many are free, and how many each sequence holds. Counts only; contents where prefixes are cached.

A block that several sequences read is held by the prefix cache, and counted once. Blocks that it keeps though nobody reads them
count as free: they give way whenever the pool needs their room.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.serving.prefix_cache import NOTHING, Match, Node, PrefixCache, Run


class KVCache:
    """A pool of equal blocks. A sequence's blocks only grow, until it releases them all.

    Rejected drafts leave their slots behind in the sequence's last blocks, to be written over by the next round.
    `state_blocks`: those that each sequence holds beside those of its tokens. `held_blocks`: those of each sequence alone;
    `shared_blocks`: those at its beginning that the prefix cache holds.
    """

    __slots__ = (
        "_handles",
        "block_tokens",
        "booked_blocks",
        "free_blocks",
        "held_blocks",
        "prefixes",
        "shared_blocks",
        "state_blocks",
        "total_blocks",
    )  # fmt: skip

    def __init__(self, total_blocks: int, block_tokens: int, prefix_caching: bool = False, state_blocks: int = 0):
        self.total_blocks = total_blocks
        self.block_tokens = block_tokens
        self.state_blocks = state_blocks
        self.free_blocks = total_blocks
        self.held_blocks: dict[int, int] = {}
        self.booked_blocks = 0  # held by sequences that are counted together
        self.prefixes = PrefixCache(block_tokens) if prefix_caching else None
        self.shared_blocks: dict[int, int] = {}
        self._handles: dict[int, Node] = {}

    @property
    def used_blocks(self) -> int:
        return self.total_blocks - self.free_blocks

    @property
    def read_blocks(self) -> int:
        """Blocks that all owners read: shared ones once for each."""
        return self.booked_blocks + sum(self.held_blocks.values()) + sum(self.shared_blocks.values())

    def blocks_for(self, tokens: int) -> int:
        """Blocks that a sequence of `tokens` tokens holds.

        >>> KVCache(total_blocks=8, block_tokens=16).blocks_for(17)
        2
        """
        return -(-tokens // self.block_tokens) + self.state_blocks

    def blocks_of(self, owner: int) -> int:
        """Blocks that `owner` reads, its own and shared ones; 0 for one without any."""
        return self.held_blocks.get(owner, 0) + self.shared_blocks.get(owner, 0)

    def tokens_of(self, owner: int) -> int:
        """Tokens that the blocks of `owner` hold."""
        return (self.blocks_of(owner) - self.state_blocks) * self.block_tokens

    def room_tokens(self, owner: int, found: Match = NOTHING) -> int:
        """The most tokens `owner` could hold now: in the blocks it has, or takes from what was found, and the free ones."""
        blocks = self.blocks_of(owner) + found.blocks + self.free_blocks - found.unreferenced
        return (blocks - self.state_blocks) * self.block_tokens

    def grow(self, owner: int, tokens: int, keep_free: int = 0) -> bool:
        """Gives `owner` blocks for `tokens` tokens in all, or nothing (False) where fewer than `keep_free` would be left."""
        more = self.blocks_for(tokens) - self.blocks_of(owner)
        if more <= 0:
            return True
        if more + keep_free > self.free_blocks:
            return False
        self.held_blocks[owner] = self.held_blocks.get(owner, 0) + more
        self._take(more)
        return True

    def release(self, owner: int) -> None:
        """Takes back every block of `owner`. Raises KeyError if it holds none."""
        self.free_blocks += self.held_blocks.pop(owner)
        if self.prefixes is not None:
            self.shared_blocks.pop(owner, None)
            handle = self._handles.pop(owner, None)
            if handle is not None:
                self.free_blocks += self.prefixes.release(handle)

    def book(self, blocks: int) -> None:
        """Lets the sequences that are counted together hold `blocks` in all."""
        more = blocks - self.booked_blocks
        self.booked_blocks = blocks
        self._take(more)

    def count_together(self, owner: int) -> int:
        """Moves the blocks of `owner` to those that are counted together. Returns how many."""
        held = self.held_blocks.pop(owner)
        self.booked_blocks += held
        return held

    def count_alone(self, owner: int, blocks: int) -> None:
        """Moves `blocks` of those that are counted together to `owner`."""
        self.booked_blocks -= blocks
        self.held_blocks[owner] = blocks

    def check(self) -> None:
        """Raises RuntimeError unless free and held blocks add up to the pool."""
        held = sum(self.held_blocks.values()) + self.booked_blocks
        prefixes = self.prefixes
        if prefixes is not None:
            held += prefixes.referenced_blocks
        if self.free_blocks < (0 if prefixes is None else prefixes.spare_blocks) or held + self.free_blocks != self.total_blocks:
            raise RuntimeError(f"KV blocks are not conserved: {held} held + {self.free_blocks} free != {self.total_blocks}")

    # --------------------------------------------------------------------------------------------------------- prefixes

    def find(self, runs: Sequence[Run], most_blocks: int) -> Match:
        """What the prefix cache holds of a text, at most so many blocks of it."""
        return NOTHING if self.prefixes is None else self.prefixes.match(runs, most_blocks)

    def admit(self, owner: int, tokens: int, found: Match, keep_free: int = 0) -> bool:
        """As `grow`, for a sequence that starts with the blocks that were found."""
        if not found.blocks or self.prefixes is None:
            return self.grow(owner, tokens, keep_free)
        more = max(self.blocks_for(tokens) - found.blocks, 0)
        if more + found.unreferenced + keep_free > self.free_blocks:
            return False
        self._handles[owner] = self.prefixes.acquire(found)
        self.shared_blocks[owner], self.held_blocks[owner] = found.blocks, more
        self._take(more + found.unreferenced)
        return True

    def publish(self, owner: int, runs: Sequence[Run], tokens: int) -> None:
        """Hands the full blocks of the first `tokens` tokens of a text over to the prefix cache; `owner` goes on reading them."""
        prefixes = self.prefixes
        if prefixes is None or not runs:
            return
        done, upto = self.shared_blocks.get(owner, 0), tokens // self.block_tokens
        if upto <= done:
            return
        handle, shared = prefixes.extend(self._handles.get(owner, prefixes.root), runs, done, upto)
        self._handles[owner] = handle
        self.shared_blocks[owner] = upto
        self.held_blocks[owner] -= upto - done
        self._take(-shared)

    def _take(self, blocks: int) -> None:
        """Takes so many blocks from the free ones, or gives them back."""
        self.free_blocks -= blocks
        if self.prefixes is not None:
            self.prefixes.trim(self.free_blocks)
