"""A flag that all ranks of a group share, reduced by a collective at each call."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from firstfault.deferred._exchange import any_rank

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass
class _Flag:
    calls: int = 0
    raised: bool = False
    """Whether this rank's flag was set since the last reduction."""
    stopped: bool = False


_alone = _Flag()
_groups: WeakKeyDictionary[ProcessGroup, _Flag] = WeakKeyDictionary()


def sync_should_stop(
    flag: bool, *, group: ProcessGroup | None = None, every: int = 1
) -> bool:
    """Return whether the flag of any rank is set, alike on all ranks of the group.

    A boolean all-reduce at this call, which blocks until all ranks have come to it. It
    is sticky: once true it stays true, without a collective, until
    `raise_if_deferred_error` is called or the group is destroyed. Without a process
    group, or alone in it, it is the flag of this rank.

    Args:
        flag: This rank's flag.
        group: The ranks to ask; the default group where None. The flag travels over the
            group's CPU backend, if it has one, else over its device: a gloo group
            beside a device group spares the device a synchronization.
        every: Reduce at each so many calls only, and return False in between; no flag
            is lost by that. Alike on all ranks.

    Raises:
        RuntimeError: The collective failed; whatever the backend raises.
    """
    if every < 1:
        raise ValueError(f"every is {every}, not a positive number of calls")
    state, group = _state(group)
    state.raised |= bool(flag)
    if state.stopped:
        return True
    state.calls += 1
    if group is None:
        state.stopped = state.raised
    elif state.calls % every == 0:
        state.stopped = any_rank(state.raised, group)
        state.raised = False
    return state.stopped


def reset() -> None:
    """Forget all flags."""
    global _alone
    _alone = _Flag()
    _groups.clear()


def _state(group: ProcessGroup | None) -> tuple[_Flag, ProcessGroup | None]:
    """Return the state of a group, and the group if there is anybody to ask."""
    # A program without torch.distributed has no group, and need not have torch.
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return _alone, None
    group = group or dist.group.WORLD
    assert group is not None
    state = _groups.setdefault(group, _Flag())
    return state, group if dist.get_world_size(group) > 1 else None
