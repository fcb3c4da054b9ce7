"""Deferred errors: one rank's local failure never hangs the others.

A local operation that fails must not leave a rank's training loop, because its peers
would wait for it in their next collective. Its exception is deferred: kept, recorded,
and raised on every rank once all have stopped at the same step::

    from firstfault.deferred import Deferred

    with Deferred() as errs:
        for step, batch in enumerate(batches):
            errs.step(step)
            train(batch)
            with errs.defer("metrics"):
                upload_metrics()
            if errs.should_stop():
                break
"""

from firstfault.deferred._checkpoint import commit, prepare, purge
from firstfault.deferred._deferred import Deferred
from firstfault.deferred._errors import (
    AgreementError,
    CollectiveInScopeError,
    DeferredErrors,
    RemoteDeferredError,
)
from firstfault.deferred._flag import sync_should_stop
from firstfault.deferred._functions import (
    has_deferred_error,
    raise_if_deferred_error,
    suppress_errors,
    try_or_defer,
)
from firstfault.deferred._lifecycle import training_run

__all__ = [
    "AgreementError",
    "CollectiveInScopeError",
    "Deferred",
    "DeferredErrors",
    "RemoteDeferredError",
    "commit",
    "has_deferred_error",
    "prepare",
    "purge",
    "raise_if_deferred_error",
    "suppress_errors",
    "sync_should_stop",
    "training_run",
    "try_or_defer",
]

for _name in __all__:
    globals()[_name].__module__ = __name__
