"""torch's own error handling from the installed torch, without the rest of torch.

Importing this loads ``torch.distributed.elastic.multiprocessing.errors`` as it is, in
milliseconds and under its own name: the packages around it are left empty.
"""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

NAME = "torch.distributed.elastic.multiprocessing.errors"


def _load() -> ModuleType:
    spec = importlib.util.find_spec("torch")
    if "torch" not in sys.modules:
        if spec is None or spec.origin is None:
            raise ImportError("torch is not installed")
        root = Path(spec.origin).parent.parent
        for package in (
            "torch",
            "torch.distributed",
            "torch.distributed.elastic",
            "torch.distributed.elastic.multiprocessing",
            "torch.distributed.elastic.utils",
        ):
            module = ModuleType(package)
            module.__path__ = [str(root / package.replace(".", "/"))]
            sys.modules[package] = module
    return importlib.import_module(NAME)


errors = _load()
ChildFailedError = errors.ChildFailedError
ErrorHandler = errors.ErrorHandler
ProcessFailure = errors.ProcessFailure
record = errors.record
