"""How firstfault speaks to its user: warnings that cannot raise, and one logger.

Neither loads ``warnings`` or ``logging`` before there is something to say.
"""

import sys

DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40
"""The levels of ``logging``, which is not loaded for their sake."""


def warn(text: str) -> None:
    """Issue a `UserWarning`; where warnings are errors, write to stderr instead."""
    try:
        import warnings

        warnings.warn(text, stacklevel=3)
    except Exception:
        _complain(text)


def log(level: int, text: str, *values: object) -> None:
    """Log to the logger ``firstfault``; never raises, whatever its handlers do."""
    if level < WARNING and "logging" not in sys.modules:
        return  # Nobody can have asked for it.
    try:
        import logging

        logging.getLogger("firstfault").log(level, text, *values, stacklevel=2)
    except Exception as error:
        _complain(f"cannot log: {type(error).__name__}")


def logging_is_configured() -> bool:
    """Return whether a log record would reach a handler that the user installed."""
    logging = sys.modules.get("logging")
    return logging is not None and bool(logging.getLogger("firstfault").hasHandlers())


def _complain(text: str) -> None:
    try:
        print(f"firstfault: {text}", file=sys.stderr)
    except Exception:
        return  # stderr is closed or replaced: there is nobody left to tell.
