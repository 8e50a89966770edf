"""What the user can put right."""


class InputError(ValueError):
    """Something the user gave is wrong. The message is one sentence: what is wrong and what to do."""
