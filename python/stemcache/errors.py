"""What stemcache raises. A call that is refused has changed nothing."""


class CacheError(Exception):
    """The base of all errors of this package."""

    def __str__(self) -> str:
        """The message as it is (KeyError would quote it)."""
        return str(self.args[0]) if self.args else ""


class InvalidArgumentError(CacheError, ValueError):
    """An argument that the call cannot take; the message names it, its value and the rule."""


class StaleNodeError(CacheError, KeyError):
    """A handle or lock of something that is gone: evicted, dropped, or from before a reset."""


class NotLockedError(CacheError, RuntimeError):
    """Releasing what is not held."""


class SlotOwnershipError(CacheError, ValueError):
    """A slot that somebody else owns, or nobody, or that no pool can have."""


class OutOfSlotsError(CacheError, MemoryError):
    """More slots are needed than there can ever be."""


class InvariantError(CacheError, AssertionError):
    """A bug in stemcache: what must always hold does not. Please report it with the message."""
