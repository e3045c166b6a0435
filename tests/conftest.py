"""How many random scenarios the laws try, and a page as wide as it is without a terminal."""

import os

import pytest
from hypothesis import settings

# A busy machine is no failure, nor is the first call, which builds validators.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
# What commands print is compared with pages of the default width.
os.environ.pop("COLUMNS", None)
# On a terminal pytest's readline states it behind Python's back, where only commands that tests start see it.
os.unsetenv("COLUMNS")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--scenarios", type=int, default=2000, help="random scenarios that the laws of serving are tried on")
