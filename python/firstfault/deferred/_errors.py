"""What deferred errors raise in the end, on the rank that failed and on its peers."""

from __future__ import annotations

from firstfault._errors import FirstfaultError


class AgreementError(FirstfaultError, RuntimeError):
    """The ranks could not agree on where to stop: a peer or the store is lost.

    This rank cannot know what its peers do next: it has to leave without them.
    """
