"""The console script: hands everything to the Rust command line, but for the demo."""

import os
import signal
import sys


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

    return _native.run_cli([os.fsencode(argument) for argument in arguments])


if __name__ == "__main__":
    sys.exit(main())
