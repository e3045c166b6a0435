"""A scenario's speculation as an engine's own settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from simulator.draft_policy import FIXED, SETTABLE, ByBatch, GoodputOptimal, PolicySpec, whole_table
from simulator.draft_tree import Tree
from simulator.interchange.engine_settings import (
    ENGINES,
    NotExpressibleError,
    PromptsApart,
    Setting,
    Snippet,
    UnnamedDrafterError,
    snippets,
)
from simulator.reports.page import Block, Code, Text
from simulator.scenario import Scenario
from simulator.simulation import Server
from simulator.spec import Problem, SpecError, nearest


def setting_of(scenario: Scenario, gamma: int | None = None) -> Setting:
    """What the scenario sets: the chain of γ, or its only shape where left out. Raises `SpecError` where γ is none of its own."""
    own, kinds = scenario.shapes, [policy.kind for _, policy in scenario.variants]
    if len(set(kinds)) > 1 or not {*kinds} <= {*SETTABLE}:
        must = f"must be one that engines take as a setting ({', '.join(SETTABLE)}) to be exported"
        raise SpecError([scenario.document.problem(("speculation", "policy"), must, ", ".join(dict.fromkeys(kinds)))])
    shapes = own if gamma is None else [shape for shape in own if shape == Tree.chain(gamma)]
    if len(shapes) != 1:
        known = ", ".join(shape.name for shape in own)
        must = f"must be one that the scenario compares: {known}"
        if gamma is None:
            must = f"must be given: the scenario compares {known}, and run says which is best"
        raise SpecError([Problem("--gamma", "", must, "" if gamma is None else str(gamma))])
    return setting_for(scenario, shapes[0], scenario.variants[0][1])


def setting_for(scenario: Scenario, shape: Tree, policy: PolicySpec = FIXED) -> Setting:
    """A shape of the scenario's method, drafted by a policy of `SETTABLE`."""
    speculation, deployment, apart = scenario.file.speculation, scenario.deployment, scenario.prefill
    assert speculation is not None
    table = policy.engine_table(shape.steps)
    return Setting(
        method=speculation.method,
        num_speculative_tokens=shape.depth,
        drafter=speculation.drafter,
        draft_tensor_parallel_size=deployment.draft_tensor_parallel_size if deployment.separate_drafter is not None else None,
        by_batch=None if table is None else whole_table(table, scenario.limits.max_num_seqs),
        tree=None if shape.is_chain else shape,
        heterogeneous_vocabulary=speculation.heterogeneous_vocabulary,
        prompts_apart=(
            None if apart is None else PromptsApart(apart.instances, apart.tensor_parallel_size, deployment.tensor_parallel_size)
        ),
        kernels=scenario.file.kernels,
        max_num_seqs=scenario.limits.max_num_seqs,
    )


@dataclass(frozen=True)
class Exported:
    """What one engine takes: snippets, or why there are none."""

    engine: str
    snippets: tuple[Snippet, ...]
    reason: str = ""


def exports_of(server: Server) -> tuple[tuple[Exported, ...], str]:
    """(settings for the scenario's own engine, then for each other one; what is not said by them).

    A goodput-optimal policy, which no engine has, becomes the table by batch that it comes to at the law's acceptance.
    """
    scenario, policy, said = server.scenario, server.policy, ""
    if isinstance(policy, GoodputOptimal):
        policy = ByBatch(table=server.batch_table())
        said = (
            "no engine has a goodput-optimal policy: this is the table by batch that it comes to at this acceptance and at the "
            "workload's mean context"
        )
    own = engine_of(scenario)
    order = sorted(ENGINES, key=lambda name: name != own)
    if policy.kind not in SETTABLE:
        reason = f"no engine takes {policy.label(server.shape.steps)} as a setting"
        return tuple(Exported(name, (), reason) for name in order), said
    return tuple(_exported(name, scenario, server.shape, policy) for name in order), said


def no_setting(scenario: Scenario) -> str:
    """Why the scenario's engine takes no setting for its drafting, whatever is found out about it; "" where it does."""
    engine = engine_of(scenario)
    if not scenario.shapes or engine not in ENGINES:
        return ""
    return _exported(engine, scenario, scenario.shapes[0], FIXED).reason


