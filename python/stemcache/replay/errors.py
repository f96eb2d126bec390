"""What a person can get wrong when asking for a replay."""


class ReplayError(Exception):
    """The replay cannot be done as asked; the message says why, for a person to read."""


class TraceError(ReplayError):
    """A trace that cannot be read: the file, the line (if one is to blame), and what is wrong there."""

    def __init__(self, path: object, line: int | None, problem: str) -> None:
        """Builds the message `path: line N: problem`."""
        where = f"{path}: line {line}" if line else f"{path}"
        super().__init__(f"{where}: {problem}")


class SettingsError(ReplayError):
    """A setting that no replay can have."""
