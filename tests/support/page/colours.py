"""Colours as people see them: sRGB to OKLab, contrast by WCAG, and what is left of a colour without one kind of cones.

The matrices of colour blindness are those of Machado, Oliveira and Fernandes (2009) at full severity, for linear RGB.
OKLab is by Björn Ottosson (2020): equal distances look about equally large, and 0.02 is about what can just be seen.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

Linear = tuple[float, float, float]

SIGHTS: Mapping[str, tuple[Linear, Linear, Linear]] = {
    "usual": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900),
    ),
}  # fmt: skip

_PROPERTY = re.compile(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);")


def palette(css: str, theme: str) -> dict[str, str]:
    """The colours of a theme, by the name of their custom property."""
    return {name: light if theme == "light" else dark for name, light, dark in _PROPERTY.findall(css)}


def linear(colour: str) -> Linear:
    red, green, blue = (_linear(int(colour[at : at + 2], 16) / 255) for at in (1, 3, 5))
    return red, green, blue


def seen(colour: Linear, sight: str) -> Linear:
    """The colour that looks to everybody as this one does to a person of that sight."""
    red, green, blue = (min(1.0, max(0.0, _dot(row, colour))) for row in SIGHTS[sight])
    return red, green, blue


def distance(first: Linear, second: Linear) -> float:
    """How different two colours look, in OKLab."""
    return math.dist(_oklab(first), _oklab(second))


def contrast(first: Linear, second: Linear) -> float:
    """The contrast ratio of WCAG, from 1 to 21."""
    low, high = sorted(_dot((0.2126, 0.7152, 0.0722), colour) for colour in (first, second))
    return (high + 0.05) / (low + 0.05)


def _linear(value: float) -> float:
    return float(value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4)


def _oklab(colour: Linear) -> Linear:
    long = math.cbrt(_dot((0.4122214708, 0.5363325363, 0.0514459929), colour))
    middle = math.cbrt(_dot((0.2119034982, 0.6806995451, 0.1073969566), colour))
    short = math.cbrt(_dot((0.0883024619, 0.2817188376, 0.6299787005), colour))
    cones = (long, middle, short)
    return (
        _dot((0.2104542553, 0.7936177850, -0.0040720468), cones),
        _dot((1.9779984951, -2.4285922050, 0.4505937099), cones),
        _dot((0.0259040371, 0.7827717662, -0.8086757660), cones),
    )


def _dot(row: Linear, colour: Linear) -> float:
    return sum(weight * value for weight, value in zip(row, colour, strict=True))
