"""What activation puts into Python itself, once in a process."""

from __future__ import annotations

import os

from firstfault import _native

_installed: list[bool] = []


def install() -> None:
    """Install what is not installed yet."""
    if _installed:
        return
    _installed.append(True)
    os.register_at_fork(after_in_child=_native.after_fork)
