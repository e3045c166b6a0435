"""Numbers as people read them: three significant digits, thousands apart, no exponent."""

from __future__ import annotations

import math
import re


def significant(value: float, digits: int = 3) -> str:
    """`digits` significant digits without exponent, thousands apart.

    >>> [significant(value) for value in (1.6, 9.999, 0.01234, 27298, 0, math.inf)]
    ['1.60', '10.0', '0.0123', '27,300', '0', '∞']
    """
    if value == 0:
        return "0"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    rounded = float(f"{value:.{digits - 1}e}")
    decimals = max(digits - 1 - math.floor(math.log10(abs(rounded))), 0)
    return f"{rounded:,.{decimals}f}"


def times(value: float) -> str:
    """A factor, ``1.62×``."""
    return f"{significant(value)}×"


def percent(share: float) -> str:
    """A share in percent, to a tenth."""
    return f"{100 * share:.1f} %"


def unbroken(text: str) -> str:
    """The text with blanks that no line ends at inside ``γ = 5``, ``γ ≤ 5`` and ``80 %``."""
    return re.sub(r"(?<=[γτRα*]) [=≤] (?=\d)|(?<=\d) (?=%)", lambda space: space[0].replace(" ", "\u00a0"), text)


def milliseconds(seconds: float) -> str:
    """Seconds as milliseconds with their unit.

    >>> milliseconds(0.0123)
    '12.3 ms'
    """
    return f"{significant(1e3 * seconds)} ms"
