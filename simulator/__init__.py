"""Predicting the performance of speculative decoding.

Reading guide: `theory` (closed forms), `cost.pricer` (one round against one plain step), `acceptance` (what is accepted),
`serving.replica` (the event loop), `simulation` (all of it joined). The names below load on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "load_scenario": "simulator.scenario",
    "simulate": "simulator.simulation",
    "predict": "simulator.prediction",
    "break_even": "simulator.questions.break_even",
    "capacity": "simulator.questions.capacity",
    "calibrate_device": "simulator.calibrate",
    "schedule": "simulator.questions.schedule",
    "explain": "simulator.questions.explanation",
    "compare": "simulator.questions.comparison",
    "sensitivity": "simulator.questions.sensitivity",
    "fit_engine": "simulator.questions.server_fit",
    "SpecError": "simulator.spec",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'simulator' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
