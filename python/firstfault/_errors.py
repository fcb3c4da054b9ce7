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


for _class in (FirstfaultError, MissingMessageError):
    _class.__module__ = "firstfault"
