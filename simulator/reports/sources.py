"""How every report ends: where each number comes from, what to beware of, seed and versions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simulator.hardware import Quantity
from simulator.plots.words import acceptance_source, provenance, source_counts
from simulator.reports.page import Bullets, Section, Table, Text
from simulator.reports.summary import provenance_data, versions
from simulator.scenario import Scenario

CONSTANT_COLUMNS = ("constant (unit last)", "value", "source", "doubt", "fitted on what, and when")


def closing_sections(scenario: Scenario, warnings: Sequence[str]) -> Iterator[Section]:
    """Warnings, then sources and every constant."""
    if warnings:
        yield Section("Warnings", (Bullets(tuple(warnings)),))
    data = provenance_data(scenario)
    cited = [f"requests: {data['requests']}" + (f" ({data['requests_citation']})" if data["requests_citation"] else "")]
    if scenario.shapes:
        cited.insert(0, f"acceptance: {acceptance_source(scenario)}")
    cited += [f"hardware profile {data['hardware_profile']}: {'; '.join(data['hardware_sources'])}"]
    cited += [f"engine {data['engine']}, versions {data['engine_versions']}: {'; '.join(data['engine_sources'])}"]
    constants, deployment = provenance(scenario), scenario.deployment
    tables = []
    for holder, name in (("hardware", deployment.hardware.name), ("engine", deployment.engine.name)):
        rows = [(constant.name, *_quantity_cells(constant.quantity)) for constant in constants if constant.holder == holder]
        counts = source_counts(constants, holder)
        tables.append(Table.of(CONSTANT_COLUMNS, rows, f"{name}: {counts}{'' if holder == 'engine' else ', the rest datasheet'}"))
    reading = "Every constant behind the prices, as it was used. Doubt: one standard deviation."
    yield Section("Where the numbers come from", (Bullets(tuple(cited)), Text(reading), *tables))


def closing_words(scenario: Scenario) -> str:
    """Seed and versions: what decides the bytes of a result."""
    used = ", ".join(f"{name} {number}" for name, number in versions().items())
    return f"Seed {scenario.file.seed}. Versions: {used}."


def _quantity_cells(quantity: Quantity) -> tuple[str, ...]:
    return f"{quantity.value:.4g}", quantity.source, f"{100 * quantity.doubt:.0f} %", quantity.note
