"""Messages between the processes of one run: anything that can be pickled, through a pipe of their own; and from a run to the
workers of its farm, which run what it says anyway. What comes back from those is no message but a document.

Elements of arrays are sent from where they lie and received into the memory that the array will have.
"""

from __future__ import annotations

import pickle
from multiprocessing.connection import Connection
from typing import Any


def send(connection: Connection, content: Any) -> None:
    """Send something. Raises OSError where nobody reads any more."""
    parts: list[pickle.PickleBuffer] = []
    data = pickle.dumps(content, 5, buffer_callback=parts.append)
    views = [part.raw() for part in parts]
    connection.send_bytes(pickle.dumps([view.nbytes for view in views]))
    connection.send_bytes(data)
    for view in views:
        if view.nbytes:
            connection.send_bytes(view)


def received(connection: Connection) -> Any:
    """The next object that the other end has sent. Raises EOFError or OSError where there is none."""
    sizes: list[int] = pickle.loads(connection.recv_bytes())
    data = connection.recv_bytes()
    parts = [bytearray(size) for size in sizes]
    for part in parts:
        if part:
            connection.recv_bytes_into(part)
    return pickle.loads(data, buffers=parts)


def packed(content: Any) -> bytes:
    """A message as bytes that can be kept."""
    return pickle.dumps(content, 5)


def unpacked(message: bytes) -> Any:
    """The inverse of `packed`, for a message of a run that this process works for."""
    return pickle.loads(message)
