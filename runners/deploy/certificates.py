"""TLS certificates of an authority whose key is never written."""

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dpfbo.checks import SettingError
from dpfbo.formats.files import replace_file

AUTHORITY, CERTIFICATE, KEY = "ca.crt", "server.crt", "server.key"
_DAYS = 365
_EARLIER = datetime.timedelta(hours=1)  # the start of validity lies in the past, because clocks of sites differ


def make_certificates(folder: Path, hosts: Sequence[str]) -> None:
    """Write the certificate of a new authority, and a server's certificate and key, into a folder.

    The authority's key is never written, so the authority can sign nothing further. Both certificates are valid for a
    year.

    Args:
        folder: An existing folder, which gets `ca.crt`, `server.crt` and `server.key`.
        hosts: The names and addresses of the server.

    Raises:
        SettingError: A host is neither the name nor the address of a machine.
    """
    names = [_general_name(host) for host in dict.fromkeys(hosts)]
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dpfbo trial authority")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    ca = _builder(issuer, issuer, ca_key.public_key(), ca_key.public_key(), authority=True).sign(
        ca_key, hashes.SHA256()
    )
    builder = _builder(subject, issuer, key.public_key(), ca_key.public_key(), authority=False)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _write(folder / KEY, private, 0o600)
    _write(folder / CERTIFICATE, builder.sign(ca_key, hashes.SHA256()).public_bytes(pem), 0o644)
    _write(folder / AUTHORITY, ca.public_bytes(pem), 0o644)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, signer: ec.EllipticCurvePublicKey,
    authority: bool,
) -> x509.CertificateBuilder:  # fmt: skip
    now = datetime.datetime.now(datetime.UTC)
    usage = x509.KeyUsage(
        digital_signature=not authority, key_cert_sign=authority, crl_sign=authority, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    builder = x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
    builder = builder.not_valid_before(now - _EARLIER).not_valid_after(now + datetime.timedelta(days=_DAYS))
    builder = builder.add_extension(x509.BasicConstraints(authority, 0 if authority else None), critical=True)
    builder = builder.add_extension(usage, critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    return builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    labels = host.split(".")
    if not all(0 < len(part) < 64 and part.isascii() and part.replace("-", "a").isalnum() for part in labels):
        raise SettingError("host", f"must be the name or the address of a machine, got {host!r}")
    return x509.DNSName(host)


def _write(path: Path, data: bytes, mode: int) -> None:
    replace_file(path, lambda file: file.write(data), mode=mode)
