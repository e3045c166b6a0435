"""HardwareProfile: datasheet peaks and efficiency coefficients of one device, each with its source and its doubt.

Effective rates are peak × fraction. Read `quantity.py` for a number with its source, `coefficients.py` for what they are,
`profile.py` for a file of `hardware_profiles`, `defaults.py` for what a profile leaves out, `device.py` for the device as the
cost model asks it, `finding.py` for names, `overrides.py` for what a scenario changes.
"""

from __future__ import annotations

from simulator.hardware.all_reduce import AllReduceCost, AllReduceKind, AllReduceTable
from simulator.hardware.coefficients import BY_TYPE, Coefficients, GemmRates
from simulator.hardware.defaults import LAYER_KINDS, filled
from simulator.hardware.device import Hardware
from simulator.hardware.finding import find_hardware
from simulator.hardware.links import INTER_NODE, bridge_note
from simulator.hardware.overrides import HardwareOverride, override
from simulator.hardware.profile import HardwareProfile, Kind
from simulator.hardware.quantity import Quantity, quantities_of
from simulator.hardware.row_factors import RowFactors

__all__ = [
    "BY_TYPE",
    "INTER_NODE",
    "LAYER_KINDS",
    "AllReduceCost",
    "AllReduceKind",
    "AllReduceTable",
    "Coefficients",
    "GemmRates",
    "Hardware",
    "HardwareOverride",
    "HardwareProfile",
    "Kind",
    "Quantity",
    "RowFactors",
    "bridge_note",
    "filled",
    "find_hardware",
    "override",
    "quantities_of",
]
