"""Maps of cells, one for each batch and context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def hatch_cell(axes: Axes, x: int, y: int) -> None:
    """Marks the cell as one that the KV cache does not hold."""
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, hatch="///", edgecolor="#B5B5B5", lw=0))


def batch_by_context(axes: Axes, batches: Sequence[int], contexts: Sequence[int], margin: float = 0.0) -> Axes:
    """Axes of a map whose cells have their middles at whole numbers. margin: room for lines around it, in cells."""
    axes.set(xlim=(-0.5 - margin, len(batches) - 0.5 + margin), ylim=(-0.5 - margin, len(contexts) - 0.5 + margin))
    axes.set_xticks(range(len(batches)), [str(batch) for batch in batches])
    axes.set_yticks(range(len(contexts)), [f"{context:,}" for context in contexts])
    axes.set(xlabel="batch (sequences)", ylabel="context (tokens)")
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return axes
