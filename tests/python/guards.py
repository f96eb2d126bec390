"""Guards for tests: inside `no_sync` nothing may wait for the device."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_READS = (
    "item tolist cpu numpy __bool__ __int__ __float__ __complex__ __index__ __contains__ __array__ __format__ __repr__ "
    "nonzero is_nonzero equal allclose unique masked_select argwhere repeat_interleave unique_consecutive bincount"
)
_FORBIDDEN = frozenset(_READS.split())
_INDEXING = {"__getitem__", "__setitem__", "index_put_", "index_put"}


class SyncError(AssertionError):
    """A tensor was read back to the host, or made something whose shape depends on its contents."""


class _ForbidReads(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _FORBIDDEN or _to_host(name, args, kwargs or {}) or _by_contents(name, args):
            raise SyncError(f"{name} waits for the device")
        return func(*args, **(kwargs or {}))


def _to_host(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if name != "to" or args[0].device.type == "cpu":
        return False
    target = kwargs.get("device", args[1] if len(args) > 1 else None)
    return isinstance(target, str | torch.device) and torch.device(target).type == "cpu"


def _by_contents(name: str, args: tuple[Any, ...]) -> bool:
    if name == "where":
        return len(args) == 1
    if name not in _INDEXING or len(args) < 2:
        return False
    index = args[1] if isinstance(args[1], tuple | list) else (args[1],)
    return any(_is_mask(part) or _is_bounded_by_tensor(part) for part in index)


def _is_mask(part: Any) -> bool:
    return isinstance(part, torch.Tensor) and part.dtype in {torch.bool, torch.uint8}


def _is_bounded_by_tensor(part: Any) -> bool:
    return isinstance(part, slice) and any(isinstance(end, torch.Tensor) for end in (part.start, part.stop, part.step))


@contextmanager
def no_sync() -> Iterator[None]:
    """Raises where code reads a tensor back to the host (`.item()`, `.tolist()`, `.cpu()`, `.numpy()`, `bool()`, ...).

    On a machine with CUDA torch's own sync debug mode is on as well, for what no Python call shows.
    """
    with ExitStack() as stack:
        if torch.cuda.is_available():
            stack.callback(torch.cuda.set_sync_debug_mode, torch.cuda.get_sync_debug_mode())
            torch.cuda.set_sync_debug_mode("error")
        stack.enter_context(_ForbidReads())
        yield
