"""The pool of KV blocks: how many are free, and how many each sequence holds. Counts only, no contents."""

from __future__ import annotations


class KVCache:
    """A pool of equal blocks. A sequence's blocks only grow, until it releases them all.

    Rejected drafts leave their slots behind in the sequence's last blocks, to be written over by the next round.
    """

    __slots__ = ("block_tokens", "booked_blocks", "free_blocks", "held_blocks", "total_blocks")

    def __init__(self, total_blocks: int, block_tokens: int):
        self.total_blocks = total_blocks
        self.block_tokens = block_tokens
        self.free_blocks = total_blocks
        self.held_blocks: dict[int, int] = {}
        self.booked_blocks = 0  # held by sequences that are counted together

    @property
    def used_blocks(self) -> int:
        return self.total_blocks - self.free_blocks

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold `tokens` tokens.

        >>> KVCache(total_blocks=8, block_tokens=16).blocks_for(17)
        2
        """
        return -(-tokens // self.block_tokens)

    def room_tokens(self, owner: int) -> int:
        """The most tokens `owner` could hold now: in its own blocks and the free ones."""
        return (self.held_blocks.get(owner, 0) + self.free_blocks) * self.block_tokens

    def grow(self, owner: int, tokens: int, keep_free: int = 0) -> bool:
        """Gives `owner` blocks for `tokens` tokens in all, or nothing (False) where fewer than `keep_free` would be left."""
        held = self.held_blocks.get(owner, 0)
        more = self.blocks_for(tokens) - held
        if more <= 0:
            return True
        if more + keep_free > self.free_blocks:
            return False
        self.free_blocks -= more
        self.held_blocks[owner] = held + more
        return True

    def release(self, owner: int) -> None:
        """Takes back every block of `owner`. Raises KeyError if it holds none."""
        self.free_blocks += self.held_blocks.pop(owner)

    def book(self, blocks: int) -> None:
        """Lets the sequences that are counted together hold `blocks` in all."""
        self.free_blocks += self.booked_blocks - blocks
        self.booked_blocks = blocks

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
        if self.free_blocks < 0 or held + self.free_blocks != self.total_blocks:
            raise RuntimeError(f"KV blocks are not conserved: {held} held + {self.free_blocks} free != {self.total_blocks}")
