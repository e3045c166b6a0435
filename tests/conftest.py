"""How many random scenarios the laws try."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--scenarios", type=int, default=2000, help="random scenarios that the laws of serving are tried on")
