"""The console script: hands everything to the Rust command line, but for the demo.

What `doctor` looks at is made here first: a process like a worker.
"""

import os
import signal
import sys

USAGE = 2
"""The exit status of a command that cannot be done, as the Rust command line has it."""


def main() -> int:
    """Run the command line of this process and return its exit status."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["demo"]:
        from firstfault._demo import main as demo

        return demo(arguments[1:])
    # Python ignores SIGPIPE and SIGXFSZ and answers Ctrl-C only between bytecodes: the
    # command line is to end by them as any other.
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    from firstfault import _native

    encoded = [os.fsencode(argument) for argument in arguments]
    modules = _native.modules_to_import(encoded)
    if modules is None:
        return _native.run_cli(encoded)
    from firstfault._doctor import like_a_worker

    with like_a_worker(modules) as is_ready:
        return _native.run_cli(encoded) if is_ready else USAGE


if __name__ == "__main__":
    sys.exit(main())
