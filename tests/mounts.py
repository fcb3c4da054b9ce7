"""Runs programs on file systems of every kind, in a mount namespace of their own."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from conftest import PROGRAMS
from crashes import Crashed, crash, missing


def in_mount_namespace(script: str) -> list[str]:
    """Return what to put before a command to run it after mounting something."""
    done = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False)
    if done.returncode:
        missing("private mount namespaces")
    return ["unshare", "-m", "sh", "-ec", f'{script}\nexec "$@"', "sh"]


@dataclass(frozen=True)
class Mounted:
    """A file system to mount at a directory, and what it needs."""

    script: str

    def crash(
        self,
        directory: Path,
        *steps: str,
        after: str = "",
        under: str = "activate",
        env: dict[str, str | None] | None = None,
        **more: object,
    ) -> tuple[Crashed, Path]:
        """Run steps with the error file on it.

        Returns how they ended and where what they have left is now: ``errors`` and
        ``shm``, what the directory and /dev/shm had in them. `after` is done between.
        """
        kept = directory.parent / "kept"
        for name in ("errors", "shm", "work"):
            (kept / name).mkdir(parents=True, exist_ok=True)
        script = f"""
            DIRECTORY={directory} WORK={kept}/work
            mount -t tmpfs none /dev/shm
            {self.script}
            "$@" & {{ wait $! && status=0 || status=$?; }} 2>/dev/null
            {after}
            cp -a {directory}/. {kept}/errors
            cp -a /dev/shm/. {kept}/shm
            [ -z "$FILE_SERVER" ] || kill -KILL "$FILE_SERVER"
            exit $status
        """
        prefix = in_mount_namespace(script)
        ended = crash(directory, *steps, prefix=prefix, under=under, env=env, **more)  # type: ignore[arg-type]
        if ended.status == 77:
            missing(ended.stderr.strip())
        return ended, kept


TMPFS = Mounted('mount -t tmpfs none "$DIRECTORY"')
OVERLAY = Mounted("""
    mount -t tmpfs none "$WORK"
    mkdir "$WORK/lower" "$WORK/upper" "$WORK/work"
    options="lowerdir=$WORK/lower,upperdir=$WORK/upper,workdir=$WORK/work"
    mount -t overlay -o "$options" none "$DIRECTORY" || { echo overlayfs >&2; exit 77; }
""")
EXT4 = Mounted("""
    truncate -s 16M "$WORK/image"
    mkfs.ext4 -q "$WORK/image" || { echo mkfs.ext4 >&2; exit 77; }
    mount -o loop "$WORK/image" "$DIRECTORY" || { echo loop devices >&2; exit 77; }
    rmdir "$DIRECTORY/lost+found"
""")


def served(*refused: str) -> Mounted:
    """Return a file system that a process serves, whose ID is in $FILE_SERVER."""
    server = f"{sys.executable} {PROGRAMS / 'file_server.py'}"
    return Mounted(f"""
        [ -w /dev/fuse ] || {{ echo /dev/fuse >&2; exit 77; }}
        FILE_SERVER=$({server} "$DIRECTORY" {" ".join(refused)})
        export FILE_SERVER
    """)
