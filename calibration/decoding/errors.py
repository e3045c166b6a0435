"""The one error of this package that a user can cause."""


class DecodingError(ValueError):
    """Models, prompts or options that do not go together; its text says what must hold."""
