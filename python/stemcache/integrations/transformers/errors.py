"""What this bridge raises besides the package's own errors."""

from stemcache.errors import InvalidArgumentError


class UnsupportedModelError(InvalidArgumentError):
    """A model that cannot go on from a cached prefix; the message says what was found when it was tried."""
