"""The error handler: what happens as a program starts, fails and succeeds."""

from __future__ import annotations

import atexit
import faulthandler
import os
import sys
from _contextvars import ContextVar

from firstfault import _hooks, _native
from firstfault._error_file import damaged, failed_child, load, says, section_of
from firstfault._error_record import make
from firstfault._exception import headline
from firstfault._notices import (
    DEBUG,
    ERROR,
    INFO,
    WARNING,
    log,
    logging_is_configured,
    warn,
)
from firstfault._patience import within
from firstfault._text import cut, is_message, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from firstfault._error_record import ErrorRecord, Moment

leaving: ContextVar[bool | None] = ContextVar("firstfault.leaving", default=None)
"""While `record` hands over an exception: whether the process leaves because of it."""

_LOGGED_CHARACTERS = 64 * 1024
_RESERVE_BYTES = 4 * 1024 * 1024

_reserve: list[bytearray] = []
"""Address space, never touched, given up when a failure is recorded: it may be one of
memory, and native code that cannot allocate aborts."""


def is_disabled() -> bool:
    """Return whether ``FIRSTFAULT_DISABLE=1`` switches firstfault off."""
    return os.environ.get("FIRSTFAULT_DISABLE") == "1"


class ErrorHandler:
    """Writes failures to the file that ``TORCHELASTIC_ERROR_FILE`` names.

    As torch's class of this name: subclass it, override what should differ, and pass an
    instance to `record` or to `set_error_handler`. Its own methods never raise, but for
    what they say they raise.
    """

    _fn_name: str | None = None
    """The qualified name of the entry point, if `record` said it."""

    def _get_error_file_path(self) -> str | None:
        """Return where the error file goes; None, "" or ``/dev/null`` for nowhere."""
        return os.environ.get("TORCHELASTIC_ERROR_FILE")

    def set_entrypoint_fn_name(self, fn_name: str | None) -> None:
        """Keep the entry point's qualified name; `record` calls this first of all."""
        self._fn_name = fn_name

    def initialize(self) -> None:
        """Make this process one whose death leaves a file; called as it starts.

        Enables `faulthandler` for all threads, as torch does, and installs the handlers
        of crash signals. What cannot be done is a warning.
        """
        if is_disabled():
            return
        _keep_reserve()
        try:
            _hooks.install()
            name = self._fn_name
            _native.activate(
                error_file=self._get_error_file_path(),
                entrypoint=None if name is None else printable(name),
                argv=[printable(value) for value in getattr(sys, "argv", ())],
            )
            # Once, however often this is called; other ways to end leave the box.
            atexit.unregister(_note_exit)
            atexit.register(_note_exit)
        except Exception as error:
            warn(f"Unable to prepare for crashes. {headline(error)}")
        self._enable_faulthandler()

    def _enable_faulthandler(self) -> None:
        """Let `faulthandler` find our handlers, and leave them above its own.

        `Py_FatalError` switches it off before it aborts, which puts back what it found.
        Source: Python/pylifecycle.c, ``fatal_error``.
        """
        try:
            faulthandler.enable(all_threads=True)
            _native.reassert()
        except Exception as error:
            warn(f"Unable to enable fault handler. {headline(error)}")

    def record_exception(self, e: BaseException) -> None:
        """Write a record of an exception to the error file, or to the log without one.

        Called by hand, while the program goes on, the record is provisional: the one of
        a failure that ends the process replaces it, and mentions it.

        If a signal's handler raises meanwhile (as Ctrl-C does), the record is completed
        first.
        """
        if is_disabled():
            return
        _reserve.clear()
        committed: list[bool] = []
        try:
            self._record(e, committed)
        except BaseException:
            if not committed:
                self._record(e, committed, briefly=True)
            raise
        finally:
            _keep_reserve()

    def record_success(self) -> None:
        """Note that the entry point returned; `record` calls this. It only logs."""
        if self._fn_name:
            log(DEBUG, "entrypoint fn completed successfully: %s", self._fn_name)

    def maybe_enrich_signal_failure_message(self, message: str, error_file: str) -> str:
        """Return the message to show for a worker that died by a signal.

        For subclasses: `ChildFailedError.format_msg` calls this for negative exit codes
        with the message and the error file's path. Here it returns the message.
        """
        return message

    def override_error_code_in_rootcause_data(
        self,
        rootcause_error_file: str,
        rootcause_error: dict[str, Any],
        error_code: int = 0,
    ) -> None:
        """Set ``errorCode`` in a child's record: a child cannot know how it ended."""
        if "message" not in rootcause_error:
            log(
                WARNING,
                "child error file (%s) does not have field `message`. \n"
                "cannot override error code: %s",
                rootcause_error_file,
                error_code,
            )
        elif not isinstance(rootcause_error["message"], dict):
            log(
                WARNING,
                "child error file (%s) has a new message format. \n"
                "skipping error code override",
                rootcause_error_file,
            )
        else:
            rootcause_error["message"]["errorCode"] = error_code

    def dump_error_file(self, rootcause_error_file: str, error_code: int = 0) -> None:
        """Take over the root-cause child's record, as this process's own.

        The whole record is kept, its time included. Of a child's file that is damaged,
        what can be said of it becomes the message. What was in this process's own file
        is logged and replaced.

        Raises:
            FileNotFoundError: The child has no error file.
            MissingMessageError: It is JSON, but no error file.
        """
        import json

        if is_disabled():
            return
        try:
            found = within(rootcause_error_file, load, rootcause_error_file)
        except TimeoutError as error:
            found = damaged(rootcause_error_file, str(error.strerror))
        rootcause_error = found.data
        if found.damage:
            log(ERROR, "%s", found.damage)
            time = {"timestamp": str(found.timestamp)}
            rootcause_error = {"message": {"message": found.damage, "extraInfo": time}}
        if error_code:
            self.override_error_code_in_rootcause_data(
                rootcause_error_file, rootcause_error, error_code
            )
        log(
            DEBUG,
            "child error file (%s) contents:\n%s",
            rootcause_error_file,
            _Shown(rootcause_error),
        )
        my_error_file = _usable(self._get_error_file_path())
        if my_error_file:
            try:
                within(my_error_file, self._rm, my_error_file)
            except TimeoutError as error:
                log(DEBUG, "cannot remove %s: %s", my_error_file, error)
            self._write_error_file(my_error_file, json.dumps(rootcause_error))
            log(INFO, "dumped error file to parent's %s", my_error_file)
        else:
            log(
                ERROR,
                "no error file defined for parent, to copy child error file (%s)",
                rootcause_error_file,
            )

    def _write_error_file(self, file_path: str, error_msg: str) -> None:
        """Replace a file by this text, whole or not at all; a failure is a warning."""
        try:
            content = error_msg.encode("utf-8", "backslashreplace")
            _native.replace(file_path, content)
        except Exception as error:
            warn(f"Unable to write error to file. {headline(error)}")

    def _rm(self, my_error_file: str) -> None:
        """Log what this own error file holds, and remove it, if it is there."""
        if not os.path.isfile(my_error_file):
            return
        try:
            found = load(my_error_file)
            note, content = "Original", _Shown(found.data)
            if found.damage:
                note, content = "Unable to load original", _Shown(found.damage)
        except Exception as error:
            note, content = "Unable to load original", _Shown(headline(error))
        log(
            WARNING,
            "%s already exists and will be overwritten. %s contents:\n%s",
            my_error_file,
            note,
            content,
        )
        try:
            os.remove(my_error_file)
        except OSError as error:
            log(DEBUG, "cannot remove %s: %s", my_error_file, error)

    def _record(
        self, e: BaseException, committed: list[bool], *, briefly: bool = False
    ) -> None:
        if self._fn_name:
            log(DEBUG, "recording exception from entrypoint fn: %s", self._fn_name)
        final = leaving.get() is True
        try:
            is_new = _earlier.find(e) is None
            moment = _earlier.moment_of(e) or _native.clock()
            preceded_by = _preceding(e) if final else []
            path = self._get_error_file_path()
            record = make(
                e,
                moment,
                final=final,
                preceded_by=preceded_by,
                child=None if briefly else _handed_on(e, path),
                briefly=briefly,
            )
            if not final:
                _earlier.add(e, record)
            if final:
                if _earlier.was_final(e, record, path):
                    return
                _make_room(path, record)
            written = _native.commit(
                path,
                record.content,
                record.compact,
                final=final,
                copy=final and record.kind == "exception",
            )
        except Exception as error:
            committed.append(False)
            warn(f"Unable to write error to file. {headline(error)}")
            return
        committed.append(True)
        if written is None and is_new and logging_is_configured():
            text = record.content.decode()
            log(ERROR, "no error file defined, the error is only logged: %s", text)


