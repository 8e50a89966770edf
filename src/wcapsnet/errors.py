"""Errors the user can fix."""


class InputError(ValueError):
    """Invalid user input. The message is one sentence: what is wrong and what to do."""
