"""What comes from a file: strict, frozen, and every mistake reported with its line.

`yaml_file.py` reads YAML and remembers the line of every key, `document.py` holds what was read, `checks.py` turns it into a
`Spec` or raises one `SpecError` that holds *all* its problems: `problem.py` says what they are, `findings.py` words pydantic's.
"""

from __future__ import annotations

from simulator.spec.checks import Spec, check, check_sections
from simulator.spec.document import Document, Location, dotted
from simulator.spec.findings import models_in
from simulator.spec.problem import Problem, SpecError, nearest, shown, why_unreadable
from simulator.spec.yaml_file import load_yaml, parse_yaml, plain_scalar, unique_keys

__all__ = [
    "Document",
    "Location",
    "Problem",
    "Spec",
    "SpecError",
    "check",
    "check_sections",
    "dotted",
    "load_yaml",
    "models_in",
    "nearest",
    "parse_yaml",
    "plain_scalar",
    "shown",
    "unique_keys",
    "why_unreadable",
]
