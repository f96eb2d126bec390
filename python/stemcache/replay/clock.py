"""CPU time of the calls into the index and the allocators, by operation."""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True)
class Operation:
    """Calls of one kind so far, and the nanoseconds they took, the reading of the clock included."""

    calls: int = 0
    nanoseconds: int = 0


class Clock:
    """Times calls one by one. Only the call is timed, not the replay around it."""

    def __init__(self) -> None:
        """Starts with no operations; each comes with its first call."""
        self.operations: dict[str, Operation] = {}

    def __call__(self, name: str, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Makes the call and adds its time to the operation's."""
        operation = self.operations.get(name) or self.operations.setdefault(name, Operation())
        start = perf_counter_ns()
        result = call(*args, **kwargs)
        operation.nanoseconds += perf_counter_ns() - start
        operation.calls += 1
        return result

    @property
    def calls(self) -> int:
        """Calls of all kinds."""
        return sum(operation.calls for operation in self.operations.values())

    @property
    def nanoseconds(self) -> int:
        """Time of all calls."""
        return sum(operation.nanoseconds for operation in self.operations.values())
