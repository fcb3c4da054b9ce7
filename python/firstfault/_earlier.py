"""The provisional records of this process: a failure that ends it mentions them."""

from __future__ import annotations

import os
import sys

from firstfault._exception import headline
from firstfault._text import is_message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from firstfault._error_record import Deferral, ErrorRecord, Moment


class Earlier:
    """The provisional records of this process, which a final one mentions.

    An exception is known again by its identity and its arguments, which are kept: the
    exception itself is not, because its traceback holds all that its frames hold.
    """

    LIMIT = 16

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.entries: list[tuple[int, object, ErrorRecord]] = []
        self.final: object = None

    def add(self, e: BaseException, record: ErrorRecord) -> None:
        """Remember a record that was just made."""
        known = self.find(e)
        if self.pid != os.getpid():  # A forked child has no failures yet.
            self.pid, self.entries = os.getpid(), []
        self.entries = [entry for entry in self.entries if entry is not known]
        if len(self.entries) == self.LIMIT:  # The first and the latest tell the most.
            del self.entries[self.LIMIT // 2]
        self.entries.append((id(e), _plain_arguments(e), record))

    def moment_of(self, e: BaseException) -> Moment | None:
        """Return when this very exception was recorded first, if it was."""
        known = self.find(e)
        # A deferred error is held by its `Deferred`: it is no other at the same place.
        if known is None or (known[1] is None and known[2].deferred is None):
            return None
        return known[2].moment

    def deferral_of(self, e: BaseException) -> Deferral | None:
        """Return why an exception is raised, where a deferred error is the reason."""
        errors: Any = sys.modules.get("firstfault.deferred._errors")
        if errors is None:
            return None
        if not isinstance(e, errors.DeferredErrors):
            known = self.find(e)
            facts = None if known is None else known[2].deferred
            return None if facts is None else (facts, e)
        own: BaseException | None = e.own
        facts = {}
        if own is not None:
            known = self.find(own)
            recorded = None if known is None else known[2].deferred
            facts = dict(recorded or {"where": "", "suppressed": 0})
        if e.stopped_at is not None:
            facts["stopped_at"] = e.stopped_at
        return facts, own or e

    def others(self, e: BaseException) -> list[dict[str, object]]:
        """Return the failures recorded before this one, the first one first."""
        known = self.find(e)
        return [
            entry[2].in_short()
            for entry in self.entries
            if entry is not known and self.pid == os.getpid()
        ]

    def was_final(self, e: BaseException, record: ErrorRecord, path: object) -> bool:
        """Return whether this is the final failure still, and remember it as that.

        It is where a forked child returns through several decorated functions.
        """
        before, self.final = self.final, (os.getpid(), id(e), record.message, path)
        return before == self.final

    def find(self, e: BaseException) -> tuple[int, object, ErrorRecord] | None:
        """Return the record of this very exception, if there is one."""
        if self.pid != os.getpid():
            return None
        for entry in reversed(self.entries):
            same = entry[0] == id(e) and entry[1] is _plain_arguments(e)
            if same and is_message(headline(e), entry[2].message):
                return entry
        return None


def _plain_arguments(e: BaseException) -> object:
    """Return the arguments of an exception, None where keeping them could keep much."""
    plain = (str, int, float, bool, type(None))
    arguments = e.args
    return arguments if arguments and all(type(a) in plain for a in arguments) else None
