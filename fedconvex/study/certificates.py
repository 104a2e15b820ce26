"""Certificates of a study: an authority, requests of sites, and what is approved; keys stay where they are made.

A site's certificate has its name in it (subjectAltName, URI ``fedconvex:site:north``), the coordinator's
``fedconvex:server`` and the name under which sites reach it. Made with the library cryptography; files of another
authority will do if they hold these names.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path
from typing import Any

from fedconvex._check import bad, whole
from fedconvex._files import check_owner_only, existing, write_private, write_together
from fedconvex.remote import TLS

_LARGEST = 1 << 16  # bytes of a PEM file
SERVER, SITE = "fedconvex:server", "fedconvex:site:"


def library() -> Any:
    """Return the modules of cryptography that make certificates.

    Raises
    ------
    ImportError
        If it is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise ImportError("certificates need the package cryptography: pip install 'fedconvex[secure]'") from None
    return x509, hashes, serialization, ec


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _new_key() -> tuple[Any, bytes]:
    _, _, serialization, ec = library()
    key = ec.generate_private_key(ec.SECP256R1())
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return key, key.private_bytes(*form)


def _fresh(path: Path) -> Path:
    """Return a path at which no file is yet: keys are not overwritten."""
    if os.path.lexists(path):
        raise bad("fedconvex study cert", "write new files", f"{path} is there", "delete it, or take another folder")
    return path


def _named(name: str) -> Any:
    x509 = library()[0]
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:64])])


def _signed(
    subject: Any, public: Any, issuer: Any, key: Any, extensions: list[tuple[Any, bool]], days: int, last: Any = None
) -> bytes:
    """Return a certificate as PEM, which is good for so many days, and no longer than the one that signs it."""
    x509, hashes, serialization, _ = library()
    now = _now()
    end = now + datetime.timedelta(days=days)
    made = x509.CertificateBuilder(issuer, subject, public, x509.random_serial_number())
    made = made.not_valid_before(now - datetime.timedelta(hours=1)).not_valid_after(min(end, last or end))
    for extension, critical in extensions:
        made = made.add_extension(extension, critical)
    return bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def make_authority(study: Any, folder: str | os.PathLike[str], days: int = 365) -> str:
    """Write the authority of a study, and the coordinator's own certificate, into a folder.

    Parameters
    ----------
    study : Study
        Its address is the name that the coordinator's certificate is good for.
    folder : path
        Gets ``authority.key`` and ``server.key``, readable by their owner only, ``authority.pem`` and ``server.pem``.
    days : int
        For which they are good.

    Returns
    -------
    str
        The authority's fingerprint, for ``[coordinator] authority`` of the study.

    Raises
    ------
    ValueError, ImportError
        If a file is there already; if cryptography is not installed.
    """
    x509, _, _, _ = library()
    days, place = whole("make_authority: days", days, low=1, high=3650), Path(folder)
    files = [_fresh(place / name) for name in ("authority.key", "authority.pem", "server.key", "server.pem")]
    place.mkdir(parents=True, exist_ok=True)
    (root, root_pem), (own, own_pem) = _new_key(), _new_key()
    subject = _named(f"authority of {study.name}")
    able = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    top = [(x509.BasicConstraints(True, 0), True), (able, True), _subject_key(root.public_key())]
    authority = _signed(subject, root.public_key(), subject, root, top, days)
    names = [_host(study.address[0]), x509.UniformResourceIdentifier(SERVER)]
    if study.address[0] in (here := ("localhost", "127.0.0.1", "::1")):
        names += [_host(name) for name in here if name != study.address[0]]
    server = _signed(_named("server"), own.public_key(), subject, root, _leaf(names, own, root, True), days)
    write_private(files[0], root_pem)
    write_private(files[2], own_pem)
    write_together({files[1]: authority, files[3]: server})
    return fingerprint_of(files[1])


def _host(name: str) -> Any:
    x509 = library()[0]
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _subject_key(public: Any) -> tuple[Any, bool]:
    return library()[0].SubjectKeyIdentifier.from_public_key(public), False


def _leaf(names: list[Any], key: Any, root: Any, server: bool) -> list[tuple[Any, bool]]:
    """Return the extensions of a certificate that signs no others."""
    x509 = library()[0]
    usage = x509.ExtendedKeyUsageOID.SERVER_AUTH if server else x509.ExtendedKeyUsageOID.CLIENT_AUTH
    public = key.public_key() if hasattr(key, "public_key") else key
    return [
        (x509.BasicConstraints(False, None), True),
        (x509.ExtendedKeyUsage([usage]), False),
        (x509.SubjectAlternativeName(names), False),
        _subject_key(public),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(root.public_key()), False),
    ]


def make_request(site: str, folder: str | os.PathLike[str] = ".") -> Path:
    """Write a site's key, which stays there, and the request that goes to the authority.

    Returns
    -------
    path
        Of the request, ``NAME.csr``.

    Raises
    ------
    ValueError, ImportError
        If a file is there already; if cryptography is not installed.
    """
    x509, hashes, serialization, _ = library()
    from fedconvex.study.agreement import site_name

    name, place = site_name("make_request: site", site), Path(folder)
    key_file, request_file = _fresh(place / f"{name}.key"), _fresh(place / f"{name}.csr")
    place.mkdir(parents=True, exist_ok=True)
    key, pem = _new_key()
    request = x509.CertificateSigningRequestBuilder(_named(name)).sign(key, hashes.SHA256())
    write_private(key_file, pem)
    write_together({request_file: request.public_bytes(serialization.Encoding.PEM)})
    return request_file