def _exported(engine: str, scenario: Scenario, shape: Tree, policy: PolicySpec) -> Exported:
    try:
        return Exported(engine, snippets(engine, setting_for(scenario, shape, policy)))
    except NotExpressibleError as reason:
        return Exported(engine, (), str(reason))


def settings_yaml(server: Server) -> str:
    """The same as a scenario states it, with the limits filled in, in vLLM's spelling. It can be pasted into one."""
    scenario, policy, shape = server.scenario, server.policy, server.shape
    stated, limits = scenario.file.speculation, scenario.limits
    assert stated is not None
    dropped = {"num_speculative_tokens", "tree", "by_batch", "policy"}
    values: dict[str, object] = stated.model_dump(mode="json", exclude_none=True, exclude_defaults=True, exclude=dropped)
    if isinstance(policy, ByBatch):
        values["by_batch"] = [list(entry) for entry in policy.table]
    elif shape.is_chain:
        if policy.largest is None:
            values["num_speculative_tokens"] = shape.depth
        if policy != FIXED:
            values["policy"] = policy.model_dump(mode="json", exclude_none=True)
    else:
        values["tree"] = {"steps": shape.steps, "topk": shape.width, "draft_tokens": shape.nodes}
    filled = {
        name: value for name, value in asdict(limits).items() if value or name not in ("prefix_caching", "swap_space_bytes")
    }
    swaps = {"preemption": "swap"} if limits.swap_space_bytes else {}
    return str(yaml.safe_dump({"speculation": values, "limits": filled | swaps}, sort_keys=False, allow_unicode=True))


def settings_blocks(server: Server) -> Iterator[Block]:
    """What to paste, for a page: the scenario's own engine first."""
    found, said = exports_of(server)
    if said:
        yield Text(f"{said[:1].upper()}{said[1:]}.")
    own = engine_of(server.scenario)
    for each in found:
        yield from snippet_blocks(each.snippets, own)
    reasons: dict[str, list[str]] = {}
    for each in found:
        if each.reason:
            reasons.setdefault(each.reason, []).append(each.engine)
    if reasons:
        said_why = "; ".join(f"{', '.join(who)} ({why})" for why, who in reasons.items())
        yield Text(f"Without a setting for it: {said_why}.")
    yield Code(settings_yaml(server), "The same as a scenario states it, with every default filled in:", "yaml")


def snippet_blocks(found: Iterable[Snippet], own: str) -> Iterator[Block]:
    """Each to paste, with where it belongs and what to mind. own: the engine simulated; of others it is said."""
    for snippet in found:
        where = f"in `{snippet.file}`" if snippet.file else "on the command line"
        simulated = "" if snippet.engine == own or own not in ENGINES else " (not the engine simulated)"
        yield Code(snippet.text, f"For {snippet.engine}, {where}{simulated}:", "sh" if not snippet.file else "")
        if snippet.notes:
            yield Text(f"Mind: {'; '.join(snippet.notes)}.")


def setting_files(found: Iterable[Snippet]) -> dict[str, str]:
    """Name → text of the files that hold them; those for one command line stand below each other in one."""
    files: dict[str, str] = {}
    for snippet in found:
        name = f"{snippet.engine}_{snippet.file or 'flags.txt'}"
        files[name] = files.get(name, "") + snippet.text.rstrip() + "\n"
    return files


def engine_of(scenario: Scenario) -> str:
    """The engine without the version of its profile."""
    return Path(scenario.file.engine).stem.partition("_")[0]


def exported(scenario: Scenario, engine: str | None = None, gamma: int | None = None) -> tuple[Snippet, ...]:
    """The snippets for an engine, the scenario's own where left out. Raises `SpecError` where it cannot do what is asked."""
    name = engine or engine_of(scenario)
    if name not in ENGINES:
        where = "--engine"
        raise SpecError([Problem(where, "", f"must be one of {', '.join(ENGINES)}", repr(name), nearest(name, ENGINES))])
    try:
        return snippets(name, setting_of(scenario, gamma))
    except UnnamedDrafterError:
        must = "must be given to be exported: engines load a drafter by its name"
        raise SpecError([scenario.document.problem(("speculation", "drafter"), must)]) from None
    except NotExpressibleError as reason:
        raise SpecError([Problem("--engine", "", f"must be an engine that can do this: {reason}", name)]) from None
