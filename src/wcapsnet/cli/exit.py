"""How a program ends: one sentence for the user, and an exit code."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from ..console import command, err, out
from ..errors import Diverged, InputError, Interrupted, Lost
from ..launched import launcher

# Dependencies that prediction with an ONNX file does not need: name to import and install → name in messages
PACKAGES = {name: name for name in ("safetensors", "scipy", "jinja2", "pooch")} | {"torch": "PyTorch"}
INTERRUPTED = "Interrupted; files saved so far are kept."


@contextmanager
def in_a_sentence(short_of_memory: str = "close other programs that use it") -> Iterator[None]:
    """Errors the user can fix become one sentence and a non-zero exit code; anything else is a bug and keeps its trace.

    `short_of_memory`: what to do when memory runs out, in terms of this program's options.
    """
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.append(number)
        signal.default_int_handler(number, frame)

    main = threading.current_thread() is threading.main_thread()
    ours = main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, interrupt)
    try:
        with _sentences(short_of_memory):
            yield
    except (Exception, KeyboardInterrupt):
        # Libraries turn Ctrl-C into errors of other kinds, and it may come while a sentence is being printed.
        if not received:
            raise
        _fail(INTERRUPTED, 130)
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def _sentences(short_of_memory: str) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        _fail(str(error), 2)
    except Diverged as error:
        _say_report(error)
        _fail(str(error), 1)
    except Lost as error:
        _fail(str(error), 1)
    except Interrupted as interruption:
        _say_report(interruption)
        from ..training.environment import program

        # the same command unless the interruption names another; a script keeps the path it was called by
        called = launcher() or ["wcapsnet"] if program() == ["wcapsnet"] else ["python", sys.argv[0]]
        command("Stopped and saved. Resume with:", *called, *(interruption.args or sys.argv[1:]))
        sys.exit(130)
    except (KeyboardInterrupt, SystemExit) as end:  # typer turns one into the other
        if isinstance(end, KeyboardInterrupt) or end.code == 130:
            _fail(INTERRUPTED, 130)
        raise
    except ModuleNotFoundError as error:
        if error.name not in PACKAGES:
            raise
        _fail(
            f"This command needs {PACKAGES[error.name]}, which is not installed; install it with pip install "
            f"{error.name}.",
            1,
        )
    except BrokenPipeError:  # the reader of our output has closed the pipe
        sys.stderr.close()
        sys.exit(1)
    except RuntimeError as error:
        torch = sys.modules.get("torch")
        if torch and isinstance(error, torch.OutOfMemoryError):
            _fail(f"The device is out of memory; {short_of_memory}.", 1)
        if "allocate memory" not in str(error):
            raise
        _fail(f"There is not enough memory; {short_of_memory}.", 1)
    except OSError as error:
        _fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}.", 1)


def _say_report(stopped: Interrupted | Diverged) -> None:
    if stopped.report:
        out.print(f"The report is {stopped.report}.", markup=False, soft_wrap=True)


def _fail(sentence: str, code: int) -> NoReturn:
    err.print(f"error: {sentence}", style="red", soft_wrap=True, markup=False)
    sys.exit(code)
