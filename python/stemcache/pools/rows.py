"""What the device knows of each running request (KV slots, state slots, cursors), with a mirror on the host."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stemcache.errors import InvalidArgumentError, SlotOwnershipError
from stemcache.pools import memory


class Cursors:
    """A few small numbers per request, on the device and on the host: a track position, a write cursor, a state slot.

    The host's copy is written first and is what the host reads, so nobody ever waits for the device.

    Args:
        requests: rows.
        device: where the kernels read them.
        width: numbers per request.

    Attributes:
        tensor: int32 [requests, width] on the device.
    """

    def __init__(self, requests: int, device: str | torch.device = "cpu", width: int = 1) -> None:
        self.device = torch.device(device)
        self._host = np.zeros((memory.check_size("requests", requests), memory.check_size("width", width)), np.int32)
        self.tensor = torch.zeros(self._host.shape, dtype=torch.int32, device=self.device)

    def get(self, row: int) -> npt.NDArray[np.int64]:
        """The numbers of a row, int64 [width], from the host.

        Raises:
            InvalidArgumentError: no such row.
        """
        numbers: npt.NDArray[np.int64] = self._host[_row(row, len(self._host))].astype(np.int64)
        return numbers

    def set(self, rows: Any, values: Any) -> None:
        """Writes the numbers of n rows, on the device by one copy.

        Args:
            rows: [n] on the host, none twice; or one row.
            values: [n, width], or what numpy broadcasts to it.

        Raises:
            InvalidArgumentError: no such row; another shape; a number that does not fit int32.
        """
        chosen = memory.check_slots(np.atleast_1d(rows), len(self._host))
        update = np.empty((chosen.size, 1 + self._host.shape[1]), np.int64)
        update[:, 0] = chosen
        update[:, 1:] = _broadcast(values, (chosen.size, self._host.shape[1]))
        _check_int32(update)
        self._host[chosen] = update[:, 1:]
        sent = memory.to_device(update, self.device)
        self.tensor.index_copy_(0, sent[:, 0], sent[:, 1:].to(torch.int32))

    def advance(self, rows: Any, steps: Any) -> None:
        """Adds to the numbers of n rows; arguments and errors as for `set`."""
        chosen = memory.check_slots(np.atleast_1d(rows), len(self._host))
        self.set(chosen, self._host[chosen] + _broadcast(steps, (chosen.size, self._host.shape[1])))

    def clear(self, row: int) -> None:
        """Zeroes a row, on the device without any copy.

        Raises:
            InvalidArgumentError: no such row.
        """
        self._host[_row(row, len(self._host))] = 0
        self.tensor[row].zero_()


class RequestRows:
    """A row per running request: position to KV slot, and the request's state slots and cursors.

    Args:
        requests: rows, numbered from 0.
        max_tokens: positions in a row.
        device: where the kernels read them.
        track_slots: ping-pong track slots per request.

    Attributes:
        req_to_token: int32 [requests, max_tokens] on the device; 0 (the dummy) past what was written.
        state_slot: [requests, 1], the slot that a request's running state lies in.
        track_slot: [requests, track_slots], where the engine keeps states at chunk boundaries.
        track_length: [requests, track_slots], how many tokens those states have consumed.
        write_pos: [requests, 1], ReplaySSM: how many tokens the state lags behind.

    Raises:
        InvalidArgumentError: a size below 1.
        OutOfSlotsError: the device's free memory is less than `bytes_needed`.
    """

    def __init__(
        self, requests: int, max_tokens: int, device: str | torch.device = "cpu", track_slots: int = 2
    ) -> None:
        self.requests = requests
        self.max_tokens = max_tokens
        self.device = torch.device(device)
        memory.require({"rows": self.bytes_needed(requests, max_tokens, track_slots)}, self.device)
        self._host = np.zeros((requests, max_tokens), np.int32)
        self.req_to_token = torch.zeros(requests, max_tokens, dtype=torch.int32, device=self.device)
        self.state_slot = Cursors(requests, device)
        self.track_slot = Cursors(requests, device, track_slots)
        self.track_length = Cursors(requests, device, track_slots)
        self.write_pos = Cursors(requests, device)
        self._free = list(range(requests - 1, -1, -1))
        self._taken = np.zeros(requests, np.bool_)

    @staticmethod
    def bytes_needed(requests: int, max_tokens: int, track_slots: int = 2) -> int:
        """Bytes on the device; the mirror on the host is as large.

        Raises:
            InvalidArgumentError: a size below 1.
        """
        sizes = ("requests", requests), ("max_tokens", max_tokens), ("track_slots", track_slots)
        rows, tokens, tracks = (memory.check_size(name, size) for name, size in sizes)
        return rows * (tokens + 2 * tracks + 2) * np.dtype(np.int32).itemsize

    @property
    def available(self) -> int:
        """Rows that could be handed out now."""
        return len(self._free)

    def alloc(self) -> int | None:
        """Hands out a row, or None when all are taken."""
        if not self._free:
            return None
        row = self._free.pop()
        self._taken[row] = True
        return row

    def free(self, row: int) -> None:
        """Takes a row back, and zeroes its cursors and what the host remembers of its slots.

        Raises:
            InvalidArgumentError: no such row.
            SlotOwnershipError: nobody has it.
        """
        if not self._taken[_row(row, self.requests)]:
            raise SlotOwnershipError(f"row {row} is free already")
        self._taken[row] = False
        self._free.append(row)
        self._host[row] = 0
        self.req_to_token[row].zero_()
        for cursor in (self.state_slot, self.track_slot, self.track_length, self.write_pos):
            cursor.clear(row)

    def write(self, row: int, start: int, slots: Any) -> None:
        """Writes the slots of positions `start` and on: on the host at once, on the device by one copy.

        Args:
            row: the request's.
            start: first position.
            slots: [n] on the host.

        Raises:
            InvalidArgumentError: no such row; positions past its end; a slot that does not fit int32.
        """
        values = np.ascontiguousarray(slots)
        stop = start + values.size
        self._check_span(row, start, stop)
        values = _check_int32(values).astype(np.int32)
        self._host[row, start:stop] = values
        if values.size:
            self.req_to_token[row, start:stop] = memory.to_device(values, self.device)

    def append(self, rows: Any, positions: Any, slots: Any) -> None:
        """Writes one slot for each of n requests (a decode step), on the device by one copy.

        Args:
            rows: [n] on the host, none twice.
            positions: [n], one in each row.
            slots: [n].

        Raises:
            InvalidArgumentError: no such row or position; three lengths; a slot that does not fit int32.
        """
        at = memory.check_slots(rows, self.requests), memory.check_slots(positions, self.max_tokens)
        update = np.empty((3, at[0].size), np.int64)
        for line, values in zip(update, (*at, slots), strict=True):
            line[:] = _broadcast(values, line.shape)
        _check_int32(update)
        self._host[at] = update[2]
        sent = memory.to_device(update, self.device)
        self.req_to_token.index_put_((sent[0], sent[1]), sent[2].to(torch.int32))

    def read(self, row: int, start: int, stop: int) -> npt.NDArray[np.int64]:
        """The slots of positions `start` to `stop` of a row, from the host: int64 [stop - start].

        Raises:
            InvalidArgumentError: no such row; positions past its end.
        """
        self._check_span(row, start, stop)
        return self._host[row, start:stop].astype(np.int64)

    def view(self, row: int, start: int, stop: int) -> npt.NDArray[np.int32]:
        """What `read` gives, as a read-only view of the row at no cost; it changes with the row.

        Raises:
            InvalidArgumentError: no such row; positions past its end.
        """
        self._check_span(row, start, stop)
        view = self._host[row, start:stop]
        view.flags.writeable = False
        return view

    def _check_span(self, row: int, start: int, stop: int) -> None:
        _row(row, self.requests)
        if not 0 <= start <= stop <= self.max_tokens:
            raise InvalidArgumentError(f"positions {start} to {stop} are not within the {self.max_tokens} of a row")


def _row(row: int, rows: int) -> int:
    if not 0 <= row < rows:
        raise InvalidArgumentError(f"row {row} is not one of {rows}")
    return row


def _broadcast(values: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    try:
        return np.broadcast_to(np.asarray(values), shape)
    except ValueError:
        raise InvalidArgumentError(f"values of shape {np.shape(values)} do not fit {shape}") from None


def _check_int32(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    limits = np.iinfo(np.int32)
    if values.size and not (limits.min <= values.min() and values.max() <= limits.max):
        raise InvalidArgumentError(f"numbers {values.min()} to {values.max()} do not fit int32")
    return values
