"""A certificate authority in a directory of its own. That of a bus vouches for its server and for all who may connect.

    authority/             0700
        ca.pem
        key.pem            0600  whoever has it can make certificates of this authority

Those of a bus say "of this bus" and, for the server, under which names it is found. Who a client is, and what it may
do, is said by its NKey alone: so a certificate needs no revocation list, removing the NKey shuts its owner out.
"""

import ipaddress
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gateway.up.files import private_directory, read_private, write_private
from shared.errors import StartError

CA_DAYS = 20 * 365
LEAF_DAYS = 3 * 365
RENEW_DAYS = 30
"""A certificate with fewer days left is made anew."""
_BACKDATED = timedelta(hours=1)  # clocks of other machines may be behind


class Authority:
    """Opened with `open_authority`."""

    def __init__(
        self, directory: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, now: datetime
    ) -> None:
        self._directory = directory
        self._certificate = certificate
        self._key = key
        self._now = now
        self.pem = certificate.public_bytes(serialization.Encoding.PEM).decode()

    def check(self) -> None:
        """Make sure that clients can go by it.

        Raises:
            StartError: it has ended, or it is a certificate without the right to vouch for others.
        """
        if self._certificate.not_valid_after_utc <= self._now:
            ended = f"{self._certificate.not_valid_after_utc:%Y-%m-%d}"
            raise StartError(
                f"the authority in {self._directory} ended on {ended}: remove that directory for a new one"
            )
        try:
            constraints = self._certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        except x509.ExtensionNotFound:
            constraints = None
        if constraints is None or not constraints.ca:
            raise StartError(f"{self._directory / 'ca.pem'} is no certificate of an authority")

    def keep(
        self, certificate: Path, key: Path, name: str, hosts: Sequence[str] = (), *, days: int = LEAF_DAYS
    ) -> bool:
        """Make the pair of files, unless they are there, ours, for these `hosts`, and good for `RENEW_DAYS` more.

        With `hosts` (names or addresses) it is a server's certificate, without a client's. Returns whether it was made.

        Raises:
            StartError: a file cannot be read or written.
        """
        if self._good(certificate, key, hosts):
            return False
        self._make(certificate, key, name, hosts, days)
        return True

    def _good(self, certificate: Path, key: Path, hosts: Sequence[str]) -> bool:
        kept, secret = read_private(certificate), read_private(key)
        if kept is None or secret is None:
            return False
        try:
            found = x509.load_pem_x509_certificate(kept.encode())
            mine = serialization.load_pem_private_key(secret.encode(), password=None)
            found.verify_directly_issued_by(self._certificate)
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
            return False
        return (
            _public(found) == _public(mine)
            and _hosts(found) == {str(_general(host).value) for host in hosts}
            and found.not_valid_after_utc - self._now > timedelta(days=RENEW_DAYS)
        )

    def _make(self, certificate: Path, key: Path, name: str, hosts: Sequence[str], days: int) -> None:
        secret = ec.generate_private_key(ec.SECP256R1())
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = (
            _builder(name, self._certificate.subject, secret.public_key(), self._now, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general(host) for host in hosts]), critical=False
            )
        made = builder.sign(self._key, hashes.SHA256())
        write_private(key, _pem(secret))
        write_private(certificate, made.public_bytes(serialization.Encoding.PEM).decode())


def open_authority(directory: Path, now: datetime, name: str = "Evenflow bus authority") -> Authority:
    """Read the authority kept in `directory`; the first time, make it under this `name`.

    Raises:
        StartError: its files cannot be read or written, or do not belong together.
    """
    private_directory(directory)
    certificate_file, key_file = directory / "ca.pem", directory / "key.pem"
    certificate, key = read_private(certificate_file), read_private(key_file)
    if key is None:
        if certificate is not None:
            raise StartError(f"{key_file} is missing: without it {directory} cannot vouch for anybody")
        key = _pem(ec.generate_private_key(ec.SECP256R1()))
        write_private(key_file, key)
    try:
        secret = serialization.load_pem_private_key(key.encode(), password=None)
        if not isinstance(secret, ec.EllipticCurvePrivateKey):
            raise StartError(f"{key_file} holds no elliptic-curve key")
        made = (
            _self_signed(name, secret, now)
            if certificate is None
            else x509.load_pem_x509_certificate(certificate.encode())
        )
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise StartError(f"{directory}: ca.pem and key.pem cannot be read as certificate and key") from error
    if _public(made) != _public(secret):
        raise StartError(f"{directory}: ca.pem and key.pem do not belong together")
    authority = Authority(directory, made, secret, now)
    if certificate is None:
        write_private(certificate_file, authority.pem)
    return authority


def names_of(certificate: Path) -> list[str]:
    """Return the names and addresses that a certificate is for, names first.

    Raises:
        StartError: it cannot be read.
    """
    try:
        names = _read(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    addresses = map(str, names.get_values_for_type(x509.IPAddress))
    return [*names.get_values_for_type(x509.DNSName), *addresses]


def end_of(certificate: Path) -> datetime:
    """Return when a certificate ends.

    Raises:
        StartError: it cannot be read.
    """
    return _read(certificate).not_valid_after_utc


def _read(certificate: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(certificate.read_bytes())
    except (OSError, ValueError) as error:
        raise StartError(f"{certificate} cannot be read as a certificate") from error


def _self_signed(name: str, secret: ec.EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    return (
        _builder(name, _named(name), secret.public_key(), now, CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_CERTIFICATES_ONLY, critical=True)
        .sign(secret, hashes.SHA256())
    )


_CERTIFICATES_ONLY = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


def _builder(
    name: str, issuer: x509.Name, public: ec.EllipticCurvePublicKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_named(name))
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _hosts(certificate: x509.Certificate) -> set[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {str(name.value) for name in names}


def _public(holder: x509.Certificate | PrivateKeyTypes) -> bytes:
    kind = serialization.PublicFormat.SubjectPublicKeyInfo
    return holder.public_key().public_bytes(serialization.Encoding.DER, kind)


def _pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
