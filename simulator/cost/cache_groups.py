"""Groups of layers with a block table of their own, each of which an engine prepares anew in every step."""

from __future__ import annotations

import math
from functools import lru_cache

from simulator.architecture import RECURRENT, ModelArchitecture

# Kinds whose numbers of layers are this close share one size of group, the larger, which pads the smaller kind.
NEARLY_EQUAL = 1.5


@lru_cache(maxsize=1024)
def cache_groups(target: ModelArchitecture, drafter: ModelArchitecture | None) -> int:
    """How many there are by vLLM's rule: layers that keep the same form one kind, and every kind is cut into groups as large as
    the smallest kind (vllm-project/vllm#49472). One odd layer of a drafter so leaves a group to each layer (#51742).

    >>> from simulator.architecture import find_model
    >>> target = find_model("Qwen/Qwen3.6-35B-A3B")
    >>> cache_groups(target, None), cache_groups(target, find_model("z-lab/Qwen3.6-35B-A3B-DFlash"))
    (4, 46)
    """
    layers: dict[tuple[str, float, float, int | None], int] = {}
    for model in (target, drafter):
        for group in model.layer_groups(1) if model is not None else ():
            if group.attention != "none":
                kept = ("cache", group.kv_heads, float(group.head_dim))
                if group.attention in RECURRENT:
                    kept = ("state", group.state_elements, 1.0)
                key = (*kept, group.window)
                layers[key] = layers.get(key, 0) + group.count
    # Without states or windows all layers share one table, whatever their widths.
    if len({(kind, window) for kind, _, _, window in layers}) < 2:
        return 1
    smallest, largest = min(layers.values()), max(layers.values())
    size = largest if largest < NEARLY_EQUAL * smallest else smallest
    return sum(math.ceil(count / size) for count in layers.values())
