"""How many random scenarios the laws try."""

from hypothesis import settings

settings.register_profile("thorough", max_examples=10_000)
