"""simulate: a scenario served without and with speculation on the same random streams, and what that says.

The composition root: requests, acceptance paths, prices and batching rules meet here. Read `run.py` for the whole, `server.py`
for one way to serve, `variant.py` for what came of it, `comparison.py` for what speculation changed, `gains.py` and `verdict.py`
for how sure that is, `choice.py` for which of several to take, `causes.py` for why, `saturation.py` for what a full replica
finishes, `batching.py` for limits.
"""

from __future__ import annotations

from simulator.simulation.batching import batching_rules
from simulator.simulation.causes import cause_in_words
from simulator.simulation.choice import TIE, at_worse_end, chosen
from simulator.simulation.comparison import Comparison, drafted_at, proposal_share
from simulator.simulation.gains import paired_doubt
from simulator.simulation.leading import leading
from simulator.simulation.progress import Progress
from simulator.simulation.result import SimulationResult
from simulator.simulation.run import simulate
from simulator.simulation.saturation import saturation_of
from simulator.simulation.server import Server, name_of_way, speculative_servers
from simulator.simulation.variant import Variant, plain_load, require_served
from simulator.simulation.verdict import FEWEST_MOVED, LEAST_EFFECT, Verdict, nearly_all, room_in_words, verdict_of

__all__ = [
    "FEWEST_MOVED",
    "LEAST_EFFECT",
    "TIE",
    "Comparison",
    "Progress",
    "Server",
    "SimulationResult",
    "Variant",
    "Verdict",
    "at_worse_end",
    "batching_rules",
    "cause_in_words",
    "chosen",
    "drafted_at",
    "leading",
    "name_of_way",
    "nearly_all",
    "paired_doubt",
    "plain_load",
    "proposal_share",
    "require_served",
    "room_in_words",
    "saturation_of",
    "simulate",
    "speculative_servers",
    "verdict_of",
]
