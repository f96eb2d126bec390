"""Files that are there whole or not at all."""

import os
import tempfile
from pathlib import Path

from stemcache.replay.errors import ReplayError


def check_writable(path: Path) -> None:
    """Finds out before the work is done whether its result could be written.

    Raises:
        ReplayError: the folder is missing or closed, or the path is a folder.
    """
    if path.is_dir():
        raise ReplayError(f"{path}: is a folder, not a file")
    if not path.parent.is_dir():
        raise ReplayError(f"{path}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise ReplayError(f"{path}: the folder {path.parent} cannot be written to")


def write_whole(path: Path, text: str) -> None:
    """Writes beside the file, then renames over it.

    Raises:
        ReplayError: the system refuses; the file is as it was.
    """
    try:
        _replace(path, text)
    except OSError as error:
        raise ReplayError(f"{path}: {error.strerror or error}") from error


def _replace(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    beside = Path(name)
    try:
        beside.write_text(text, encoding="utf-8")
        beside.chmod(0o666 & ~_umask())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _umask() -> int:
    """The rights that new files do not get; it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
