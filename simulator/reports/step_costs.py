"""A step-cost table for people: one exported from the cost model, one that was imported."""

from __future__ import annotations

from simulator.interchange.engine_settings import Snippet
from simulator.interchange.step_costs import StepCosts
from simulator.printed_numbers import significant
from simulator.questions.step_costs import table_steps
from simulator.reports.exports import setting_of
from simulator.scenario import Scenario

FILE = "step_costs.json"
# A table by sums of two parts that errs by more says little of the single steps.
WORST = 0.1


def exported_step_costs(scenario: Scenario, gamma: int | None = None, context: int | None = None) -> Snippet:
    """The table of a scenario, at γ where it compares several. Raises `SpecError` where γ is none of its own."""
    drafts = setting_of(scenario, gamma).num_speculative_tokens if scenario.deployment.speculative else 0
    found = table_steps(scenario, drafts, context)
    what = f"drafting {drafts} and verifying up to {drafts} tokens each" if drafts else "one token each"
    notes = [
        f"SGLang takes it as --speculative-dspark-sps-table-path {FILE}",
        f"seconds of a step, {what}, at {found.context_tokens:,.0f} tokens of context: predicted, not measured",
        f"as the sum of a part by sequences and a part by rows it is off by up to {100 * found.worst_error:.0f} %"
        + (": attention or experts do not split that way here" if found.worst_error > WORST else ""),
    ]
    return Snippet("sglang", found.table.as_json(), FILE, tuple(notes))


def step_costs_sentence(table: StepCosts) -> str:
    """One line: what the table spans."""
    return (
        f"{table.where}: step costs of {table.sequences[0]} to {table.sequences[-1]} sequences and {table.rows[0]} to "
        f"{table.rows[-1]} rows; rows are sequences and the drafts that they verify"
    )


def step_costs_table(table: StepCosts) -> tuple[list[str], list[list[str]]]:
    """By sequences: the step that verifies no draft, in ms, and how many times as long verifying 1, 2, 4 and 8 drafts each
    takes (v)."""
    drafts = [count for count in (1, 2, 4, 8) if table.sequences[0] * (count + 1) <= table.rows[-1]]
    rows = [
        [
            str(batch),
            significant(1e3 * table.step_s(batch, batch)),
            *(
                significant(table.step_s(batch, batch * (count + 1)) / table.step_s(batch, batch))
                if batch * (count + 1) <= table.rows[-1] and table.step_s(batch, batch) > 0
                else "–"
                for count in drafts
            ),
        ]
        for batch in table.sequences
    ]
    return ["sequences", "no draft (ms)", *(f"v of {count} each" for count in drafts)], rows
