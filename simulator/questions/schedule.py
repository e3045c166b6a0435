"""schedule: the γ to run at by batch and context, whether varying it with the batch is worth a setting, and with which method.

The table of a method comes from prices (`schedule_prices`). What it is worth is simulated: on the scenario's own arrivals, on
seeds that chose neither it nor the fixed γ it is held against (`schedule_worth`). Of several methods the best is chosen on the
scenario's own seed, and what it gains over the next is confirmed on those other seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import count

from simulator.cost.spread import Estimate
from simulator.draft_policy import ByBatch
from simulator.questions.break_even import BATCHES, contexts_around, own_context
from simulator.questions.schedule_prices import Range, ScheduleCell, SchedulePrices, cells_at, table_at
from simulator.questions.schedule_worth import GOODPUT, Judge, Way, held_out_gain, judge_of, records_of
from simulator.scenario import Scenario
from simulator.serving.record import RequestRecords
from simulator.simulation import FEWEST_MOVED, LEAST_EFFECT, Progress, Server, chosen, verdict_of
from simulator.spec import Problem, SpecError
from simulator.validity import standing_notes

HELD_OUT = 5
PLAIN: Way = ("", 0)


@dataclass(frozen=True)
class ScheduleAnswer:
    """The map, the table at the workload's own context, and the simulated gain over the fastest fixed γ (0 = no speculation).

    best_fixed: the one to take, as `simulation.chosen` has it. nearest: of the fixed γ that draft the one that is worth most.
    gain: of `metric`, above 1 is better, mean over held-out seeds with its 80 % interval; None where the table holds one γ.
    remark: why `metric` is not what the scenario states first.
    fixed_gains: of each fixed γ over none on the scenario's own seed, which chose among them: the best of them is flattered.
    over_none: of the setting to use, on held-out seeds; where that is none, of the best γ there is. within: of goodput, the
    requests of held-out seeds within the service level with the table, with the fastest fixed γ, and in all.

    others: the answers of the scenario's other methods, best first, where it has alternatives. lead: what this one's setting
    gains over that of the first of them, on held-out seeds. left_out: methods without a schedule, and why.
    """

    scenario: Scenario
    method: str
    own_context: int
    cells: tuple[ScheduleCell, ...]
    table: tuple[Range, ...]
    best_fixed: int
    fastest_fixed: int
    nearest: int
    fixed_gains: tuple[tuple[int, float], ...]
    metric: str
    remark: str
    gain: Estimate | None
    over_none: Estimate
    within: tuple[int, int, int] | None
    held_out_seeds: tuple[int, ...]
    warnings: tuple[str, ...]
    others: tuple[ScheduleAnswer, ...] = ()
    lead: Estimate | None = None
    left_out: tuple[tuple[str, str], ...] = ()

    @property
    def needed(self) -> bool:
        """Whether the table certainly gains more than half a per cent over the fastest fixed γ, and not by a few requests."""
        return self.gain is not None and self.gain.low > 1 + LEAST_EFFECT and not self.by_few

    @property
    def by_few(self) -> bool:
        """Whether so few requests come within the service level that which they are is chance."""
        return self.within is not None and abs(self.within[0] - self.within[1]) < FEWEST_MOVED

    @property
    def worse(self) -> bool:
        """Whether the table certainly loses as much."""
        return self.gain is not None and verdict_of(self.gain) == "lose"

    @property
    def off(self) -> bool:
        """Whether nothing that this method drafts gains."""
        return not self.needed and self.best_fixed == 0

    @property
    def contexts(self) -> tuple[int, ...]:
        return tuple(sorted({cell.context_tokens for cell in self.cells}))

    @property
    def batches(self) -> tuple[int, ...]:
        return tuple(sorted({cell.batch for cell in self.cells}))

    @property
    def remarks(self) -> tuple[str, ...]:
        """The warnings of all methods."""
        return tuple(dict.fromkeys(warning for each in self.methods for warning in each.warnings))

    @property
    def methods(self) -> tuple[ScheduleAnswer, ...]:
        """This answer and those of the other methods, best first."""
        return (self, *self.others)


def schedule(
    scenario: Scenario, contexts: tuple[int, ...] | None = None, *, held_out: int = HELD_OUT, progress: Progress | None = None
) -> ScheduleAnswer:
    """The schedule of the method that is best; those of the scenario's other methods are its `others`.

    A method needs an acceptance and drafts chains. Raises `SpecError` where none of them does.
    """
    methods, left_out = _methods(scenario, contexts)
    seeds = tuple((scenario.file.seed + 1 + index) % 2**32 for index in range(held_out))
    done, total = count(1), 1 + held_out + sum(len(each.fixed) + 2 * held_out for each in methods)

    def told() -> None:
        if progress is not None:
            progress("held against fixed γ", next(done), total)

    plain = {PLAIN: Server.of(scenario)}
    own = records_of({**plain, **{way: server for each in methods for way, server in each.fixed.items()}}, scenario, None, told)
    judge = judge_of(scenario, own[PLAIN], [records for way, records in own.items() if way != PLAIN])
    ranked = [each.ranked(judge, own) for each in methods]
    finalists = {**plain, **{way: server for each in ranked for way, server in each.finalists.items()}}
    held = [records_of(finalists, scenario, seed, told) for seed in seeds]

    def gain(better: Way, base: Way) -> Estimate:
        return held_out_gain(judge, [(records[better], records[base]) for records in held])

    answers = []
    for each in ranked:
        by_table = gain(each.way(None), each.way(each.fastest)) if each.varies else None
        moved = [judge.within(records[each.way(way)] for records in held) for way in (None, each.fastest) if each.varies]
        within = (moved[0][0], *moved[1]) if moved and judge.metric == GOODPUT else None
        answer = each.answer(judge, own, by_table, within, seeds)
        setting = each.way(None if answer.needed else answer.best_fixed)
        worth = each.worth[each.fastest if answer.needed else answer.best_fixed]
        shown = each.way(each.nearest) if answer.off else setting
        answers.append(_Answered(replace(answer, over_none=gain(shown, PLAIN)), setting, worth))
    best, *others = _best_first(answers)
    lead = gain(best.setting, others[0].setting) if others and not best.answer.off else None
    return replace(best.answer, others=tuple(each.answer for each in others), lead=lead, left_out=left_out)


@dataclass(frozen=True)
class _Answered:
    """The answer of one method, the setting it comes to, and what that is worth on the scenario's own seed."""

    answer: ScheduleAnswer
    setting: Way
    worth: float

    @property
    def rows(self) -> int:
        """The most drafts that a round verifies."""
        return max(gamma for _, _, gamma in self.answer.table) if self.answer.needed else self.answer.best_fixed


