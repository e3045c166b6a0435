"""Who asks, when and for how much: requests, arrival processes, lengths, shipped workload profiles, service levels.

Read `section.py` for what a user states, `request.py` for what is served, `drawing.py` for how one becomes the other;
`lengths.py` for distributions, `request_trace.py` and `profile.py` for recorded traffic, `service_level.py` for limits on
latency, `dataset_lengths.py` for the usual lengths of benchmarks.
"""

from __future__ import annotations

from simulator.workload.dataset_lengths import DatasetLengths, dataset_names, usual_lengths
from simulator.workload.drawing import lengths_by_law, requests_of, shares_prefixes, source_problems
from simulator.workload.profile import ProfileArrivals, RequestSource, WorkloadProfile, load_workload_profile, profile_ids
from simulator.workload.quantities import MAX_TOKENS, Floats, Integers
from simulator.workload.request import Content, Request, again, by_turns, content_of, mean_context_tokens
from simulator.workload.request_trace import PromptTexts, RequestTrace
from simulator.workload.section import WorkloadSpec
from simulator.workload.service_level import ServiceLevel

__all__ = [
    "MAX_TOKENS",
    "Content",
    "DatasetLengths",
    "Floats",
    "Integers",
    "ProfileArrivals",
    "PromptTexts",
    "Request",
    "RequestSource",
    "RequestTrace",
    "ServiceLevel",
    "WorkloadProfile",
    "WorkloadSpec",
    "again",
    "by_turns",
    "content_of",
    "dataset_names",
    "lengths_by_law",
    "load_workload_profile",
    "mean_context_tokens",
    "profile_ids",
    "requests_of",
    "shares_prefixes",
    "source_problems",
    "usual_lengths",
]
