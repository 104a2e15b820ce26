"""Processes that work for another one end with it, whatever ended it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

_WATCH = 0.5  # seconds between looks at whether the parent is still there
_NAME = "fedconvex: watches the parent process"
_PR_SET_PDEATHSIG = 1  # of Linux's prctl: the signal that this process gets when the thread that made it ends


def end_with(parent: int) -> None:
    """End this process once the one that gave it work is gone, killed without a word, as soon as Python is free.

    Nothing happens in a process that is no child of it, or where a watch is kept already.
    """
    if os.getppid() != parent or _NAME in {thread.name for thread in threading.enumerate()}:
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name=_NAME).start()


def killed_with(parent: int) -> None:
    """Do as `end_with` does, on Linux even while compiled code keeps Python from running.

    For processes that do not outlive the thread that made them.
    """
    end_with(parent)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
