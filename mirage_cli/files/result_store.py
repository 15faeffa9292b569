"""Results of earlier runs in a folder: JSON documents under the hash of all that they depend on, each with a keyed digest.

The key is a secret file of the user outside of the cache. A document that this user's mirage did not write as it stands (cut
short, changed, renamed, copied from elsewhere) is as good as none: what it says is found out again. Files appear under their
names complete, so any number of processes may share a folder.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import json
import logging
import os
import secrets
import stat
import zlib
from pathlib import Path
from typing import Any

from mirage_cli.files import rawfile, staging
from mirage_cli.machine import user_folders

SUFFIX = ".kept"
LARGEST = 1 << 28  #: bytes of a file that is read: a folder that came with a model may hold one without an end
SECRET = "cache.key"  #: the secret's file in the user's folder of state
PROGRAMS_SECRET = "programs.key"  #: the one of what is run: compiled objects, libraries
_DIGEST = hashlib.sha256
_SIZE = _DIGEST().digest_size
_log = logging.getLogger(__name__)


class Kept:
    """The documents in one folder. One that others may write to is not used, nor is any without a secret."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._secret = secret() if private(root) else None
        if self._secret is not None:
            staging.sweep(root)

    @property
    def usable(self) -> bool:
        """True if anything is read or kept here."""
        return self._secret is not None

    def get(self, key: str) -> Any:
        """The document under a key; None where there is none, or none of ours."""
        content = self.read(key)
        return None if content is None else json.loads(content)

    def put(self, key: str, document: Any) -> None:
        """Keep a JSON document; a folder that cannot be written to is no failure."""
        if self._secret is not None:
            self.write(key, json.dumps(document, separators=(",", ":")).encode())

    def read(self, key: str) -> bytes | None:
        """The content under a key; None where there is none, or none of ours."""
        if self._secret is None:
            return None
        try:
            data = rawfile.content(self.root / f"{key}{SUFFIX}", LARGEST)
        except OSError:
            return None
        body = opened(self._secret, key, data)
        if body is None:
            _log.info("%s: %s was not written by this user's mirage: not used", self.root, key)
            return None
        return zlib.decompress(body)

    def write(self, key: str, content: bytes) -> None:
        """Keep any content; a folder that cannot be written to is no failure."""
        if self._secret is None:
            return
        body = zlib.compress(content, 1)
        with contextlib.suppress(OSError):
            staging.put(self.root / f"{key}{SUFFIX}", sealed(self._secret, key, body))


def sealed(secret: bytes, key: str, body: bytes) -> bytes:
    """The bytes that are kept under a key, with the digest that only who has the secret can make."""
    return _seal(secret, key, body) + body


def opened(secret: bytes, key: str, data: bytes) -> bytes | None:
    """The inverse of `sealed`; None for what was sealed with another secret, under another key, or not at all."""
    seal, body = data[:_SIZE], data[_SIZE:]
    return body if hmac.compare_digest(seal, _seal(secret, key, body)) else None


def seal(document: Any) -> str:
    """Hexadecimal digits that only this user's mirage can give a JSON document; empty without a secret."""
    own = secret(PROGRAMS_SECRET)
    return "" if own is None else _seal(own, "seal", json.dumps(document, sort_keys=True).encode()).hex()


def _seal(secret: bytes, key: str, body: bytes) -> bytes:
    return hmac.digest(secret, key.encode() + b"\0" + body, _DIGEST)


def key(*parts: Any) -> str:
    """The name of a document that depends on these JSON values, and on this version of mirage."""
    return _DIGEST(json.dumps([version(), *parts]).encode()).hexdigest()


@functools.lru_cache(maxsize=1)
def version() -> str:
    """A digest of everything that this package consists of: another version gives other results."""
    root = Path(__file__).parents[1]
    files = [Path(folder) / name for folder, _, names in os.walk(root, followlinks=True) for name in names]
    digest = _DIGEST()
    for path in sorted(p for p in files if p.suffix not in (".pyc", ".part")):
        content = path.read_bytes()
        digest.update(json.dumps([path.relative_to(root).as_posix(), len(content)]).encode())
        digest.update(content)
    return digest.hexdigest()


def secret(name: str = SECRET) -> bytes | None:
    """A secret of the user, made when it is first asked for; None where it cannot be kept to oneself."""
    folder = user_folders.state()
    if folder is None:
        return None
    path = folder / name
    try:
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            staging.sweep(folder)
            staging.put(path, secrets.token_bytes(_SIZE), keep=True)  # readable by its owner alone
        status = path.stat()
        stored = path.read_bytes()
    except OSError:
        return None
    own = status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077
    return stored if own and len(stored) == _SIZE else None


def private(root: Path) -> bool:
    """True if a folder, made where it is missing, is one that only this user writes to; if it cannot be used a log
    says why."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = root.stat()
    except OSError as error:
        _log.warning("cache %s: %s", root, error.strerror)
        return False
    own = status.st_uid == os.geteuid() and not status.st_mode & 0o022
    if not own:
        _log.warning("cache %s belongs to or is writable by others: not used", root)
    return own
