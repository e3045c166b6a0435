"""Results as Markdown: the verdict, the table, why, the figures, what to set, where every number comes from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

import yaml

from simulator.draft_policy import ByBatch, Fixed
from simulator.hardware import Quantity
from simulator.plots.words import acceptance_source, milliseconds, provenance, short_name, significant, speculation_name, times
from simulator.questions.break_even import BreakEven
from simulator.reports.summary import provenance_data, versions
from simulator.reports.tables import break_even_sentence, break_even_tables
from simulator.reports.variants import run_table
from simulator.reports.verdict import Answer, answer, gets_worse, headline, subject
from simulator.scenario import Scenario
from simulator.simulation import Comparison, SimulationResult

OUTCOMES: Mapping[Answer, str] = {
    "win": "speculation wins",
    "lose": "speculation loses",
    "close": "too close to call",
    "depends": "it depends on acceptance",
    "none": "no speculation",
}
# Name of a figure → what a reader who cannot see it is told.
ALT_TEXTS = {
    "speedup": "Decode speedup against mean acceptance length, with the break-even R and the simulated run marked",
    "round": "Milliseconds of one plain step beside one speculative round, by part",
    "latency": "Distributions of time per output token and of end-to-end latency, with and without speculation",
    "load": "Running sequences, waiting requests and KV cache use over simulated time",
    "break_even": "Break-even acceptance rate against batch, for each number of speculative tokens and each context",
    "break_even_length": "Break-even acceptance length against batch, for each tree and chain of the scenario and each context",
    "best_gamma": "Best number of speculative tokens over batch and context",
}


def run_markdown(result: SimulationResult, figures: Mapping[str, str]) -> str:
    """The report of a run. figures: name → file, relative to the report."""
    scenario, chosen = result.scenario, subject(result)
    first, *others = headline(result)
    parts = [
        f"# {scenario.name}: {OUTCOMES[answer(result)]}",
        "\n>\n".join([f"> **{first}**", *(f"> {sentence}" for sentence in others)]),
        _asked(result),
        "## Numbers",
        _table(*run_table(result)),
        _reading(result),
    ]
    if chosen is not None:
        parts += ["## Why", _bullets(_reasons(chosen)), "## Settings to use", _settings(result, chosen)]
    parts += _figures(figures)
    parts += _ending(scenario, result.warnings)
    return "\n\n".join(part for part in parts if part) + "\n"


def _asked(result: SimulationResult) -> str:
    scenario = result.scenario
    deployment, workload = scenario.deployment, scenario.file.workload
    count = deployment.devices
    devices = f"{count} × " if count > 1 else ""
    lengths = f"lengths of {workload.requests.trace}" if workload.requests else "lengths stated in the scenario"
    drafts = f" and {speculation_name(scenario)}" if deployment.speculative else ""
    return (
        f"{len(result.requests):,} requests ({workload.arrivals.process} arrivals, {lengths}) for "
        f"{short_name(deployment.target.name)}{drafts} on {devices}{deployment.hardware.name} under {deployment.engine.name}. "
        "Every variant serves the same requests with the same randomness."
    )


def _reading(result: SimulationResult) -> str:
    summary = result.plain.summary
    text = (
        "Gains above 1× are improvements; intervals hold 80 %. Capacity: requests per second finished when all wait at once. "
        f"{summary.note}"
    )
    rejected = ", ".join(f"{count:,} {reason}" for reason, count in summary.rejected.items())
    return text + (f" Rejected on arrival: {rejected}." if rejected else "")


def _reasons(comparison: Comparison) -> list[str]:
    cost = comparison.round
    parts = (
        f"at batch {comparison.batch} and context {comparison.context:,.0f} a plain step takes {milliseconds(cost.plain_step_s)}",
        f"one round {milliseconds(cost.round_s)}",
        f"{milliseconds(cost.draft_s)} of it drafting",
        f"verification is {times(cost.verification_cost_ratio)} a plain step",
    )
    return [*comparison.causes, ", ".join(parts), f"most of a round is bound by {cost.bound}"]


def _settings(result: SimulationResult, chosen: Comparison) -> str:
    """What to write into the engine's configuration, in vLLM's spelling, where speculation gains."""
    found, worse = answer(result), " and ".join(gets_worse(chosen))
    if found == "depends":
        least = significant(chosen.r.value)
        return f"Measure acceptance on this traffic first: decoding gains from τ = {least} tokens per round."
    if found == "lose":
        return "Leave speculation off for this workload."
    if found == "close" and worse:
        return f"Leave speculation off: the gain in {chosen.metric} is not certain, and {worse} certainly gets worse."
    caution = "No gain is certain; these are the settings with the largest one." if found == "close" else ""
    if worse:
        caution = f"Mind that {worse} gets worse."
    return f"{caution}\n\n```yaml\n{_settings_yaml(result.scenario, chosen)}```".lstrip()


def _settings_yaml(scenario: Scenario, chosen: Comparison) -> str:
    policy, drafter = chosen.variant.policy, scenario.deployment.drafter
    values: dict[str, object] = {"method": scenario.deployment.method}
    if drafter is not None:
        values["drafter"] = drafter.name
    if isinstance(policy, ByBatch):
        values["by_batch"] = [list(entry) for entry in policy.table]
    elif chosen.variant.shape.is_chain:
        if policy.largest is None:
            values["num_speculative_tokens"] = chosen.variant.gamma
        if not isinstance(policy, Fixed):
            values["policy"] = policy.model_dump(mode="json", exclude_none=True)
    else:
        shape = chosen.variant.shape
        values["tree"] = {"steps": shape.steps, "topk": shape.width, "draft_tokens": shape.nodes}
    return str(yaml.safe_dump({"speculation": values, "limits": asdict(scenario.limits)}, sort_keys=False, allow_unicode=True))


def break_even_markdown(answer: BreakEven, figures: Mapping[str, str]) -> str:
    """α* against batch for every γ, τ* for every tree, one table per context. figures: name → file, relative to the report."""
    scenario = answer.scenario
    parts = [f"# {scenario.name}: break-even acceptance of {speculation_name(scenario)}", break_even_sentence(answer)]
    trees = any(point.tree is not None for point in answer.points)
    parts.append(
        "Speculation gains where the acceptance rate α is above the number shown. A dash: even accepting every draft would lose. "
        "In brackets: the KV cache does not hold that batch. Decode only, all sequences at the same context."
        + (" Rows of τ* show the tokens per round that a tree (steps/width/nodes) has to yield." if trees else "")
    )
    parts += _figures(figures)
    for title, header, rows in break_even_tables(answer):
        parts += [f"## {title}", _table(header, rows)]
    return "\n\n".join([*parts, *_ending(scenario, answer.warnings)]) + "\n"


# --------------------------------------------------------------------------------------------------------------- parts


def _figures(figures: Mapping[str, str]) -> list[str]:
    shown = [f"![{ALT_TEXTS[name]}]({figures[name]})" for name in ALT_TEXTS if name in figures]
    return ["## Figures", *shown] if shown else []


def _ending(scenario: Scenario, warnings: Sequence[str]) -> list[str]:
    data = provenance_data(scenario)
    cited = [f"requests: {data['requests']}" + (f" ({data['requests_citation']})" if data["requests_citation"] else "")]
    if scenario.shapes:
        cited.insert(0, f"acceptance: {acceptance_source(scenario)}")
    cited += [f"hardware profile {data['hardware_profile']}: {'; '.join(data['hardware_sources'])}"]
    cited += [f"engine {data['engine']}, versions {data['engine_versions']}: {'; '.join(data['engine_sources'])}"]
    header = ["of", "constant (unit last)", "value", "source", "doubt", "note"]
    rows = [[constant.holder, constant.name, *_quantity_cells(constant.quantity)] for constant in provenance(scenario)]
    parts = ["## Where the numbers come from", _bullets(cited), _table(header, rows)]
    if warnings:
        parts += ["## Warnings", _bullets(warnings)]
    used = ", ".join(f"{name} {number}" for name, number in versions().items())
    return [*parts, f"Seed {scenario.file.seed}. Versions: {used}."]


def _quantity_cells(quantity: Quantity) -> list[str]:
    return [f"{quantity.value:.4g}", quantity.source, f"{100 * quantity.doubt:.0f} %", quantity.note]


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; columns of numbers to the right."""
    marks = ["---:" if all(_is_number(cell) for cell in column[1:]) else "---" for column in zip(header, *rows, strict=True)]
    return "\n".join("| " + " | ".join(_escaped(cell) for cell in row) + " |" for row in (header, marks, *rows))


def _is_number(cell: str) -> bool:
    return cell[:1] in set("0123456789–(") or cell in ("off", "win", "lose", "close")


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")
