"""Steps that bring the process itself into a bad way, beyond those of `crash`."""

import contextlib
import ctypes
import gc
import os
import resource
import signal
import threading
from collections.abc import Callable

import crash


class Surroundings:
    """What is the matter with the process by the time of its fault."""

    @staticmethod
    def daemon_in_malloc(count: str) -> None:
        crash.released.allocate_for_ever(int(count))

    @staticmethod
    def collect_for_ever() -> None:
        """Let a thread collect garbage without a pause."""
        started = threading.Semaphore(0)

        def collecting() -> None:
            started.release()
            while True:
                cycle: list[object] = []
                cycle.append(cycle)
                del cycle
                gc.collect()

        threading.Thread(target=collecting, daemon=True).start()
        started.acquire()

    @staticmethod
    def use_up_descriptors() -> None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
        with contextlib.suppress(OSError):
            while True:
                os.dup(2)

    @staticmethod
    def close_standard() -> None:
        for number in 0, 1, 2:
            os.close(number)

    @staticmethod
    def remove_own_directory() -> None:
        os.mkdir("gone")
        os.chdir("gone")
        os.rmdir("../gone")

    @staticmethod
    def clear_environment() -> None:
        ctypes.CDLL(None).clearenv()
        os.environ.clear()

    @staticmethod
    def tick() -> None:
        """Let a timer's signal come a thousand times a second."""
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)

    @staticmethod
    def limit_memory() -> None:
        """Let no page more be mapped."""
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (4096, hard))

    @staticmethod
    def limit_processes() -> None:
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))

    @staticmethod
    def undumpable() -> None:
        """As after setuid(2): /proc/self belongs to root."""
        PR_SET_DUMPABLE = 4
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)

    @staticmethod
    def become_nobody() -> None:
        # Who is nobody may not be able to read it.
        import firstfault._hooks  # noqa: F401

        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)

    @staticmethod
    def umask(mask: str) -> None:
        os.umask(int(mask, 8))

    @staticmethod
    def change_root(directory: str) -> None:
        os.chroot(directory)
        os.chdir("/")

    @staticmethod
    def one_processor() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def do(step: str) -> None:
    name, *arguments = step.split(":")
    own: Callable[..., None] | None = getattr(Surroundings, name, None)
    if own:
        own(*arguments)
    else:
        crash.do(step)
