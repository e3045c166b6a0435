"""Colours: contrast as WCAG counts it, ink that can be read on a ground, and the colour that stands for another on a dark page.

Sources: WCAG 2.2, "relative luminance" and "contrast ratio"; Ottosson 2020, "A perceptual color space for image processing"
(Oklab).
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
# WCAG 2.2, success criterion 1.4.3 (AA): text on its ground.
READABLE = 4.5
WHITE = "#ffffff"
INK = "#262626"
# Lightness (Oklab) of what is white and of what is black on a light page, once the page is dark.
DARK_PAPER, DARK_INK = 0.225, 0.95
# What is darker than this turns as light as ink does; mid-tones are lifted somewhat, to stay clear of a dark ground.
INK_LIGHTNESS, LIFT = 0.25, 0.8

# Ottosson's two matrices, in rows: linear sRGB → cone responses, their cube roots → Oklab.
# fmt: off
_TO_LMS = np.array([
    [0.4122214708, 0.5363325363, 0.0514459929],
    [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
])
_TO_LAB = np.array([
    [0.2104542553, 0.7936177850, -0.0040720468],
    [1.9779984951, -2.4285922050, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.8086757660],
])
# fmt: on


def contrast(first: str, second: str) -> float:
    """Contrast ratio of two colours ``#rrggbb``, from 1 to 21.

    >>> round(contrast("#000000", "#ffffff"), 1)
    21.0
    """
    high, low = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def ink_on(ground: str) -> str:
    """White or near black, whichever reads better on `ground`."""
    return max((WHITE, INK), key=lambda ink: contrast(ink, ground))


def readable(colour: str, ground: str = WHITE) -> str:
    """The colour, darkened until it can be read as text on a light ground.

    >>> readable("#0072b2"), contrast(readable("#f0e442"), "#ffffff") >= READABLE
    ('#0072b2', True)
    """
    lab = _oklab(colour)
    while contrast(colour, ground) < READABLE:
        lab = lab * np.array([0.96, 1.0, 1.0])
        colour = _hex(lab)
    return colour


@cache
def on_dark(colour: str) -> str:
    """The colour that stands for `colour` on a dark page: the same hue with its lightness turned round, so that what
    contrasts on paper contrasts there.

    >>> on_dark("#ffffff") < on_dark("#808080") < on_dark("#000000")
    True
    """
    lab = _oklab(colour)
    darkness = np.clip((1.0 - lab[0]) / (1.0 - INK_LIGHTNESS), 0.0, 1.0)
    lab[0] = DARK_PAPER + (DARK_INK - DARK_PAPER) * darkness**LIFT
    return _hex(lab)


def _luminance(colour: str) -> float:
    return float(_linear(colour) @ np.array([0.2126, 0.7152, 0.0722]))


def _linear(colour: str) -> Floats:
    """Linear red, green and blue, 0 to 1."""
    value = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def _oklab(colour: str) -> Floats:
    found: Floats = _TO_LAB @ np.cbrt(_TO_LMS @ _linear(colour))
    return found


def _hex(lab: Floats) -> str:
    """``#rrggbb``; chroma is taken back as far as the screen's colours need."""
    lab = lab.copy()
    for _ in range(64):
        linear = np.linalg.solve(_TO_LMS, np.linalg.solve(_TO_LAB, lab) ** 3)
        if linear.min() > -1e-4 and linear.max() < 1 + 1e-4:
            break
        lab[1:] *= 0.95
    linear = np.clip(linear, 0.0, 1.0)
    value = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return "#" + "".join(f"{round(255 * float(part)):02x}" for part in value)
