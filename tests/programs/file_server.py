"""Mounts one directory of files in memory, and leaves a process that serves it.

``file_server.py DIRECTORY [REFUSED…]``: where to mount, and system calls that this file
system does not have: ``link``, ``rename2``. With ``kill:N`` whoever asks for the N-th
change is killed, and it is not made. Prints the server's process ID. A stopped server
is a file system that does not answer: whoever asks waits for it.

Source: the kernel's fuse.h, fuse(4); written down here because a real one would be a
dependency, and could not be told what to refuse.
"""

import ctypes
import errno
import os
import signal
import stat
import struct
import sys
import time
from dataclasses import dataclass, field

DIRECTORY, *REFUSED = sys.argv[1:]
KILL_AT = next((int(each[5:]) for each in REFUSED if each.startswith("kill:")), 0)
ROOT = 1
SETATTR_SIZE = 1 << 3
NO_REPLY = {2, 36, 42}  # FORGET, INTERRUPT, BATCH_FORGET
CHANGES = {
    4,
    10,
    12,
    13,
    16,
    35,
    45,
}  # SETATTR to RENAME2: what `answer` does for them.


@dataclass
class File:
    """A file, or the one directory."""

    node: int
    mode: int
    data: bytearray = field(default_factory=bytearray)
    links: int = 1
    time: float = field(default_factory=time.time)

    def attributes(self) -> bytes:
        seconds, rest = divmod(int(self.time * 10**9), 10**9)
        sizes = (self.node, len(self.data), (len(self.data) + 511) // 512)
        return struct.pack(
            "<6Q10I",
            *sizes,
            *[seconds] * 3,
            *[rest] * 3,
            self.mode,
            self.links,
            *[0] * 5,
        )

    def entry(self) -> bytes:
        return struct.pack("<4Q2I", self.node, 0, 0, 0, 0, 0) + self.attributes()


files = {ROOT: File(ROOT, stat.S_IFDIR | 0o777)}
names: dict[bytes, int] = {}


def found(name: bytes) -> File:
    try:
        return files[names[name.rstrip(b"\0")]]
    except KeyError:
        raise OSError(errno.ENOENT, "") from None


def create(mode: int, name: bytes) -> File:
    file = File(max(files) + 1, stat.S_IFREG | mode & 0o7777)
    files[file.node] = file
    names[name.rstrip(b"\0")] = file.node
    return file


def rename(old: bytes, new: bytes, flags: int) -> None:
    if flags and new in names:
        raise OSError(errno.EEXIST, "")
    names[new] = names.pop(old)


def refuse(call: str) -> None:
    if call in REFUSED:
        raise OSError(errno.ENOSYS, "")


def listing(offset: int) -> bytes:
    result = b""
    for number, (name, node) in enumerate(
        [(b".", ROOT), (b"..", ROOT), *names.items()]
    ):
        if number >= offset:
            head = struct.pack("<2Q2I", node, number + 1, len(name), 0)
            result += head + name + b"\0" * (-len(name) % 8)
    return result


def answer(code: int, node: int, body: bytes) -> bytes:
    """Return what a request is answered with; an `OSError` is an answer too."""
    opened = struct.pack("<Q2I", 0, 0, 0)
    match code:
        case 26:  # INIT
            return struct.pack(
                "<4I2H2I2H8I", 7, 31, 0, 0, 16, 12, 65536, 1, 32, *[0] * 9
            )
        case 1:  # LOOKUP
            return found(body).entry()
        case 3:  # GETATTR
            return struct.pack("<Q2I", 0, 0, 0) + files[node].attributes()
        case 4:  # SETATTR
            (valid, _, _, size) = struct.unpack_from("<2I2Q", body)
            if valid & SETATTR_SIZE:
                data = files[node].data
                data[:] = data[:size].ljust(size, b"\0")
            return struct.pack("<Q2I", 0, 0, 0) + files[node].attributes()
        case 10:  # UNLINK
            found(body).links -= 1
            del names[body.rstrip(b"\0")]
            return b""
        case 12:  # RENAME
            rename(*body[8:].split(b"\0")[:2], 0)
            return b""
        case 45:  # RENAME2
            refuse("rename2")
            rename(*body[16:].split(b"\0")[:2], struct.unpack_from("<Q2I", body)[1])
            return b""
        case 13:  # LINK
            refuse("link")
            file = files[struct.unpack_from("<Q", body)[0]]
            if body[8:].rstrip(b"\0") in names:
                raise OSError(errno.EEXIST, "")
            names[body[8:].rstrip(b"\0")] = file.node
            file.links += 1
            return file.entry()
        case 14 | 27:  # OPEN, OPENDIR
            return opened
        case 15:  # READ
            (_, offset, size) = struct.unpack_from("<2QI", body)
            return bytes(files[node].data[offset : offset + size])
        case 16:  # WRITE
            (_, offset, size) = struct.unpack_from("<2QI", body)
            files[node].data[offset : offset + size] = body[40 : 40 + size]
            return struct.pack("<2I", size, 0)
        case 17:  # STATFS
            return struct.pack("<5Q10I", *[1 << 20] * 5, 4096, 255, 4096, *[0] * 7)
        case 18 | 20 | 25 | 29 | 34:  # RELEASE, FSYNC, FLUSH, RELEASEDIR, ACCESS
            return b""
        case 28:  # READDIR
            return listing(struct.unpack_from("<2QI", body)[1])
        case 35:  # CREATE
            return (
                create(struct.unpack_from("<4I", body)[1], body[16:]).entry() + opened
            )
        case _:
            raise OSError(errno.ENOSYS, "")


def main() -> None:
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    mount = ctypes.CDLL(None, use_errno=True).mount
    where = os.fsencode(DIRECTORY)
    if mount(b"files", where, b"fuse", 0, options.encode()):
        raise OSError(ctypes.get_errno(), "mount")
    server = os.fork()
    if server:
        print(server)
        return
    for number in range(3):
        os.close(number)
    changes = 0
    while True:
        request = os.read(device, 1 << 17)
        (_, code, unique, node, _, _, asker) = struct.unpack_from("<2I2Q3I", request)
        if code in NO_REPLY:
            continue
        changes += code in CHANGES
        error, result = 0, b""
        try:
            if code in CHANGES and changes == KILL_AT:
                os.kill(asker, signal.SIGKILL)
                raise OSError(errno.EIO, "")
            result = answer(code, node, request[40:])
        except OSError as e:
            error = -(e.errno or errno.EIO)
        os.write(device, struct.pack("<IiQ", 16 + len(result), error, unique) + result)


main()
