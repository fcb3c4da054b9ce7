"""One deferring scope: what is paid for in every step, so it costs little.

No generator and no object that is not needed; measured by ``make bench``.
"""

from __future__ import annotations

import sys
import threading
from _thread import get_ident

from firstfault.deferred import _collectives
from firstfault.deferred._collectives import open_scopes
from firstfault.deferred._may_defer import may_defer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

    from firstfault.deferred._captures import Captures

_main_thread = threading.main_thread().ident

_world: Any = None
"""Torch's own record of the process groups, once it is loaded."""


class Scope:
    """A block whose error is deferred, where it may be; made by `Captures.defer`.

    It has no ``__init__``, whose call takes longer than all that it would do.
    """

    __slots__ = (
        "_before",
        "_captures",
        "_count",
        "_outer",
        "_saw",
        "_thread",
        "_where",
    )

    _captures: Captures
    _where: str

    def __enter__(self) -> None:
        self._thread = thread = get_ident()
        self._outer = open_scopes.get(thread)
        open_scopes[thread] = self
        self._saw = False
        # Other threads' collectives count too: only where the trunk itself waits.
        if thread == _main_thread and (_world is not None or _is_loaded()):
            group = self._captures._group or _world._default_pg
            if group is not None:
                try:
                    self._count = count = group._get_sequence_number_for_group
                    self._before = count()
                    return
                except RuntimeError:
                    pass  # Not every backend counts.
        self._before = None

    def __exit__(
        self,
        cls: type[BaseException] | None,
        e: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if self._outer is None and open_scopes.get(self._thread) is self:
            del open_scopes[self._thread]
        else:
            self._unlink()
        if e is None and not self._saw:
            try:
                if self._before is None or self._count() == self._before:
                    return False
            except RuntimeError:
                return False  # The group was destroyed in the scope.
            return self._leave(None, True)
        return self._leave(e, self._saw or self._has_issued())

    def _unlink(self) -> None:
        """Take this scope out of those that are open on its thread.

        Scopes of tasks on one thread do not end in the order in which they began.
        """
        inner = open_scopes.get(self._thread)
        if inner is self:
            if self._outer is None:
                del open_scopes[self._thread]
            else:
                open_scopes[self._thread] = self._outer
            return
        while inner is not None:
            if inner._outer is self:
                inner._outer = self._outer
                return
            inner = inner._outer

    def _has_issued(self) -> bool:
        if self._before is None:
            return False
        try:
            group = self._captures._group or _world._default_pg
            return bool(group._get_sequence_number_for_group() != self._before)
        except (AttributeError, RuntimeError):
            return True  # The group was destroyed in the scope.

    def note_collective(self, name: str, site: str) -> None:
        """Take notice of a collective that is about to be issued on this thread.

        Raises:
            CollectiveInScopeError: It must not be, by the program's own wish.
        """
        scope: Scope | None = self
        while scope is not None:
            scope._saw = True
            scope = scope._outer
        _collectives.report(self._where, name, site, self._captures._strict)

    def _leave(self, e: BaseException | None, issued: bool) -> bool:
        if e is None:
            if not self._saw:
                site = _collectives.place_of(sys._getframe(2))
                what = "a collective was issued"
                _collectives.report(self._where, what, site, self._captures._strict)
            return False
        if not may_defer(e, collective_issued=issued):
            return False
        return self._captures._keep(e, self._where)  # type: ignore[arg-type]


def _is_loaded() -> bool:
    """Return whether torch.distributed is loaded, whose groups are watched then."""
    global _world
    _world = _collectives.watch()
    return _world is not None
