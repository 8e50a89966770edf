"""How a program ends: one sentence for the user, and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import torch

from ..console import command, err
from ..errors import InputError
from ..training.run import program
from ..training.trainer import Diverged, Interrupted


@contextmanager
def in_a_sentence(short_of_memory: str = "end other programs that use it") -> Iterator[None]:
    """Errors that the user can put right are one sentence and a non-zero exit; anything else is a bug and looks it.

    `short_of_memory`: what to do then, by options that this program has.
    """
    try:
        yield
    except InputError as error:
        _fail(str(error), 2)
    except Diverged as error:
        _fail(str(error), 1)
    except Interrupted as interruption:
        # the same command, unless it says which; a script as it was called, which a record would shorten
        called = ["wcapsnet"] if program() == ["wcapsnet"] else ["python", sys.argv[0]]
        command("Stopped and saved. Resume with:", *called, *(interruption.args or sys.argv[1:]))
        sys.exit(130)
    except (KeyboardInterrupt, SystemExit) as end:  # typer turns the one into the other
        if isinstance(end, KeyboardInterrupt) or end.code == 130:
            _fail("Interrupted; what was saved before is kept.", 130)
        raise
    except torch.OutOfMemoryError:
        _fail(f"The device is out of memory; {short_of_memory}.", 1)
    except BrokenPipeError:  # the reader of our output has left, which is its right
        sys.stderr.close()
        sys.exit(1)
    except RuntimeError as error:
        if "allocate memory" not in str(error):
            raise
        _fail(f"There is not enough memory; {short_of_memory}.", 1)
    except OSError as error:
        _fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}.", 1)


def _fail(sentence: str, code: int) -> NoReturn:
    err.print(f"error: {sentence}", style="red", soft_wrap=True, markup=False)
    sys.exit(code)
