"""How many random scenarios the laws try."""

import pytest
from hypothesis import settings

# A busy machine is no failure, nor is the first call, which builds validators.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--scenarios", type=int, default=2000, help="random scenarios that the laws of serving are tried on")
