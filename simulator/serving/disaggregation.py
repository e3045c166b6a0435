"""Prompts computed on engines of their own: requests go there, their caches to an engine that decodes (`kv_transfer`).

Every engine that computes prompts has one link, and so has every rank of one that decodes: it sends or takes one cache at a time,
first come first served, and a transfer needs both ends. The sender holds its blocks until the cache has come. What engines tell
of one instant is acted on when all of them are done with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import simpy

from simulator.serving.clock import Clock
from simulator.serving.instant import COMPUTED, LANDS, RESERVED, Instant
from simulator.serving.kv_transfer import KVTransfer, TransferRecords
from simulator.serving.replica import Replica
from simulator.serving.router import Choose
from simulator.serving.sequence import SequenceState
from simulator.workload import Request


class _Move:
    """A request on its way. here: the engine that has it. begun: tokens of its prompt that the decoding engine has or was
    sent."""

    __slots__ = ("begin_s", "begun", "computed_s", "decode", "here", "prefill", "request", "sequence", "tokens")

    def __init__(self, request: Request, sequence: SequenceState, here: Replica):
        self.request, self.sequence, self.here = request, sequence, here
        self.prefill = self.decode = self.begun = self.tokens = 0
        self.begin_s = self.computed_s = math.nan


class Disaggregation:
    """The engines that compute prompts, those that decode, and the way between."""

    def __init__(
        self,
        env: Clock,
        instant: Instant,
        transfer: KVTransfer,
        prefill: Sequence[Replica],
        decode: Sequence[Replica],
        choose: tuple[Choose, Choose],
    ):
        self.env, self.instant, self.transfer = env, instant, transfer
        self.prefill, self.decode, self.choose = prefill, decode, choose
        self.records = TransferRecords()
        self._moves: dict[int, _Move] = {}
        # When each link of each engine is free again.
        self._prefill_free_s = [[0.0] for _ in prefill]
        self._decode_free_s = [[0.0] * transfer.decode_links for _ in decode]
        self._fetched = transfer.kind == "after_prompt"
        for index, replica in enumerate(prefill):
            replica.transfers = _End(self, len(decode) + index)
            replica.hands_over, replica.makes_first_token = True, transfer.makes_first_token
        for index, replica in enumerate(decode):
            replica.transfers = _End(self, index)

    def submit(self, request: Request) -> bool:
        """A request arrives now; False if it can never be served, which is recorded."""
        for replica in self.decode:
            if refusal := replica.refusal(request, request.output_tokens):
                return replica.refuse(request, refusal)
        place = self.choose[0](self.prefill, request) if self._fetched else 0
        if refusal := self.prefill[place].refusal(request, 1):
            return self.prefill[place].refuse(request, refusal)
        move = _Move(request, self.prefill[place].sequence(request), self.prefill[place])
        self._moves[request.request_id] = move
        self.prefill[place].arrived(move.sequence)
        if self._fetched:
            move.prefill = place
            move.here.queue(move.sequence)
        else:
            self._offer(move)
        return True

    def give_up(self, sequence: SequenceState) -> None:
        """The client of a request goes away now, from the engine that has it and from the other end of its way."""
        move = self._moves[sequence.request_id]
        move.here.give_up(sequence)
        for replica in self._with_blocks(move):
            if replica is not move.here:
                replica.outstanding -= 1

    def over(self, request_id: int) -> None:
        """A request has been answered."""
        del self._moves[request_id]

    def _offer(self, move: _Move) -> None:
        move.decode = self.choose[1](self.decode, move.request)
        move.here = self.decode[move.decode]
        move.here.offer(move.sequence)

    # ------------------------------------------------------------------------------------------------- what engines tell

    def computed(self, sequence: SequenceState, tokens: int, start_s: float, done: bool) -> None:
        """The first `tokens` tokens of a prompt have been computed."""
        move = self._moves[sequence.request_id]
        if not self._fetched:
            self._send(move, tokens, start_s, done)
        if done:
            move.computed_s = self.env.now
            move.here = self.decode[move.decode]
        if done and self._fetched:
            self._offer(move)

    def reserved(self, sequence: SequenceState, cached_tokens: int) -> None:
        """Blocks are kept for a prompt, of which the decoding engine has so many tokens."""
        move = self._moves[sequence.request_id]
        move.begun = cached_tokens
        if self._fetched:
            self._send(move, sequence.prompt_tokens, self.env.now, True)
        else:
            move.prefill = self.choose[0](self.prefill, move.request)
            move.here = self.prefill[move.prefill]
            move.here.queue(sequence)

    def dropped(self, sequence: SequenceState) -> None:
        """One that was given up has left an engine: the other need not keep its blocks."""
        for replica in self._with_blocks(self._moves.pop(sequence.request_id)):
            replica.let_go(sequence)

    def _with_blocks(self, move: _Move) -> list[Replica]:
        """The engines that keep blocks for a cache on its way."""
        ends = self.prefill[move.prefill], self.decode[move.decode]
        return [replica for replica in ends if replica.scheduler.in_transit.get(move.sequence.request_id) is move.sequence]

    # --------------------------------------------------------------------------------------------------------- the link

    def _send(self, move: _Move, tokens: int, start_s: float, done: bool) -> None:
        """Sends what is new of the first `tokens` tokens, of a step that began then and has just ended."""
        transfer, now_s = self.transfer, self.env.now
        new, move.begun = max(tokens - move.begun, 0), max(tokens, move.begun)
        move.tokens += new
        link_s = new * transfer.token_s + (transfer.sequence_s if done else 0.0)
        ready_s = start_s if transfer.kind == "by_layer" else now_s
        links = self._prefill_free_s[move.prefill], self._decode_free_s[move.decode]
        begin_s = max(ready_s, *(min(free_s) for free_s in links))
        end_s = max(begin_s + link_s, now_s)
        if transfer.kind == "by_layer":
            end_s = max(end_s, now_s + link_s / transfer.layers)
        for free_s in links:
            free_s[free_s.index(min(free_s))] = end_s
        if math.isnan(move.begin_s):
            move.begin_s = begin_s
        if done:
            self.env.at(now_s + (end_s - now_s + transfer.latency_s), partial(self._land, move), LANDS)

    def _land(self, move: _Move, _: simpy.Event) -> None:
        records, sequence = self.records, move.sequence
        records.request_id.append(sequence.request_id)
        records.tokens.append(move.tokens)
        records.computed_s.append(move.computed_s)
        records.begin_s.append(move.begin_s)
        records.landed_s.append(self.env.now)
        self.prefill[move.prefill].let_go(sequence)
        self.decode[move.decode].land(sequence, self.transfer.makes_first_token)


class _End:
    """What one engine tells, put off until all engines are done with what they do then."""

    def __init__(self, ways: Disaggregation, replica: int):
        self._ways, self._put_off = ways, partial(ways.instant.put_off, replica=replica)

    def computed(self, sequence: SequenceState, start_s: float, done: bool) -> None:
        self._put_off(COMPUTED, act=partial(self._ways.computed, sequence, sequence.computed, start_s, done))

    def reserved(self, sequence: SequenceState, cached_tokens: int) -> None:
        self._put_off(RESERVED, act=partial(self._ways.reserved, sequence, cached_tokens))

    def dropped(self, sequence: SequenceState) -> None:
        self._put_off(RESERVED, act=partial(self._ways.dropped, sequence))
