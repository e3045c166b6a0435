"""`explain`: why, term by term."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import Field
from rich.console import Console

from simulator.commands.flags import AsJson, OutDir, at_point, takes_point
from simulator.console import (
    VERDICT_STYLE,
    print_notes,
    print_sentence,
    print_table,
    print_verdict,
    progress_bars,
    tell,
)
from simulator.spec import Document, Problem, Spec, SpecError, check, plain_scalar

if TYPE_CHECKING:
    from simulator.draft_tree import Tree
    from simulator.questions.explanation import Explanation
    from simulator.scenario import Scenario


@takes_point(
    batch="Also with a scenario: instead of its mean batch.",
    context_len="Also with a scenario: instead of its mean context.",
)
def explain(
    point: dict[str, str],
    scenario: Annotated[str | None, typer.Argument(help="A scenario; or give the flags of `predict` instead.")] = None,
    gamma: Annotated[int | None, typer.Option(min=1, max=64, help="γ to explain; of several, the one that run names.")] = None,
    out: OutDir = None,
    as_json: AsJson = False,
) -> None:
    """Why: one round beside one plain step, term by term; R against τ; what is unsure; what would flip the sign."""
    from simulator.questions import explanation
    from simulator.reports.explanation import explanation_summary
    from simulator.reports.files import prepare_directory, write_explanation
    from simulator.scenario import load_scenario

    if scenario is not None:
        extra = [name for name in point if name not in ("batch", "context_len", "tree_shape")]
        if extra:
            raise SpecError([Problem("--" + extra[0].replace("_", "-"), "", "must be left out with a scenario, which holds it")])
        loaded = load_scenario(scenario).alone()
        if not loaded.deployment.speculative:
            raise SpecError([loaded.document.problem(("speculation",), "must be given: explain is about a method")])
        tree = _tree_of(loaded, point.pop("tree_shape", None), gamma)
        asked = check(_Point, Document("", {name: plain_scalar(text) for name, text in point.items()}))
        _check_point(loaded, gamma, asked.context_len)
        if out is not None:
            prepare_directory(out)
        with progress_bars(quiet=as_json or len(loaded.variants) == 1) as progress:
            answer = explanation.explain(loaded, gamma, asked.batch, asked.context_len, tree, progress)
    else:
        if gamma is not None:
            raise SpecError([Problem("--gamma", "", "goes with a scenario; otherwise say --num-speculative-tokens", str(gamma))])
        answer = at_point(point, explanation.explain_point)
    name = "" if scenario is None else loaded.name
    tell(
        lambda: explanation_summary(answer),
        lambda console: _print_explanation(console, answer),
        as_json=as_json,
        out=out,
        write=lambda folder: write_explanation(answer, name, folder),
        written="Report and figures",
    )


def _print_explanation(console: Console, answer: Explanation) -> None:
    from simulator.reports.explanation import doubt_sentences, doubt_table, explanation_sentences, explanation_table
    from simulator.reports.sensitivity import sensitivity_sentences, sensitivity_table

    print_verdict(console, explanation_sentences(answer), VERDICT_STYLE.get(answer.verdict, "bold"))
    print_table(console, *explanation_table(answer))
    print_table(console, *sensitivity_table(answer.sensitivity))
    for sentence in sensitivity_sentences(answer.sensitivity):
        print_sentence(console, sentence)
    console.print()
    print_table(console, *doubt_table(answer))
    for sentence in doubt_sentences(answer):
        print_sentence(console, sentence)
    print_notes(console, [], answer.warnings)


def _check_point(scenario: Scenario, gamma: int | None, context: float | None) -> None:
    """A sequence must fit the target's positions, a round the drafter's heads or block. Raises `SpecError`."""
    from simulator.speculation import drafts_at_once

    target, drafter = scenario.deployment.target, scenario.deployment.drafter
    if context is not None and context > (target.max_position_embeddings or context):
        must = f"must be at most {target.max_position_embeddings}, the positions of {target.name}"
        raise SpecError([Problem("--context-len", "", must, f"{context:g}")])
    if gamma is not None and drafter is not None:
        limit, what = drafts_at_once(drafter)
        if gamma > (limit or gamma):
            raise SpecError(
                [Problem("--gamma", "", f"must be at most {limit}, the {what} of drafter {drafter.name}", str(gamma))]
            )


def _tree_of(scenario: Scenario, text: str | None, gamma: int | None) -> Tree | None:
    """The tree of a scenario that `explain` is asked about; None where it is a chain, or is not said."""
    from simulator.draft_tree import read_tree

    if gamma is not None and (text is not None or not scenario.gammas):
        why = "with --tree-shape" if text is not None else "for a scenario of trees only: its acceptance says nothing of a chain"
        raise SpecError([Problem("--gamma", "", f"must be left out {why}")])
    if text is None:
        return None
    trees = [shape for shape in scenario.shapes if not shape.is_chain]
    try:
        found = read_tree(text)
    except ValueError as error:
        raise SpecError([Problem("--tree-shape", "", str(error), repr(text))]) from None
    if found not in trees:
        known = ", ".join(shape.name for shape in trees) or "none"
        raise SpecError([Problem("--tree-shape", "", f"must be a tree of the scenario ({known})", found.name)])
    return found


class _Point(Spec):
    """What `explain SCENARIO` may say of its operating point."""

    batch: Annotated[int, Field(ge=1)] | None = None
    context_len: Annotated[float, Field(ge=1)] | None = None
