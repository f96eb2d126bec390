"""One thread at a time."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
# Has a `_guard`, a re-entrant lock.
G = TypeVar("G", bound=Any)


def exclusive(method: Callable[Concatenate[G, P], R]) -> Callable[Concatenate[G, P], R]:
    """A method that no other thread runs meanwhile: it moves slots between several owners."""

    @wraps(method)
    def guarded(self: G, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._guard:
            return method(self, *args, **kwargs)

    return guarded
