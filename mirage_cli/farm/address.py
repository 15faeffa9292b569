"""Addresses of schedulers: of this machine, or with certificates.

What Dask sends is pickled code: who reaches a port of a scheduler or a worker can run programs there. On the loopback that is
whoever is on this machine; anywhere else both ends have to show a certificate of the farm's own.
"""

from __future__ import annotations

from mirage_cli.errors import UsageError

LOOPBACK = ("localhost", "[::1]", "::1")


def is_local(host: str) -> bool:
    """True if only programs of this machine reach a host's ports."""
    parts = host.split(".")
    return host in LOOPBACK or (len(parts) == 4 and parts[0] == "127" and all(p.isdigit() for p in parts))


def checked(address: str) -> str:
    """The address of a scheduler, `tcp://` of this machine or `tls://`. Raises UsageError for any other."""
    kind, found, rest = str(address).partition("://")
    host, _, port = rest.rpartition(":")
    if not found or not host or not port.isdigit() or kind not in ("tcp", "tls"):
        raise UsageError(f"--scheduler {address}: expected tls://HOST:PORT, or tcp://127.0.0.1:PORT")
    if kind == "tcp" and not is_local(host):
        raise UsageError(
            f"--scheduler {address}: plain tcp is for this machine only, since who reaches it can run programs on the farm; "
            f"use tls://{rest} (mirage farm certificates)"
        )
    return address
