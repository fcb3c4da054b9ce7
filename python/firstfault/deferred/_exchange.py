"""What the ranks tell each other at the end: whether one failed, and if so which, why.

All of it travels in all-reduces, each of which ends by a deadline: one integer where
nobody failed; else eight bytes a rank and, of at most `SLOTS` failures that differ, the
texts. A thousand ranks whose disks are full move kilobytes.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import time

from firstfault._text import cut
from firstfault.deferred._errors import AgreementError
from firstfault.deferred._record import remote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from firstfault.deferred._record import Captured

SLOTS = 16
SLOT_BYTES = 8 * 1024


class Deadline:
    """A moment that several steps have to end by."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Return the seconds that are left, never less than a moment."""
        return max(self._end - time.monotonic(), 0.05)


def has_peers(group: Any) -> bool:
    """Return whether there is a process group, and somebody else in it."""
    distributed: Any = sys.modules.get("torch.distributed")
    return (
        distributed is not None
        and distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size(group) > 1
    )


def device_of(group: Any) -> Any:
    """Return where tensors of a group live: the CPU, if it has a backend for that.

    No work of a device is waited for then, which may be what hangs.
    """
    devices = {device.type: device for device in group._device_types}
    return devices.get("cpu") or next(iter(devices.values()))


def any_rank(flag: bool, group: Any) -> bool:
    """Return whether the flag is set on any rank of a group; a collective of its own.

    Unlike an `Exchange` it waits as long as the group's own timeout lets it.
    """
    if not has_peers(group):
        return flag
    import torch
    import torch.distributed as dist

    value = torch.tensor([int(flag)]).to(device_of(group or dist.group.WORLD))
    dist.all_reduce(value, dist.ReduceOp.MAX, group=group)
    return bool(value.item())


class Exchange:
    """The ranks of a process group as they tell each other how they ended.

    Every rank calls the same methods in the same order, after its last collective.

    Raises:
        AgreementError: From each method, where a peer is gone or does not come in time.
    """

    def __init__(self, group: Any) -> None:
        import torch.distributed as dist

        self._group: Any = dist.group.WORLD if group is None else group
        self._ranks = dist.get_process_group_ranks(self._group)

    def anybody(self, failed: bool) -> bool:
        """Return whether any rank failed.

        A peer may still write its last checkpoint, alone: it is waited for as long as
        by any other collective of the group.
        """
        import torch
        from torch.distributed import ReduceOp

        return bool(self._reduce([int(failed)], torch.int64, ReduceOp.MAX, None)[0])

    def failures(
        self, own: Captured | None, deadline: Deadline
    ) -> dict[int, Exception]:
        """Return the first deferred error of every rank that has one, by global rank.

        This rank's own is the very exception, the others' are `RemoteDeferredError`.
        """
        import torch
        from torch.distributed import ReduceOp

        here = self._group.rank()
        texts = None if own is None else own.texts()
        marks = [0] * len(self._ranks)
        if texts is not None:
            marks[here] = _fingerprint(texts)
        marks = self._reduce(marks, torch.int64, ReduceOp.SUM, deadline)
        tellers: dict[int, int] = {}
        for rank, mark in enumerate(marks):
            if mark and mark not in tellers and len(tellers) < SLOTS:
                tellers[mark] = rank
        slots = bytearray(len(tellers) * SLOT_BYTES)
        for slot, rank in enumerate(tellers.values()):
            if rank == here and texts is not None:
                start, text = slot * SLOT_BYTES, _packed(texts)
                slots[start : start + len(text)] = text
        told = bytes(self._reduce(slots, torch.uint8, ReduceOp.SUM, deadline))
        starts = range(0, len(told), SLOT_BYTES)
        by_mark = {
            mark: json.loads(told[start : start + SLOT_BYTES].rstrip(b"\0"))
            for mark, start in zip(tellers, starts, strict=True)
        }
        found: dict[int, Exception] = {}
        for rank, mark in enumerate(marks):
            if rank == here and own is not None:
                found[self._ranks[rank]] = own.error
            elif mark:
                said = by_mark.get(mark, _UNTOLD)
                teller = tellers.get(mark, rank)
                if teller != rank:
                    said = said | {"traceback": "", "message": self._like(teller, said)}
                found[self._ranks[rank]] = remote(self._ranks[rank], said)
        return found

    def _like(self, teller: int, said: dict[str, Any]) -> str:
        return f"{said['message']} (as rank {self._ranks[teller]} said it)"

    def barrier(self, deadline: Deadline) -> None:
        """Wait until every rank is here, and so has all that it was told."""
        import torch
        from torch.distributed import ReduceOp

        self._reduce([0], torch.int64, ReduceOp.MAX, deadline)

    def _reduce(
        self, values: Any, dtype: Any, op: Any, deadline: Deadline | None
    ) -> Any:
        """Return the values of all ranks, put together; a list of integers.

        The group's own method is used, which knows a timeout for this call alone. gloo
        ends the operation by it; a backend that does not is left to its own.
        """
        from datetime import timedelta

        import torch
        from torch.distributed.distributed_c10d import AllreduceOptions

        options = AllreduceOptions()
        options.reduceOp = op
        timeout = None
        if deadline is not None:
            options.timeout = timedelta(seconds=deadline.left())
            # A little later than the operation itself, whose error says more.
            timeout = options.timeout + timedelta(seconds=1)
        try:
            tensor = torch.tensor(list(values), dtype=dtype).to(device_of(self._group))
            work = self._group.allreduce([tensor], options)
            work.wait(timeout) if timeout else work.wait()
            return tensor.tolist()
        except RuntimeError as error:
            raise AgreementError("a peer is gone or did not come in time") from error


_UNTOLD = {
    "type": "Exception",
    "message": "its text was not sent: too many others differed from it",
}


def _fingerprint(texts: dict[str, Any]) -> int:
    """Return a number, not 0, that failures share which differ in numbers only.

    Paths and addresses name the rank; what went wrong is the same.
    """
    what = f"{texts['type']}\0{texts['where']}\0{texts['message']}"
    what = re.sub(r"\d+", "0", what)
    digest = hashlib.blake2b(what.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1 or 1


def _packed(texts: dict[str, Any]) -> bytes:
    """Return the texts as JSON that fits a slot; the traceback is what gives way."""
    size = SLOT_BYTES
    while True:
        packed = json.dumps(texts, ensure_ascii=False).encode()
        if len(packed) <= SLOT_BYTES:
            return packed
        size //= 2
        keys = ("traceback",) if size >= 512 else ("traceback", "message", "where")
        texts = texts | {key: cut(texts[key], max(size, 64))[0] for key in keys}
