"""Two ranks: one fails, the other loses its connection a moment later.

Arguments: the culprit's rank and its fault. No torch, so that a job takes little time.
The victim waits for the culprit's connection to break, as in a collective.
"""

import ctypes
import os
import socket
import sys

from firstfault import record

culprit, fault = int(sys.argv[1]), sys.argv[2]
open_to_the_end: list[socket.socket] = []
address = f"\0firstfault-test-{os.environ['RENDEZVOUS']}"


@record
def main() -> None:
    """Fail, or lose the peer."""
    with socket.socket(socket.AF_UNIX) as peer:
        if int(os.environ["RANK"]) == culprit:
            peer.bind(address)
            peer.listen()
            connection, _ = peer.accept()
            # It breaks when the process ends, as those of a process group do.
            open_to_the_end.append(connection)
            connection.sendall(b"x")
            if fault == "segfault":
                ctypes.string_at(0)
            raise ValueError("loss is nan at step 20")
        while peer.connect_ex(address):
            pass
        while peer.recv(1):
            pass
        raise RuntimeError(
            "Connection closed by peer [127.0.0.1]:1234. This is typically caused by a"
            " remote worker crashing."
        )


main()
