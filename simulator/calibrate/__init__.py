"""Calibration: measure this device, fit the cost model, say whether to believe it, write a hardware profile.

Reading guide: `survey` (what the device is), `plan` (what is measured), `session` (measuring), `device_fit` (fitting),
`report` (believe it?), `profile` (the file). Names load on first use.
"""

from __future__ import annotations

from typing import Any

_HOME = {
    "Calibration": "simulator.calibrate.device_calibration",
    "Request": "simulator.calibrate.survey",
    "calibrate_device": "simulator.calibrate.device_calibration",
    "fit_measurements": "simulator.calibrate.device_fit",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module 'simulator.calibrate' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
