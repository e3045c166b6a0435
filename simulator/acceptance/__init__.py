"""Acceptance: which drafts a target accepts. It depends on models, text, sampler and γ, never on load.

Read `laws.py` for what a law is, `path.py` for how one request looks up its acceptance, `traces.py` for exact replay,
`trace_files.py` and `trace_summary.py` for traces on disk and in numbers, `law_fits.py` for the laws that fit one,
`rates.py` for the numbers engines print, `profiles.py` and `bands.py` for measured acceptance, `section.py` for a scenario's
section.
"""

from simulator.acceptance.bands import AcceptanceBand, band_for, measured_lengths
from simulator.acceptance.laws import AcceptanceLaw, IndependentAcceptance, MarkovAcceptance, PerPositionAcceptance
from simulator.acceptance.path import AcceptancePath, Texts
from simulator.acceptance.population import (
    BetaAcceptance,
    ContextAcceptance,
    MixtureAcceptance,
    equal_mixture,
    spread_over_requests,
)
from simulator.acceptance.profile_spec import ProfileSpec
from simulator.acceptance.profiles import Profile, read_profile, shipped_profiles
from simulator.acceptance.rates import (
    AcceptanceCounters,
    conditional_from_survival,
    sglang_acceptance_length,
    survival_from_conditional,
    survival_from_curve,
)
from simulator.acceptance.section import AcceptanceSpec, ResolvedAcceptance, resolve_acceptance, resolve_tree_acceptance
from simulator.acceptance.trace_files import TraceFile, check_trace_name, load_trace, read_trace_file, write_trace_file
from simulator.acceptance.trace_summary import Confidence, LengthAt, TraceSummary, summarise
from simulator.acceptance.traces import TraceAcceptance
from simulator.acceptance.trees import TreeAcceptance, tree_law

__all__ = [
    "AcceptanceBand",
    "AcceptanceCounters",
    "AcceptanceLaw",
    "AcceptancePath",
    "AcceptanceSpec",
    "BetaAcceptance",
    "Confidence",
    "ContextAcceptance",
    "IndependentAcceptance",
    "LengthAt",
    "MarkovAcceptance",
    "MixtureAcceptance",
    "PerPositionAcceptance",
    "Profile",
    "ProfileSpec",
    "ResolvedAcceptance",
    "Texts",
    "TraceAcceptance",
    "TraceFile",
    "TraceSummary",
    "TreeAcceptance",
    "band_for",
    "check_trace_name",
    "conditional_from_survival",
    "equal_mixture",
    "load_trace",
    "measured_lengths",
    "read_profile",
    "read_trace_file",
    "resolve_acceptance",
    "resolve_tree_acceptance",
    "sglang_acceptance_length",
    "shipped_profiles",
    "spread_over_requests",
    "summarise",
    "survival_from_conditional",
    "survival_from_curve",
    "tree_law",
    "write_trace_file",
]
