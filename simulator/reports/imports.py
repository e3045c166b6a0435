"""Imported runs for people and programs: what was read, from which field, and how it was converted; and the files written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from simulator.interchange import imported
from simulator.interchange.detection import Imported
from simulator.interchange.engine_flags import ServerSettings
from simulator.interchange.imported import Settings
from simulator.interchange.observed import ObservedRun
from simulator.printed_numbers import significant
from simulator.reports.files import replace_files, write_text
from simulator.spec import SpecError

HEADER = ("quantity", "value", "field", "conversion")
_WORDS = {
    "mean_acceptance_length": "mean acceptance length τ",
    "draft_acceptance_rate": "draft acceptance rate",
    "acceptance_rates_per_position": "acceptance rates per position",
    "num_speculative_tokens": "γ",
}
_FIRST = tuple(_WORDS)


def import_sentence(run: ObservedRun) -> str:
    """One line: what the run is."""
    if not run.speculative:
        return f"{run.where}: {run.format}, no acceptance in it (a plain run, or a server that exports none)"
    counted = f" over {run.counters.drafts} rounds" if run.counters else ""
    gamma = run.value("num_speculative_tokens")
    return f"{run.where}: {run.format}, τ = {significant(run.mean_acceptance_length)} tokens per round{counted}" + (
        f" at γ = {gamma}" if gamma else ""
    )


def import_rows(run: ObservedRun) -> list[tuple[str, str, str, str]]:
    """Rows under `HEADER`, acceptance first."""
    names = [name for name in _FIRST if name in run.readings] + sorted(set(run.readings) - set(_FIRST))
    rows = []
    for name in names:
        reading = run.readings[name]
        rows.append(
            (
                _WORDS.get(name, _words(name)),
                _shown(name, reading.value),
                reading.field,
                reading.conversion,
            )
        )
    if run.counters is not None:
        counts = run.counters
        text = f"{counts.accepted_tokens} of {counts.draft_tokens} in {counts.drafts}"
        rows.insert(0, ("accepted of drafted, in rounds", text, "counters", "as counted"))
    return rows


def settings_rows(server: ServerSettings) -> list[tuple[str, str]]:
    """(key of a scenario, value) of a server's settings."""
    return [(f"{section}.{key}", str(value)) for section, keys in server.sections.items() for key, value in keys.items()]


def import_summary(found: Imported) -> dict[str, Any]:
    """The JSON document of an import."""
    rows = []
    for run in found.runs:
        readings = {
            name: {"value": list(reading.value) if isinstance(reading.value, tuple) else reading.value,
                   "field": reading.field, "where": reading.where, "conversion": reading.conversion}
            for name, reading in run.readings.items()
        }  # fmt: skip
        counts = run.counters
        counters = None if counts is None else {
            "drafts": counts.drafts, "draft_tokens": counts.draft_tokens, "accepted_tokens": counts.accepted_tokens,
            "rounds_without_draft": counts.rounds_without_draft,
        }  # fmt: skip
        rows.append(
            {"format": run.format, "where": run.where, "readings": readings, "counters": counters, "notes": list(run.notes)}
        )
    server = found.server
    stated = None if server is None else {"engine": server.engine, "sections": server.sections, "notes": server.notes}
    tables = [
        {"where": table.where, "bias_s": table.bias_s, "sequences": table.sequences, "alpha_s": table.alpha_s,
         "rows": table.rows, "theta_s": table.theta_s}
        for table in found.step_costs
    ]  # fmt: skip
    return {"schema_version": 1, "runs": rows, "server": stated, "step_costs": tables}


def write_import(found: Imported, settings: Settings, directory: Path) -> tuple[tuple[Path, ...], list[str]]:
    """Writes measured.yaml and what else the runs can give. Returns the files, and what was left out and why.

    Raises `SpecError` where the folder cannot be written.
    """
    texts, left_out = _texts(found, settings)

    def fill(folder: Path) -> None:
        for name, text in texts.items():
            write_text(folder / name, text)

    return replace_files(directory, fill), left_out


def _texts(found: Imported, settings: Settings) -> tuple[dict[str, str], list[str]]:
    texts: dict[str, str] = {}
    left_out: list[str] = []
    if found.runs:
        texts["measured.yaml"] = imported.measured(found.runs, settings)
    speculative = [run for run in found.runs if run.speculative]
    for run in found.runs:
        if (text := imported.requests_csv(run)) is not None:
            texts.setdefault("requests.csv", text)
    if len(speculative) > 1:
        left_out.append(f"acceptance.yaml and scenario.yaml are of the first speculative run, {speculative[0].where}")
    trace = "requests.csv" if "requests.csv" in texts else None
    makers: list[tuple[str, Callable[[], str]]] = []
    if found.runs or found.server is not None:
        makers.append(("scenario.yaml", lambda: imported.scenario(found.runs, settings, found.server, trace)))
    for number, table in enumerate(found.step_costs, start=1):
        texts["step_costs.json" if number == 1 else f"step_costs_{number}.json"] = table.as_json()
    if speculative:
        makers.insert(0, ("acceptance.yaml", lambda: imported.acceptance_profile(speculative[0], settings)))
    elif found.runs:
        left_out.append("acceptance.yaml: no run has acceptance in it")
    for name, make in makers:
        try:
            texts[name] = make()
        except SpecError as error:
            needs = [problem.where if problem.where.startswith("--") else str(problem) for problem in error.problems]
            left_out.append(f"{name}: needs {', '.join(dict.fromkeys(needs))}")
    return texts, left_out


def _words(name: str) -> str:
    per_second = name.endswith("_per_s")
    return (name.removesuffix("_per_s") + "_per_second" if per_second else name.removesuffix("_s")).replace("_", " ")


def _shown(name: str, value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(significant(each) for each in value)
    if isinstance(value, str):
        return value
    if name.endswith("_s") and not name.endswith("_per_s"):
        return f"{significant(value)} s" if value >= 1 else f"{significant(1000 * value)} ms"
    return significant(value) if isinstance(value, float) else str(value)
