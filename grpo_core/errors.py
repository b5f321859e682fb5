"""The one error that a user is meant to read."""


class UserError(Exception):
    """Bad input or a refused request: one sentence that names the key or the file and the mend.

    The command line prints it without a traceback and exits with 2. Anything else that escapes is a defect.
    """


class NotHere(UserError):
    """What the config names may well exist, but this machine lacks it: no network to the hub, no GPU, no package."""
