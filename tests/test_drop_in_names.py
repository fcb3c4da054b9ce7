"""The public names: torch's, with torch's signatures, at next to no cost."""

import contextlib
import importlib
import inspect
import logging
import sys
from types import ModuleType

import pytest

import firstfault
from conftest import Run


@pytest.fixture(scope="module")
def theirs() -> ModuleType:
    """torch's own module."""
    import torch.distributed.elastic.multiprocessing.errors as errors

    return errors


def test_has_all_of_torchs_names(theirs: ModuleType) -> None:
    assert set(theirs.__all__) <= set(firstfault.__all__)


def test_exports_what_it_says() -> None:
    assert sorted(firstfault.__all__) == firstfault.__all__
    for name in firstfault.__all__:
        value = getattr(firstfault, name)
        assert value.__module__ == "firstfault"
        assert value.__name__ == name
        assert value.__doc__
    assert set(firstfault.__all__) <= set(dir(firstfault))
    assert firstfault._HOMES.keys() == set(firstfault.__all__)
    with pytest.raises(AttributeError, match="'firstfault' has no attribute 'nothing'"):
        firstfault.nothing  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    "name",
    [
        "record",
        "get_error_handler",
        "ProcessFailure",
        "ProcessFailure.signal_name",
        "ProcessFailure.timestamp_isoformat",
        "ChildFailedError",
        "ChildFailedError.get_first_failure",
        "ChildFailedError.format_msg",
        "ErrorHandler",
        "ErrorHandler.initialize",
        "ErrorHandler.record_exception",
        "ErrorHandler.dump_error_file",
        "ErrorHandler.override_error_code_in_rootcause_data",
        "ErrorHandler.maybe_enrich_signal_failure_message",
        "ErrorHandler._get_error_file_path",
        "ErrorHandler._write_error_file",
        "ErrorHandler._rm",
    ],
)
def test_has_torchs_signatures(name: str, theirs: ModuleType) -> None:
    def parameters(module: ModuleType) -> list[tuple[str, object, object]]:
        value: object = module
        for part in name.split("."):
            value = getattr(value, part)
        if name == "ChildFailedError":
            value = value.__init__  # type: ignore[misc]
        signature = inspect.signature(value)  # type: ignore[arg-type]
        return [(p.name, p.kind, p.default) for p in signature.parameters.values()]

    assert parameters(firstfault) == parameters(theirs)


NEWER_HOOKS = {"set_entrypoint_fn_name": ("main",), "record_success": ()}


def test_newer_hooks_are_as_torchs(
    theirs: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a torch that has them: older ones have neither."""
    results = []
    for module in (firstfault, theirs):
        if not all(hasattr(module.ErrorHandler, hook) for hook in NEWER_HOOKS):
            continue
        caplog.clear()
        handler = module.ErrorHandler()
        signatures = [
            str(inspect.signature(getattr(handler, hook))).partition(" ->")[0]
            for hook in NEWER_HOOKS
        ]
        with caplog.at_level(logging.DEBUG):
            returned = [getattr(handler, hook)(*a) for hook, a in NEWER_HOOKS.items()]
        named = "main" in caplog.text
        results.append((signatures, returned, handler._fn_name, named))
    assert results[0][1:] == ([None, None], "main", True)
    assert results[1:] in ([], [results[0]])
    assert firstfault.ErrorHandler._fn_name is None
    assert firstfault.ErrorHandler()._fn_name is None


def test_torchs_record_and_ours_call_a_handler_alike(theirs: ModuleType) -> None:
    """Each hook that both have, in the same order, with the same arguments."""

    def calls(module: ModuleType, hooks: set[str]) -> list[tuple[str, str]]:
        called = []

        class Handler(module.ErrorHandler):  # type: ignore[misc, name-defined]
            def __getattribute__(self, name: str) -> object:
                if name not in hooks:
                    return super().__getattribute__(name)
                return lambda *given: called.append((name, repr(given)))

        def main(code: int) -> None:
            if code > 1:
                raise ValueError(code)
            sys.exit(code)

        for code in (0, 2):
            with contextlib.suppress(ValueError):
                module.record(main, Handler())(code)
        return called

    hooks = {"initialize", "record_exception", *NEWER_HOOKS}
    shared = {hook for hook in hooks if hasattr(theirs.ErrorHandler, hook)}
    assert calls(firstfault, shared) == calls(theirs, shared)


def test_the_failures_import_no_torch(run: Run) -> None:
    ended = run("""
import sys
from firstfault import *
print(ChildFailedError("job", {0: ProcessFailure(0, 1, -9, "")}).name)
print([name for name in sys.modules if name.startswith("torch")])
""")
    assert ended.stdout == "job\n[]\n"


def test_the_parts_import_only_what_is_to_their_right() -> None:
    order = [
        "_record",
        "_error_handler",
        "_failures",
        "_error_record",
        "_exception",
        "_error_file",
        "_notices",
        "_text",
        "_native",
        "_errors",
    ]
    for place, name in enumerate(order):
        module = importlib.import_module(f"firstfault.{name}")
        if name == "_native":
            continue
        source = inspect.getsource(module)
        used = {
            word
            for line in source.splitlines()
            if line.lstrip().startswith(("from firstfault", "import firstfault"))
            for word in line.replace(".", " ").split()
            if word in order
        }
        assert used <= set(order[place + 1 :]), name