def approve(request: str | os.PathLike[str], site: str, folder: str | os.PathLike[str], days: int = 365) -> Path:
    """Write the certificate that a request asks for, in the name of one site whatever the request says.

    Parameters
    ----------
    request : path
        What `make_request` has written.
    site : str
        Whose certificate it is to be.
    folder : path
        With ``authority.key`` and ``authority.pem``; gets ``NAME.pem``.

    Raises
    ------
    ValueError, FileNotFoundError, ImportError
        If the request is none, of another site, or not signed by its own key.
    """
    x509, _, serialization, _ = library()
    from fedconvex.study.agreement import site_name

    name, place = site_name("approve: site", site), Path(folder)
    secret = existing("fedconvex study cert", place / "authority.key")
    check_owner_only(f"{secret}", secret)
    key = serialization.load_pem_private_key(pem_in(secret), None)
    authority = x509.load_pem_x509_certificate(pem_in(place / "authority.pem"))
    check_period(f"{place / 'authority.pem'}", authority)
    content = pem_in(request)
    try:
        asked = x509.load_pem_x509_csr(content)
        sound = asked.is_signature_valid
    except ValueError as error:
        raise bad(f"{request}", "be a request for a certificate", str(error)) from None
    said = [a.value for a in asked.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)]
    if not sound or said != [name]:
        got = "another signature" if not sound else f"a request of {', '.join(map(str, said))!r}"
        raise bad(f"{request}", f"be a request of {name} that its own key has signed", got)
    names, days = [x509.UniformResourceIdentifier(SITE + name)], whole("approve: days", days, low=1, high=3650)
    extensions = _leaf(names, asked.public_key(), key, False)
    last = authority.not_valid_after_utc
    made = _signed(_named(name), asked.public_key(), authority.subject, key, extensions, days, last)
    file = _fresh(place / f"{name}.pem")
    write_together({file: made})
    return file


def check_period(who: str, certificate: Any) -> None:
    """Raise ValueError if a certificate is good no more, or not yet, by the clock of this machine."""
    now = _now()
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not first <= now <= last:
        clock = f"{now:%Y-%m-%d %H:%M} UTC by this machine's clock"
        cure = "make a new one" if now > last else "is the clock right?"
        raise bad(who, f"be good now, from {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC", clock, cure)


def pem_in(path: str | os.PathLike[str]) -> bytes:
    """Return what a file holds that is no longer than certificates, requests and keys are."""
    file = existing("fedconvex study cert", path)
    if file.stat().st_size > _LARGEST:
        raise bad(f"{file}", f"have at most {_LARGEST:,} bytes", f"{file.stat().st_size:,}")
    return file.read_bytes()


def fingerprint_of(path: str | os.PathLike[str]) -> str:
    """Return the fingerprint of a certificate: SHA256: and its 32 bytes, to be compared by telephone.

    Raises
    ------
    ValueError, FileNotFoundError
        If the file holds none.
    """
    import hashlib
    import ssl

    content = pem_in(path).decode("ascii", errors="replace")
    try:
        der = ssl.PEM_cert_to_DER_cert(content[content.index("-----BEGIN CERTIFICATE") :])
    except ValueError:
        raise bad(f"{path}", "be a certificate (PEM)", "none") from None
    return shown_fingerprint(hashlib.sha256(der).digest())


def shown_fingerprint(digest: bytes) -> str:
    """Return 32 bytes as they are read out."""
    return "SHA256:" + ":".join(f"{b:02X}" for b in digest)


def credentials(study: Any, certificate: Any, key: Any, authority: Any, place: str | None = None) -> TLS:
    """Return what one end of a study proves itself with; the authority is that of the study.

    Parameters
    ----------
    study : Study
    certificate, key, authority : path
    place : str, optional
        Of this end, which must stand in its certificate: ``fedconvex:site:north``.

    Raises
    ------
    ValueError, FileNotFoundError
        If a file is missing, others may read the key, a certificate has ended, is revoked or names another place, or
        the authority is another one than the study says.
    """
    if study.authority is not None and (got := fingerprint_of(authority)) != study.authority:
        must = f"be the study's authority, {study.authority[:24]}..."
        raise bad(f"{authority}", must, f"{got[:24]}...", "ask the coordinator for authority.pem")
    if (own := fingerprint_of(certificate)) in study.revoked:
        raise bad(f"{certificate}", "not be revoked in the study", f"{own[:24]}...", "request a new one: cert request")
    agreed = study.certificates.get((place or "").removeprefix(SITE), own)
    if own != agreed:
        raise bad(f"{certificate}", f"be the one in the study, {agreed[:24]}...", f"{own[:24]}...")
    _good_now(certificate, authority, place)
    revoked = tuple(one.removeprefix("SHA256:").replace(":", "").lower() for one in study.revoked)
    return TLS(certificate, key, authority, study.sites, revoked)


def _good_now(certificate: Any, authority: Any, place: str | None) -> None:
    """Raise ValueError unless certificates are good now, for this place; else the other end would tell."""
    try:
        x509 = library()[0]
    except ImportError:
        return
    for path in (authority, certificate):
        try:
            found = x509.load_pem_x509_certificate(pem_in(path))
        except ValueError as error:
            raise bad(f"{path}", "be a certificate (PEM)", str(error)) from None
        check_period(f"{path}", found)
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        said = names.get_values_for_type(x509.UniformResourceIdentifier)
    except (ValueError, x509.ExtensionNotFound):
        said = []
    if place is not None and place not in said:
        raise bad(f"{certificate}", f"be that of {place}", ", ".join(said)[:200] or "one without a name of a study")
