"""Which exceptions may be deferred, and which are raised at once.

The one criterion: can this rank still reach the next common synchronization point with
the same sequence of collectives as its peers?
"""

from __future__ import annotations

from firstfault import _native
from firstfault._exception import PART_BYTES, chain_of, headline, leaves_of
from firstfault._text import cut
from firstfault.deferred._errors import (
    AgreementError,
    CollectiveInScopeError,
    DeferredErrors,
)

_RAISED_AT_ONCE = {
    ("torch", "AcceleratorError"),
    ("torch.distributed", "DistError"),
    ("concurrent.futures._base", "CancelledError"),
}
"""By name, as torch need not be loaded; `CheckpointException` is no `Exception`."""


def may_defer(e: BaseException, *, collective_issued: bool = False) -> bool:
    """Return whether a rank may go on after an exception as if nothing had happened.

    It may not where the exception, what it was raised from or while, or a member of a
    group asks the process to leave, is an error of the communicator or the device, or
    says that a peer or the store is lost; nor where a collective was issued in the same
    scope, because it may be that collective's own: gloo raises `RuntimeError`.
    """
    if collective_issued or not isinstance(e, Exception):
        return False
    causes = [e, *(cause for cause, _ in chain_of(e)[0])]
    return all(
        _is_local(one) for cause in causes for one in [cause, *leaves_of(cause)[0]]
    )


def _is_local(e: BaseException) -> bool:
    if not isinstance(e, Exception):
        return False
    if isinstance(e, (AgreementError, CollectiveInScopeError, DeferredErrors)):
        return False
    if any((c.__module__, c.__name__) in _RAISED_AT_ONCE for c in type(e).__mro__):
        return False
    return _native.is_rank_local(cut(headline(e), PART_BYTES)[0])
