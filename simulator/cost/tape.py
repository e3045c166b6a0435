"""A computation recorded once and replayed on arrays: how a span of rounds is priced by the formulas of a single one.

The cost of a round of n alike sequences depends on their contexts through a few dozen operations; all else is fixed by n and γ.
`record` calls the formulas with a `Traced` number in place of each context; every operation on it goes onto a tape, every
operation on plain numbers is done for good. Replaying takes the same operations in the same order on one number or on an array
of one per round, so the bits agree. A formula that must know the number itself (an `if`, `float()`, `math.ceil`) raises
`TypeError`, and its pricer then has no such form.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

Operation = Callable[..., Any]
# A tape used this often is worth compiling: that takes as long as some fifty replays.
USES_BEFORE_COMPILING = 50


def _larger(first: float, second: float) -> float:
    return first if first > second else second


def _smaller(first: float, second: float) -> float:
    return first if first < second else second


# Each operation on numbers: the one that does the same to arrays, and how both are written.
_OPERATIONS: dict[Operation, tuple[Operation, str, str]] = {
    operator.add: (operator.add, "{0} + {1}", "{0} + {1}"),
    operator.sub: (operator.sub, "{0} - {1}", "{0} - {1}"),
    operator.mul: (operator.mul, "{0} * {1}", "{0} * {1}"),
    operator.truediv: (operator.truediv, "{0} / {1}", "{0} / {1}"),
    math.sqrt: (np.sqrt, "sqrt({0})", "sqrt({0})"),
    _larger: (np.maximum, "{0} if {0} > {1} else {1}", "maximum({0}, {1})"),
    _smaller: (np.minimum, "{0} if {0} < {1} else {1}", "minimum({0}, {1})"),
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


def _plain(number: Any) -> Any:
    return number.item() if isinstance(number, np.generic) else number


def _is(operand: object, number: int) -> bool:
    return not isinstance(operand, Traced) and operand == number


class Tape:
    """Operations on `inputs` numbers. `replay` gives each named result: a number, or an array."""

    def __init__(self, samples: Sequence[float]):
        self.inputs = [Traced(self, index, sample) for index, sample in enumerate(samples)]
        self._known: dict[tuple[Any, ...], Traced] = {}
        self._operations: list[tuple[Operation, tuple[Any, ...]]] = []
        self._steps: list[tuple[Operation, tuple[Any, ...]]] = []
        self._results: list[tuple[str, Any]] = []
        self._uses = 0
        self._compiled: tuple[Operation, Operation] | None = None

    def do(self, operation: Operation, *operands: Any) -> Traced:
        key = (operation, *((operand.index,) if isinstance(operand, Traced) else operand for operand in operands))
        found = self._known.get(key)
        if found is not None:
            return found
        samples = [operand.sample if isinstance(operand, Traced) else operand for operand in operands]
        self._operations.append((operation, operands))
        done = Traced(self, len(self.inputs) + len(self._operations) - 1, operation(*samples))
        self._known[key] = done
        return done

    def keep(self, results: Sequence[tuple[str, Any]]) -> Tape:
        """Keeps what these results need; numbers among them are constants."""
        first = len(self.inputs)
        needed = {result.index for _, result in results if isinstance(result, Traced)}
        for index in range(len(self._operations) - 1, -1, -1):
            if first + index in needed:
                needed.update(operand.index for operand in self._operations[index][1] if isinstance(operand, Traced))
        place = {index: index for index in range(first)}
        for index, (operation, operands) in enumerate(self._operations):
            if first + index not in needed:
                continue
            # An operand is a place on the tape, or a one-element tuple around a constant.
            read = tuple(place[operand.index] if isinstance(operand, Traced) else (_plain(operand),) for operand in operands)
            self._steps.append((operation, read))
            place[first + index] = first + len(self._steps) - 1
        self._results = [(name, place[r.index] if isinstance(r, Traced) else (_plain(r),)) for name, r in results]
        self._operations.clear()
        self._known.clear()
        return self

    def replay(self, numbers: Sequence[Any]) -> list[tuple[str, Any]]:
        """The results for these inputs."""
        arrays = isinstance(numbers[0], np.ndarray)
        if self._compiled is not None:
            return cast(list[tuple[str, Any]], self._compiled[arrays](*numbers))
        self._uses += 1
        if self._uses == USES_BEFORE_COMPILING:
            self._compiled = self._function(1), self._function(2)
        values = list(numbers)
        for operation, read in self._steps:
            operands = [values[o] if o.__class__ is int else o[0] for o in read]
            values.append((_OPERATIONS[operation][0] if arrays else operation)(*operands))
        return [(name, values[r] if r.__class__ is int else r[0]) for name, r in self._results]

    def _function(self, form: int) -> Operation:
        """The tape as one function, of numbers (form 1) or of arrays (form 2)."""

        def text(operand: Any) -> str:
            return f"v{operand}" if operand.__class__ is int else repr(operand[0])

        first = len(self.inputs)
        lines = [f"def replay({', '.join(f'v{index}' for index in range(first))}):"]
        for index, (operation, read) in enumerate(self._steps):
            lines.append(f"    v{first + index} = {str(_OPERATIONS[operation][form]).format(*map(text, read))}")
        lines.append(f"    return [{', '.join(f'({name!r}, {text(place)})' for name, place in self._results)}]")
        names: dict[str, Any] = {"inf": math.inf, "nan": math.nan, "maximum": np.maximum, "minimum": np.minimum}
        names["sqrt"] = math.sqrt if form == 1 else np.sqrt
        exec("\n".join(lines), names)
        return cast(Operation, names["replay"])


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


def known(number: float) -> float:
    """The number, or the one it was as the tape was recorded: good enough to name a bound after."""
    return cast(float, number.sample) if isinstance(number, Traced) else number


def _done(operation: Operation, *operands: Any) -> Any:
    for operand in operands:
        if isinstance(operand, Traced):
            return operand.tape.do(operation, *operands)
    return operation(*operands)
