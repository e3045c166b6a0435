"""What devices send each other: all-reduce in and between nodes, expert dispatch and combine, activations between stages.

Inside a node all-reduce follows the device's table. A group over several nodes reduces inside each, exchanges one share per
device between them, and spreads the sum again (hierarchical all-reduce, as NCCL's trees do):

    t = table(devices per node) + 2·⌈log2 nodes⌉·latency + 2·(nodes - 1)/nodes · (bytes / devices per node) / bandwidth

Expert dispatch and combine: rows go to each of their experts' devices (DeepEP's low-latency kernels), those of prompts once to
each node and on from there (its kernels for throughput),

    t = latency + max(bytes inside the node / link, bytes between nodes / inter-node bandwidth)

which with 34 µs and 46 GB/s is within 12 % of all twelve times that DeepEP publishes for H800 with 400 Gb/s InfiniBand, 8 to
256 devices.
"""

from __future__ import annotations

import math

from simulator.cost.roofline import all_reduce_s
from simulator.hardware import Hardware
from simulator.serving_engine import ServingEngine

# DeepEP reaches 153 to 158 of 200 GB/s of NVLink on H800.
LINK_FRACTION = 0.8


def all_reduce(message_bytes: float, devices: int, nodes: int, hardware: Hardware, engine: ServingEngine) -> tuple[float, float]:
    """(seconds inside nodes, seconds between them) of one all-reduce over `devices` on `nodes`."""
    per_node = max(devices // nodes, 1)
    inside_s = 0.0
    if per_node > 1:
        kind = engine.all_reduce_kind(hardware)
        # Custom kernels read their neighbours' memory: they end at the node.
        cost = hardware.all_reduce("nccl" if nodes > 1 and kind == "custom" else kind, per_node)
        inside_s = all_reduce_s(message_bytes, cost.alpha_s, cost.bandwidth_bytes_per_s, cost.large_message_bandwidth_bytes_per_s)
    if nodes == 1:
        return inside_s, 0.0
    hops = 2 * math.ceil(math.log2(nodes))
    moved = 2 * (nodes - 1) / nodes * message_bytes / per_node
    return inside_s, hops * hardware.inter_node_latency_s + moved / hardware.inter_node_bandwidth_bytes_per_s


def all_to_all_s(
    row_bytes: float, copies: float, devices: int, nodes: int, hardware: Hardware, once_a_node: bool = False
) -> float:
    """One dispatch or combine: each device sends rows of together `row_bytes`, `copies` of each, evenly to all of `devices`.

    once_a_node: a row crosses to each other node at most once and is forwarded there, as kernels for prompts do.
    """
    beyond = copies * (1 - 1 / nodes)
    inside = copies * (1 / nodes - 1 / devices)
    if once_a_node:
        beyond, inside = (nodes - 1) * (1 - (1 - 1 / nodes) ** copies), copies * (1 - 1 / devices)
    return hardware.all_to_all_latency_s + row_bytes * max(
        inside / (LINK_FRACTION * hardware.link_bandwidth_bytes_per_s(devices)),
        beyond / hardware.inter_node_bandwidth_bytes_per_s,
    )


def stage_transfer_s(message_bytes: float, between_nodes: bool, hardware: Hardware, engine: ServingEngine) -> float:
    """From one pipeline stage to the next: a send and its receive."""
    if between_nodes:
        return hardware.inter_node_latency_s + message_bytes / hardware.inter_node_bandwidth_bytes_per_s
    kind = engine.all_reduce_kind(hardware)
    pair = hardware.all_reduce("nccl" if kind == "custom" else kind, 2)
    return pair.alpha_s + message_bytes / (LINK_FRACTION * hardware.link_bandwidth_bytes_per_s())
