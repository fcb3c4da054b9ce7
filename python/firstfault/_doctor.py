"""What `firstfault doctor` looks at: this process, or one made like a worker."""

from __future__ import annotations

import contextlib
import importlib
import sys
import traceback
import warnings

from firstfault import _native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def doctor() -> str:
    """Return what capture can and cannot do in this process, as text of 80 columns.

    For a job that runs: call it in ``main`` once all libraries are loaded, and it says
    who has put signal handlers above firstfault's. Nothing is changed by it; a file is
    written beside each record's place and removed again. `firstfault doctor` prints the
    same of a process of its own.
    """
    return _native.doctor()


@contextlib.contextmanager
def like_a_worker(modules: Sequence[str]) -> Iterator[bool]:
    """Put capture in force as `record` does, import modules, and undo it at the end.

    Yields:
        Whether all modules could be imported; what they print goes to stderr.
    """
    from firstfault._error_handler import get_error_handler

    with warnings.catch_warnings():
        # What failed is the first of the probes.
        warnings.simplefilter("ignore")
        get_error_handler().initialize()
    try:
        yield all(map(_is_imported, modules))
    finally:
        _native.discard_black_box()


def _is_imported(name: str) -> bool:
    # As for ``python -m``: the user's own modules are where he stands.
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        with contextlib.redirect_stdout(sys.stderr):
            importlib.import_module(name)
    except Exception as error:
        traceback.print_exc()
        print(f"firstfault: cannot import {name}: {error}", file=sys.stderr)
        return False
    return True


doctor.__module__ = "firstfault"
