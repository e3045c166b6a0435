"""A computation recorded once and replayed on arrays: how a span of rounds is priced by the formulas of a single one.

The cost of a round of n alike sequences depends on their contexts through a few dozen operations; all else is fixed by n and γ.
The formulas are called with a `Traced` number in place of each context; every operation on it goes onto a tape, every operation
on plain numbers is done for good. Replaying takes the same operations in the same order on one number or on an array of one per
round, so the bits agree. A formula that must know the number itself (an `if`, `float()`, `math.ceil`) raises `TypeError`, and its
pricer then has no such form.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from typing import Any, cast

import numpy as np

Operation = Callable[..., Any]
_OfAll = Callable[..., tuple[Any, ...]]
_OfEach = Callable[[Iterable[Sequence[Any]]], list[Any]]
_Step = tuple[Operation, tuple[int, ...]]  # what is done, and the places of what it is done to


def _larger(first: float, second: float) -> float:
    return first if first > second else second


def _smaller(first: float, second: float) -> float:
    return first if first < second else second


def _looked_up(function: Callable[[Any], Any], number: Any) -> Any:
    return function(number)


# Which of the numbers that a function gave for one.
_PARTS = tuple(operator.itemgetter(place) for place in range(8))
# Python reads at most 200 nested parentheses.
_DEEPEST = 40


class _Remembered(dict[Any, Any]):
    """What a function gave for each number it was asked for. Replays ask for the same few thousand over and over."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[[Any], Any]):
        super().__init__()
        self._function = function

    def __missing__(self, number: Any) -> Any:
        found = self[number] = self._function(number)
        return found


# How each operation is written for numbers and for arrays.
_OPERATIONS: dict[Operation, tuple[str, str]] = {
    operator.add: ("{0} + {1}", "{0} + {1}"),
    operator.sub: ("{0} - {1}", "{0} - {1}"),
    operator.mul: ("{0} * {1}", "{0} * {1}"),
    operator.truediv: ("{0} / {1}", "{0} / {1}"),
    math.sqrt: ("sqrt({0})", "root({0})"),
    _larger: ("{0} if {0} > {1} else {1}", "maximum({0}, {1})"),
    _smaller: ("{0} if {0} < {1} else {1}", "minimum({0}, {1})"),
    _looked_up: ("{0}({1})", "each({0}, {1})"),
    **{part: (f"{{0}}[{place}]", f"{{0}}[:, {place}]") for place, part in enumerate(_PARTS)},
}


class Traced:
    """A number that is not known yet. `sample` is what it was as the tape was recorded."""

    __slots__ = ("index", "sample", "tape")

    def __init__(self, tape: Tape, index: int, sample: Any):
        self.tape, self.index, self.sample = tape, index, sample

    def __add__(self, other: object) -> Any:
        return self if _is(other, 0) else self.tape.do(operator.add, self, other)

    def __radd__(self, other: object) -> Any:
        return self + other

    def __sub__(self, other: object) -> Any:
        return self.tape.do(operator.sub, self, other)

    def __rsub__(self, other: object) -> Any:
        return self.tape.do(operator.sub, other, self)

    def __mul__(self, other: object) -> Any:
        if _is(other, 0):
            return 0.0
        return self if _is(other, 1) else self.tape.do(operator.mul, self, other)

    def __rmul__(self, other: object) -> Any:
        return self * other

    def __truediv__(self, other: object) -> Any:
        return self.tape.do(operator.truediv, self, other)

    def __bool__(self) -> bool:
        raise TypeError("a number that is not known yet decides nothing")


def _is(operand: object, number: int) -> bool:
    return not isinstance(operand, Traced) and operand == number


