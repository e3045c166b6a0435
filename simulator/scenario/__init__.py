"""Scenario: one question, fully stated. Reads the file, resolves every name, checks what must hold between sections.

Read `file.py` for what a user may write, `scenario.py` for what it means, `loading.py` for the way from one to the other:
`names.py` looks parts up, `acceptance.py` and `section_checks.py` say what must hold between sections, `joining.py` joins them,
`remarks.py` says what is doubtful though it is allowed; `reading.py` keeps what they find.
"""

from __future__ import annotations

from simulator.scenario.alternatives import SECTION as ALTERNATIVES
from simulator.scenario.file import ParallelSpec, ScenarioFile, SweepSpec
from simulator.scenario.limits import Limits
from simulator.scenario.loading import load_scenario, scenario_document, scenario_of
from simulator.scenario.names import NO_DRAFTER
from simulator.scenario.prefill_instances import PrefillInstances
from simulator.scenario.scenario import Scenario

__all__ = [
    "ALTERNATIVES",
    "NO_DRAFTER",
    "Limits",
    "ParallelSpec",
    "PrefillInstances",
    "Scenario",
    "ScenarioFile",
    "SweepSpec",
    "load_scenario",
    "scenario_document",
    "scenario_of",
]
