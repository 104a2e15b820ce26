"""Public keys of secure sums, signed with the keys of certificates: a coordinator cannot put its own in their place.

The coordinator passes the sites' public keys on. One that passed on keys of its own could take the masks off. So each
site signs its public key with the key of its certificate, and every other one checks signature and certificate before
it masks anything. What is signed names study, question and site.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from fedconvex._archives import json_of
from fedconvex.remote import messages
from fedconvex.remote.messages import Refused
from fedconvex.study import certificates
from fedconvex.study.agreement import Study

CERTIFICATE, SIGNATURE = "study/certificate", "study/signature"  # of a site's key, in its answer when it joins
PROOFS, LACKS = "study/proofs", "study/lacks"  # those of all, in a request; that a site needs them first
ROOM = 8192  # bytes of one site's proof at most


class Seals:
    """What a site signs its key with, and checks those of others by.

    Parameters
    ----------
    study : Study
    site : str
        Its name.
    certificate, key, authority : path
        Of the site, and the certificate of the study's authority.
    """

    def __init__(self, study: Study, site: str, certificate: Any, key: Any, authority: Any) -> None:
        self.study, self.site = study, site
        self.x509, self.hashes, serialization, self.ec = certificates.library()
        own = self.x509.load_pem_x509_certificate(certificates.pem_in(certificate))
        self.own = own.public_bytes(serialization.Encoding.DER)
        self.key = serialization.load_pem_private_key(certificates.pem_in(key), None)
        self.authority = self.x509.load_pem_x509_certificate(certificates.pem_in(authority))

    def seal(self, question: str, public: bytes) -> dict[str, np.ndarray]:
        """Return certificate and signature of a public key as they travel."""
        signature = self.key.sign(_statement(self.study, question, self.site, public), *self._how(self.key))
        return {CERTIFICATE: np.frombuffer(self.own, np.uint8), SIGNATURE: np.frombuffer(signature, np.uint8)}

    def _how(self, key: Any) -> tuple[Any, ...]:
        """Return how signatures of a kind of keys are made: ECDSA, RSA, or Ed25519, which takes nothing."""
        from cryptography.hazmat.primitives.asymmetric import padding

        if hasattr(key, "curve"):
            return (self.ec.ECDSA(self.hashes.SHA256()),)
        return (padding.PKCS1v15(), self.hashes.SHA256()) if hasattr(key, "key_size") else ()

    def check(self, question: str, keys: np.ndarray, proofs: np.ndarray) -> None:
        """Raise `Refused` unless every public key (K, 32) is that of another site of the study, and one is this one's.

        Parameters
        ----------
        question : str
        keys : uint8 array (K, 32)
        proofs : uint8 array
            JSON: certificate and signature of each, in hexadecimal digits.
        """
        if keys.dtype != np.uint8 or keys.ndim != 2 or keys.shape[1] != 32:
            raise Refused("its keys are none")
        try:
            told = [(bytes.fromhex(a), bytes.fromhex(b)) for a, b in json_of(proofs, ROOM * (len(keys) + 1))]
            names = [self._proven(question, k.tobytes(), *proof) for k, proof in zip(keys, told, strict=True)]
        except Exception as error:  # whatever a damaged certificate makes its readers raise
            raise Refused(f"a key of secure sums is not proven to be a site's ({type(error).__name__})") from None
        if len(set(names)) < len(names) or self.site not in names:
            raise Refused(f"keys of secure sums are those of {', '.join(names)}, not of different sites with this one")

    def _proven(self, question: str, public: bytes, content: bytes, signature: bytes) -> str:
        """Return the name of the site whose key this is proven to be."""
        found = self.x509.load_der_x509_certificate(content)
        found.verify_directly_issued_by(self.authority)
        certificates.check_period("certificate", found)
        alternative = found.extensions.get_extension_for_class(self.x509.SubjectAlternativeName).value
        places = alternative.get_values_for_type(self.x509.UniformResourceIdentifier)
        name = places[0].removeprefix(certificates.SITE) if len(places) == 1 else ""
        shown = certificates.shown_fingerprint(found.fingerprint(self.hashes.SHA256()))
        if name not in self.study.sites or shown in self.study.revoked:
            raise ValueError("no site of the study")
        if shown != self.study.certificates.get(name, shown):
            raise ValueError("another certificate than the study says")
        key = found.public_key()
        key.verify(signature, _statement(self.study, question, name, public), *self._how(key))
        return name


def _statement(study: Study, question: str, site: str, public: bytes) -> bytes:
    return b"fedconvex: key of secure sums\n" + "\n".join((study.digest, question, site, public.hex())).encode()


def proofs_of(sealed: dict[int, tuple[bytes, bytes]], keys: np.ndarray) -> np.ndarray:
    """Return what a coordinator passes on beside public keys (K, 32): certificates and signatures, in their order."""
    return messages.text(json.dumps([[part.hex() for part in sealed.get(k, (b"", b""))] for k in range(len(keys))]))
