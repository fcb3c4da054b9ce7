"""Loads data by worker processes that crash: loader.py LIBRARY UNDER."""

import ctypes
import sys


class Crashing:
    """A data set whose first item crashes its reader."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        ctypes.CDLL(sys.argv[1]).read_null()
        return index


def main() -> None:
    from torch.utils.data import DataLoader

    for _ in DataLoader(Crashing(), num_workers=1):
        pass


if __name__ == "__main__":
    if sys.argv[2] == "torch":
        from torch.distributed.elastic.multiprocessing.errors import record
    else:
        from firstfault import record
    record(main)()