def _handed_on(e: BaseException, path: str | None) -> tuple[int, str, str] | None:
    """Return the child's failure that this process hands on by ``sys.exit(status)``.

    A wrapper does that; a status alone says less than the child's own record.
    """
    if not isinstance(e, SystemExit) or not isinstance(e.code, int) or not path:
        return None
    try:
        return within(path, failed_child, path)
    except Exception:
        return None  # What can be said without it is said.


class _Earlier:
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
        if known is None or known[1] is None:
            return None
        return known[2].moment

    def others(self, e: BaseException) -> list[dict[str, object]]:
        """Return the failures recorded before this one, the first one first."""
        known = self.find(e)
        return [
            {
                "kind": entry[2].kind,
                "message": cut(entry[2].message, 2048)[0],
                "time_ns": entry[2].moment[0],
            }
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


_earlier = _Earlier()


def _preceding(e: BaseException) -> list[dict[str, object]]:
    """Return what this process survived before this exception, the first one first."""
    others = _earlier.others(e)
    recorded = [other["message"] for other in others]
    others += [note for note in _hooks.noted() if note["message"] not in recorded]
    return sorted(others, key=lambda other: str(other["time_ns"]))


def _plain_arguments(e: BaseException) -> object:
    """Return the arguments of an exception, None where keeping them could keep much."""
    plain = (str, int, float, bool, type(None))
    arguments = e.args
    return arguments if arguments and all(type(a) in plain for a in arguments) else None


def _make_room(path: str | None, record: ErrorRecord) -> None:
    """Remove what torch's `record`, further inside, wrote about this same failure."""
    if path is None:
        return
    try:
        within(path, _remove_same, path, record.message)
    except Exception:
        return  # There is nothing, or nothing that can be told to be the same.


def _remove_same(path: str, message: str) -> None:
    found = load(path)
    if not section_of(found.data) and says(found.data, message):
        os.remove(path)


def _note_exit() -> None:
    """Tell the black box that the interpreter ends; it is removed at the very end.

    An interpreter that Ctrl-C ends kills itself, which is no end that can be watched.
    """
    try:
        _native.exiting()
        if getattr(sys, "last_type", None) is KeyboardInterrupt:
            _native.discard_black_box()
    except Exception:
        return  # The box stays: that is all.


def _keep_reserve() -> None:
    try:
        _reserve[:] = [bytearray(_RESERVE_BYTES)]
    except MemoryError:
        return  # Then this is all there is.


def _usable(path: str | None) -> str | None:
    return path if path and path != os.devnull else None


class _Shown:
    """Data as a log shows it: formatted only if the line is wanted."""

    def __init__(self, data: object) -> None:
        self.data = data

    def __str__(self) -> str:
        if isinstance(self.data, str):
            return self.data
        import json

        return json.dumps(self.data, indent=2)[:_LOGGED_CHARACTERS]


_handler: ErrorHandler | None = None


def get_error_handler() -> ErrorHandler:
    """Return the error handler in force: what `set_error_handler` set, else a new one.

    `record` and `ChildFailedError` look this function up in the package each time, so
    replacing ``firstfault.get_error_handler`` takes effect at once.
    """
    return ErrorHandler() if _handler is None else _handler


def set_error_handler(handler: ErrorHandler | None) -> None:
    """Make this the error handler of the process; None goes back to the default."""
    global _handler
    _handler = handler


for _public in (ErrorHandler, get_error_handler, set_error_handler):
    _public.__module__ = "firstfault"
