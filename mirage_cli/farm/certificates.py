"""The certificate of a farm, which all its machines show each other, and Dask itself."""

from __future__ import annotations

import datetime
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirage_cli.errors import ToolMissing, UsageError
from mirage_cli.files import staging
from mirage_cli.machine import user_folders

if TYPE_CHECKING:
    from distributed import Security

CERTIFICATE, KEY = "farm.pem", "farm.key"
YEARS = 2
_HINT = "mirage farm certificates makes a set; copy it to every machine of the farm"


def folder(given: str | None) -> Path:
    """The folder of the farm's certificates: the one that is given, or the user's. Raises UsageError for a user without
    one."""
    if given is not None:
        return Path(given)
    state = user_folders.state()
    if state is None:
        raise UsageError("there is no folder for certificates: this user has no home", "name one: --certificates DIR")
    return state / "farm"


def security(address: str, certificates: str | None) -> Security | None:
    """What both ends show each other; None for plain connections of this machine. Raises UsageError without certificates,
    or with a key that others can read."""
    if not address.startswith("tls://"):
        return None
    where = folder(certificates)
    certificate, key = where / CERTIFICATE, where / KEY
    try:
        mode = stat.S_IMODE(key.stat().st_mode)
        certificate.stat()
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}, and {address} asks for certificates", _HINT) from None
    if mode & 0o077:
        raise UsageError(f"{key}: others can read it", f"chmod 600 {key}, or make a new set")
    return made_security(certificate, key)


def made_security(certificate: Path, key: Path) -> Security:
    """Security of Dask's in which all show the same certificate, and believe no other."""
    files: dict[str, Any] = {
        f"tls_{role}_{part}": str(path)
        for role in ("client", "scheduler", "worker")
        for part, path in (("cert", certificate), ("key", key))
    }
    return distributed().Security(require_encryption=True, tls_ca_file=str(certificate), **files)


def make(where: Path) -> tuple[Path, Path]:
    """A new certificate, which signs itself, and its key, readable by their owner alone. Raises UsageError where there are
    some."""
    try:
        from cryptography import x509  # noqa: PLC0415 - of the extra
        from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
    except ImportError:
        raise missing() from None
    if (where / KEY).exists():
        raise UsageError(f"{where / KEY} is there already", "remove it, or name another folder")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "mirage farm")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=365 * YEARS))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    certificate = builder.sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    where.mkdir(mode=0o700, parents=True, exist_ok=True)
    staging.put(where / CERTIFICATE, certificate.public_bytes(pem))
    staging.put(where / KEY, key.private_bytes(pem, *plain), keep=True)
    os.chmod(where / KEY, 0o600)
    return where / CERTIFICATE, where / KEY


def distributed() -> Any:
    """Dask's package. Raises ToolMissing where it is not installed."""
    try:
        import distributed as package  # noqa: PLC0415 - it takes a second, and is an extra
    except ImportError:
        raise missing() from None
    return package


def missing() -> ToolMissing:
    """The error of who has not installed what a farm needs."""
    return ToolMissing("a farm needs Dask, which is not installed", "pip install 'mirage-cli[farm]'")
