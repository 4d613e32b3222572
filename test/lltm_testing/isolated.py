"""Run a program in a separate process, in which torch is imported and lltm is not.

Separate processes are needed because registered operators stay registered. They are forked from one that has imported
torch, which takes seconds. This module must not import lltm, not even through a test module: the processes import it.
"""

import contextlib
import io
import multiprocessing
import os
import sys
from pathlib import Path

# Its processes have imported torch, but have not made any calls.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torch"])


def run(program: str, *arguments, package: Path, library: Path | None = None) -> str:
    """Return the program's output. Raises RuntimeError with the program's exception, or with how its process died.

    `package` is the folder to import lltm from, `library` the value of LLTM_LIBRARY.
    """
    receiver, sender = CONTEXT.Pipe(duplex=False)
    names = [str(argument) for argument in arguments]
    process = CONTEXT.Process(target=_execute, args=(sender, program, names, str(package), library and str(library)))
    process.start()
    sender.close()
    try:
        succeeded, text = receiver.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"the process died with exit code {process.exitcode}") from None
    process.join()
    assert process.exitcode == 0, f"the process died at its end with exit code {process.exitcode}"
    if not succeeded:
        raise RuntimeError(text)
    return text


def _execute(sender, program: str, arguments: list[str], package: str, library: str | None) -> None:
    os.environ.pop("LLTM_LIBRARY", None)
    if library is not None:
        os.environ["LLTM_LIBRARY"] = library
    os.chdir("/")  # nothing may depend on the current directory
    sys.path.insert(0, package)
    sys.argv = ["-c", *arguments]
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output):
            exec(program, {"__name__": "__main__"})
    except Exception as error:
        sender.send((False, f"{type(error).__name__}: {error}"))
    else:
        sender.send((True, output.getvalue().strip()))