class Replay:
    """The results of a tape as a function of its inputs. Each form is written when it is first asked for."""

    def __init__(self, written: _Written, constants: Sequence[Any]):
        self._written, self._constants = written, constants

    @cached_property
    def of_numbers(self) -> _OfAll:
        """All inputs are numbers."""
        return self._written.of_numbers(*self._constants)

    @cached_property
    def first_of_each(self) -> _OfEach:
        """The first result alone for one list of numbers after another."""
        return self._written.first_of_each(*self._constants)

    @cached_property
    def of_arrays(self) -> _OfAll:
        """All inputs are arrays."""
        return self._written.of_arrays(*self._constants, *self._beside_arrays)

    @cached_property
    def first_of_arrays(self) -> Callable[..., Any]:
        """The first result alone, from arrays."""
        return self._written.first_of_arrays(*self._constants, *self._beside_arrays)

    @cached_property
    def _beside_arrays(self) -> Sequence[Any]:
        """The constants. An array meets another of no dimensions sooner than it meets a number."""
        return [constant if callable(constant) else np.array(constant) for constant in self._constants]


class Tape:
    """Operations on `inputs` numbers, which were `samples` as they were recorded."""

    def __init__(self, samples: Sequence[float]):
        self.inputs = [Traced(self, index, sample) for index, sample in enumerate(samples)]
        self._steps: dict[tuple[Operation, tuple[int, ...]], Traced] = {}
        self._constants: dict[Any, int] = {}

    def do(self, operation: Operation, *operands: Any) -> Traced:
        step = operation, tuple([self._place(operand) for operand in operands])
        done = self._steps.get(step)
        if done is None:
            samples = [operand.sample if isinstance(operand, Traced) else operand for operand in operands]
            done = self._steps[step] = Traced(self, len(self.inputs) + len(self._steps), operation(*samples))
        return done

    def _place(self, operand: Any) -> int:
        """Where a number is: on the tape from 0 on, among the constants from -1 down."""
        if isinstance(operand, Traced):
            return operand.index
        return self._constants.setdefault(operand, -1 - len(self._constants))

    def replay(self, results: Sequence[Any]) -> Replay:
        """These results as a function of the inputs; numbers among them are constants. The tape is used up: its numbers know it,
        and it forgets them, so that no reference cycle is left."""
        answer = tuple([self._place(result) for result in results])
        constants = [constant.item() if isinstance(constant, np.generic) else constant for constant in self._constants]
        written = _written(len(self.inputs), tuple(self._steps), answer, len(constants))
        self.inputs, self._steps = [], {}
        return Replay(written, constants)


class _Written:
    """Functions of a tape's constants that give its replays, each compiled when it is first asked for."""

    def __init__(self, inputs: int, steps: tuple[_Step, ...], answer: tuple[int, ...], constants: int):
        self._inputs, self._steps, self._answer = inputs, steps, answer
        self._taken = ", ".join(map(_name, range(inputs)))
        places = range(-1, -1 - constants, -1)
        # Arrays' forms take the constants twice: as they are in the results, and as what arrays meet.
        self._constants = [", ".join(map(_name, places)), ", ".join(_name(place, form) for form in (0, 1) for place in places)]

    @cached_property
    def of_numbers(self) -> Callable[..., _OfAll]:
        return self._of_all(0)

    @cached_property
    def of_arrays(self) -> Callable[..., _OfAll]:
        return self._of_all(1)

    @cached_property
    def first_of_arrays(self) -> Callable[..., Callable[..., Any]]:
        done, (result,) = _lines(self._inputs, self._steps, self._answer[:1], 1)
        return self._compiled(1, self._taken, done, result)

    @cached_property
    def first_of_each(self) -> Callable[..., _OfEach]:
        done, (result,) = _lines(self._inputs, self._steps, self._answer[:1], 0)
        within = [f"  {line}" for line in done]
        done = ["found = []", f"for {self._taken}, in lists:", *within, f"  found.append({result})"]
        return self._compiled(0, "lists", done, "found")

    def _of_all(self, form: int) -> Callable[..., _OfAll]:
        done, results = _lines(self._inputs, self._steps, self._answer, form)
        return self._compiled(form, self._taken, done, f"({''.join(f'{result}, ' for result in results)})")

    def _compiled(self, form: int, taken: str, done: Iterable[str], result: str) -> Callable[..., Any]:
        body = "".join(f"    {line}\n" for line in done)
        source = f"def held({self._constants[form]}):\n  def replay({taken}):\n{body}    return {result}\n  return replay"
        names: dict[str, Any] = {
            "sqrt": math.sqrt, "root": np.sqrt, "maximum": np.maximum, "minimum": np.minimum, "each": _of_each,
        }  # fmt: skip
        exec(source, names)
        found: Callable[..., Any] = names["held"]
        return found


