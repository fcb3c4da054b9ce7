"""Notices collectives that are issued inside a deferring scope, and says where.

Two ways, because each sees what the other does not:

- The sequence number of the group, read as a scope begins and ends, on the main thread:
  it counts collectives in C++ too, as those of ``DistributedDataParallel``.
- The functions of ``torch.distributed``, on the thread of the scope, for every group:
  they have a call site, and with ``strict`` raise before anything is issued.

Invisible stay collectives in C++ (also functional ones, as those of ``DTensor``) that
use another group than the watched one or are issued off the main thread, calls of a
`ProcessGroup`'s own methods on another group, and whatever does not go through
``torch.distributed``: NCCL, MPI or a parameter server used directly.
"""

from __future__ import annotations

import sys
from _thread import get_ident

from firstfault._notices import warn
from firstfault.deferred._errors import CollectiveInScopeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

    from firstfault.deferred._scope import Scope

_MODULE = "torch.distributed.distributed_c10d"
_CHECK = "_rank_not_in_group"
"""What each function of that module that issues a collective calls before it does."""

_ISSUE_NOTHING = {"get_backend", "get_backend_config", "get_backend_impl", "get_rank"}
_ISSUE_NOTHING |= {"get_world_size", "set_timeout"}

open_scopes: dict[int, Scope] = {}
"""The innermost open scope of each thread."""

_warned: set[tuple[str, str]] = set()


def report(where: str, what: str, site: str, strict: bool) -> None:
    """Warn about a collective in a scope, once for each place.

    Raises:
        CollectiveInScopeError: With `strict`.
    """
    text = (
        f'{what} in the deferring scope "{where}", {site}: an error in that scope '
        "would leave the other ranks waiting in it. Issue collectives outside"
    )
    if strict:
        raise CollectiveInScopeError(text)
    if (where, site) not in _warned:
        _warned.add((where, site))
        warn(text)


def place_of(frame: FrameType | None) -> str:
    """Return where the program was: its innermost frame outside torch and this package.

    As ``train.py:33 in upload``.
    """
    while frame is not None:
        module = frame.f_globals.get("__name__") or ""
        if module.partition(".")[0] not in ("torch", "firstfault", "contextlib"):
            code = frame.f_code
            return f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"
        frame = frame.f_back
    return "?"


def watch() -> Any:
    """Start to see the functions of torch.distributed, if that is loaded.

    Returns:
        Torch's own record of the process groups, or None.
    """
    module: Any = sys.modules.get(_MODULE)
    world = getattr(module, "_world", None)
    if not hasattr(world, "_default_pg"):  # Not loaded yet, or not as it was.
        return None
    check = getattr(module, _CHECK, None)
    if check is not None and not hasattr(check, "firstfault"):
        setattr(module, _CHECK, _seen(check))
    return world


def _seen(check: Callable[..., bool]) -> Callable[..., bool]:
    """Return the check, after which an open scope of this thread knows of the call."""

    def rank_not_in_group(group: Any) -> bool:
        scope = open_scopes.get(get_ident()) if open_scopes else None
        if scope is not None:
            caller = sys._getframe(1)
            name = caller.f_code.co_name
            if name not in _ISSUE_NOTHING and not name.startswith("_"):
                scope.note_collective(name, place_of(caller))
        return check(group)

    rank_not_in_group.firstfault = True  # type: ignore[attr-defined]
    return rank_not_in_group