def _best_first(found: list[_Answered]) -> list[_Answered]:
    """The one to take, as `simulation.chosen` has it, then the others by what they are worth."""
    best = chosen(found, lambda each: each.worth, lambda each: each.rows)
    return sorted(found, key=lambda each: (each is not best, -each.worth))


def _methods(scenario: Scenario, contexts: tuple[int, ...] | None) -> tuple[list[_Method], tuple[tuple[str, str], ...]]:
    """Those that a schedule can be made of; names of the others, and why not."""
    found: list[_Method] = []
    left_out: list[tuple[str, str]] = []
    problems: list[Problem] = []
    for name, one in scenario.methods or (("", scenario),):
        try:
            found.append(_method(name, one, contexts))
        except SpecError as error:
            problems += error.problems
            left_out.append((name, f"{error.problems[0].key.rpartition('.')[2]} {error.problems[0].must}"))
    if not found:
        raise SpecError(problems)
    return found, tuple(left_out)


def _method(name: str, scenario: Scenario, contexts: tuple[int, ...] | None) -> _Method:
    document, largest = scenario.document, scenario.limits.max_num_seqs
    if not scenario.gammas:
        must = "must draft chains: a schedule is of γ" if scenario.shapes else "must be given: a schedule is of a method's γ"
        raise SpecError([document.problem(("speculation",), must)])
    if scenario.file.acceptance is None:
        raise SpecError(
            [
                document.problem(
                    ("acceptance",), "must be given: the best γ depends on it (specsim list acceptance shows what was measured)"
                )
            ]
        )
    warnings = list(standing_notes(scenario))
    prices = SchedulePrices(scenario, warnings)
    own = own_context(scenario)
    shown = contexts or contexts_around(own, scenario.limits.max_model_len)
    tables = {context: table_at(prices, largest, context) for context in {*shown, own}}
    batches = tuple(batch for batch in BATCHES if batch <= largest)
    cells = tuple(cell for context in shown for cell in cells_at(prices, batches, context, tables[context]))
    return _Method(name, prices, own, cells, tables[own], tuple(dict.fromkeys(warnings)))