# Tapes that differ in nothing but their constants share what is written.
_written = lru_cache(maxsize=512)(_Written)


def _name(place: int, form: int = 0) -> str:
    return f"v{place}" if place >= 0 else f"{'ca'[form]}{-1 - place}"


def _lines(inputs: int, steps: tuple[_Step, ...], answer: tuple[int, ...], form: int) -> tuple[list[str], list[str]]:
    """Lines that do the steps that `answer` needs, and what it then is. What one other step alone wants is written into that,
    which spares naming it."""
    wanted = Counter(answer)
    for place in range(inputs + len(steps) - 1, inputs - 1, -1):
        if wanted[place]:
            operation, operands = steps[place - inputs]
            wanted.update(operands)
            if operation in (_larger, _smaller):
                wanted.update(operands)  # which numbers' form writes twice
    ends, lines = set(answer), list[str]()
    inline: dict[int, tuple[str, int]] = {}  # by place: the expression, and how deep its parentheses are
    for place, (operation, operands) in enumerate(steps, inputs):
        if not wanted[place]:
            continue
        written = [inline.pop(operand, (_name(operand, form), 0)) for operand in operands]
        expression, depth = _OPERATIONS[operation][form].format(*[text for text, _ in written]), 1 + max(d for _, d in written)
        if wanted[place] == 1 and place not in ends and depth < _DEEPEST:
            inline[place] = f"({expression})", depth
        else:
            lines.append(f"{_name(place)} = {expression}")
    return lines, [_name(place) for place in answer]


def _of_each(function: Callable[[Any], Any], numbers: Any) -> Any:
    return np.array([function(number) for number in numbers.tolist()])


# ------------------------------------------------------------------------- functions that formulas use on either kind of number


def larger(first: float, second: float) -> float:
    """The larger of two numbers.

    >>> larger(1.0, 2.0)
    2.0
    """
    return cast(float, _done(_larger, first, second))


def smaller(first: float, second: float) -> float:
    """The smaller of two numbers."""
    return cast(float, _done(_smaller, first, second))


def root_of_squares(first: float, second: float) -> float:
    """sqrt(a² + b²) by correctly rounded operations only, so that numbers and arrays give the same bits."""
    return cast(float, _done(math.sqrt, first * first + second * second))


def looked_up(function: Callable[[Any], float], number: float) -> float:
    """function(number), also of a number that is not known yet: a replay then asks the function, once for each number."""
    if isinstance(number, Traced):
        return cast(float, number.tape.do(_looked_up, _Remembered(function).__getitem__, number))
    return function(number)


def all_looked_up(function: Callable[[Any], Sequence[float]], number: float, count: int) -> Sequence[float]:
    """The `count` numbers of function(number), as `looked_up`: a replay asks once for all of them."""
    if isinstance(number, Traced):
        found = number.tape.do(_looked_up, _Remembered(function).__getitem__, number)
        return [cast(float, number.tape.do(part, found)) for part in _PARTS[:count]]
    return function(number)


def added(numbers: Iterable[float]) -> float:
    """Their sum, one after the other, as a replay does it: from Python 3.12 on `sum` compensates what is rounded off.

    >>> added([0.1, 0.2, 0.3])
    0.6000000000000001
    """
    total = 0.0
    for number in numbers:
        total = total + number
    return total


def known(number: float) -> float:
    """The number, or the one it was as the tape was recorded: good enough to name a bound after."""
    return cast(float, number.sample) if isinstance(number, Traced) else number


def _done(operation: Operation, *operands: Any) -> Any:
    for operand in operands:
        if isinstance(operand, Traced):
            return operand.tape.do(operation, *operands)
    return operation(*operands)
