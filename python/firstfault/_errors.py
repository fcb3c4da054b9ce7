"""What firstfault raises: one base, the fitting builtin as second, and advice."""


class FirstfaultError(Exception):
    """The base of every exception that firstfault raises on its own account."""

    help_text: str = ""
    """What to try next, for a person; empty where there is no advice."""


class MissingMessageError(FirstfaultError, KeyError):
    """An error file is JSON without ``message``, the field that every version has."""

    help_text = (
        "Neither torch nor firstfault wrote this file. Perhaps TORCHELASTIC_ERROR_FILE "
        "names a file of something else. Error files hold a JSON object with `message`."
    )


class UnreadablePathError(FirstfaultError, OSError):
    """A path that was to be read cannot be: see `errno` and `filename`."""


class NothingFoundError(FirstfaultError, LookupError):
    """No error file and no log of a launcher lies below the paths."""

    help_text = (
        "Give the directory that holds torchrun's worker directories (its --log-dir), "
        "FIRSTFAULT_DIR, or the file of an agent's log. Without --log-dir torchrun "
        "writes below the temporary directory of each host."
    )


class RulesError(FirstfaultError, ValueError):
    """A file of rules is wrong: the text names the file, the rule and the field."""

    help_text = "`firstfault report --help` says how a rule is written."


for _class in (
    FirstfaultError,
    MissingMessageError,
    NothingFoundError,
    RulesError,
    UnreadablePathError,
):
    _class.__module__ = "firstfault"
