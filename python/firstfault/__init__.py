"""When one of a thousand PyTorch ranks dies, says which one, why, with what evidence.

A drop-in for ``torch.distributed.elastic.multiprocessing.errors``::

    from firstfault import record

    @record
    def main() -> None: ...

The names below are loaded when they are first used, so that importing the package costs
next to nothing. They are looked up anew each time, so replacing one
(``firstfault.get_error_handler = ...``) takes effect at the next use; but for
`breadcrumb` and `step`, which a training loop calls: those stay once they are loaded.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from firstfault._black_box import breadcrumb, step
    from firstfault._doctor import doctor
    from firstfault._error_handler import (
        ErrorHandler,
        get_error_handler,
        set_error_handler,
    )
    from firstfault._errors import FirstfaultError, MissingMessageError
    from firstfault._failures import ChildFailedError, ProcessFailure
    from firstfault._native_threads import protect_native_threads
    from firstfault._record import record

__all__ = [
    "ChildFailedError",
    "ErrorHandler",
    "FirstfaultError",
    "MissingMessageError",
    "NothingFoundError",
    "ProcessFailure",
    "Report",
    "RootCause",
    "RulesError",
    "UnreadablePathError",
    "breadcrumb",
    "doctor",
    "get_error_handler",
    "protect_native_threads",
    "record",
    "report",
    "set_error_handler",
    "step",
]

_HOMES = {
    "ChildFailedError": "_failures",
    "ErrorHandler": "_error_handler",
    "FirstfaultError": "_errors",
    "MissingMessageError": "_errors",
    "NothingFoundError": "_errors",
    "ProcessFailure": "_failures",
    "Report": "_verdict",
    "RootCause": "_verdict",
    "RulesError": "_errors",
    "UnreadablePathError": "_errors",
    "breadcrumb": "_black_box",
    "doctor": "_doctor",
    "get_error_handler": "_error_handler",
    "protect_native_threads": "_native_threads",
    "record": "_record",
    "report": "_report",
    "set_error_handler": "_error_handler",
    "step": "_black_box",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(__import__(f"{__name__}.{home}", fromlist=(name,)), name)
    if home == "_black_box":
        globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