@dataclass(frozen=True)
class _Method:
    """A method, its prices, map and table; worth: of each fixed γ, once they ran (0 = no speculation)."""

    name: str
    prices: SchedulePrices
    own_context: int
    cells: tuple[ScheduleCell, ...]
    table: tuple[Range, ...]
    warnings: tuple[str, ...]
    worth: Mapping[int, float] = field(default_factory=dict)

    def way(self, gamma: int | None) -> Way:
        """The name of a fixed γ among the ways of all methods; None is the table."""
        return PLAIN if gamma == 0 else (self.name, gamma)

    @property
    def fixed(self) -> dict[Way, Server]:
        return {self.way(gamma): server for gamma, server in self.prices.servers.items()}

    @property
    def varies(self) -> bool:
        return len({gamma for _, _, gamma in self.table}) > 1

    @property
    def fastest(self) -> int:
        return max(self.worth, key=lambda gamma: (self.worth[gamma], -gamma))

    @property
    def best_fixed(self) -> int:
        drafting = [gamma for gamma in self.worth if gamma]
        return (chosen(drafting, lambda gamma: self.worth[gamma], lambda gamma: gamma) or 0) if self.fastest else 0

    @property
    def nearest(self) -> int:
        """The γ that is worth most of those that draft."""
        return max((gamma for gamma in self.worth if gamma), key=lambda gamma: (self.worth[gamma], -gamma))

    @property
    def finalists(self) -> dict[Way, Server]:
        """What runs on held-out seeds: the fixed γ to take or, where that is none, the one that comes nearest; the fastest one;
        and the table where it varies γ."""
        shown = (self.best_fixed or self.nearest, self.fastest)
        found = {way: server for way, server in self.fixed.items() if way[1] in shown}
        if not self.varies:
            return found
        largest = max(gamma for _, _, gamma in self.table)
        return found | {self.way(None): replace(self.prices.servers[largest], policy=ByBatch(table=self.table))}

    def ranked(self, judge: Judge, own: Mapping[Way, RequestRecords]) -> _Method:
        """With what each fixed γ is worth on the scenario's own seed."""
        worth = {gamma: judge.worth(own[self.way(gamma)], own[PLAIN]) for gamma in self.prices.servers}
        return replace(self, worth={0: judge.worth(own[PLAIN], own[PLAIN]), **worth})

    def answer(
        self,
        judge: Judge,
        own: Mapping[Way, RequestRecords],
        gain: Estimate | None,
        within: tuple[int, int, int] | None,
        seeds: tuple[int, ...],
    ) -> ScheduleAnswer:
        gains = {gamma: judge.gain(own[self.way(gamma)], own[PLAIN]) for gamma in self.worth}
        return ScheduleAnswer(
            scenario=self.prices.scenario, method=self.name, own_context=self.own_context, cells=self.cells, table=self.table,
            best_fixed=self.best_fixed, fastest_fixed=self.fastest, nearest=self.nearest,
            fixed_gains=tuple(sorted(gains.items())), metric=judge.metric, remark=judge.remark, gain=gain,
            over_none=Estimate(1.0, 1.0, 1.0), within=within, held_out_seeds=seeds,
            warnings=self.warnings,
        )  # fmt: skip
