"""The server's certificate: loaded, and loaded again when its files change, without ending a connection.

A context of OpenSSL is never changed: each new connection gets the newest one, and those that are open keep theirs. So
a half-written pair of files can do no harm, and a certificate that is renewed needs no restart.
"""

from __future__ import annotations

import hashlib
import ssl
from pathlib import Path
from typing import Final

import structlog

from diflow.errors import InvalidError

# Suites of TLS 1.2 with forward secrecy and authenticated encryption; those of 1.3 all have both.
_SUITES: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"

log = structlog.get_logger("diflow.server")


class Certificates:
    """A certificate with its chain and its key, both PEM files. `context` serves new connections.

    Raises InvalidError if the files cannot be used at first. Later the pair that worked stays, until there is another.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        self._files = (certificate, key)
        self._seen = self._look_at()
        self._refused = ""
        self.loaded = 1
        try:
            self.context = self._load()
        except (OSError, ssl.SSLError) as error:
            raise InvalidError(_words(certificate, key, error), path="DIFLOW_SERVER_TLS_CERTIFICATE") from None

    def reload(self) -> bool:
        """Load the pair if the files have changed; gives whether it did. A pair that cannot be used is logged once."""
        seen = self._look_at()
        if seen in (self._seen, self._refused):
            return False
        try:
            context = self._load()
        except (OSError, ssl.SSLError) as error:
            self._refused = seen
            log.error("the new certificate cannot be used; the old one stays", why=_words(*self._files, error))
            return False
        if self._look_at() != seen:
            return False  # it was changed under our hands: what was loaded may be half of each
        self.context, self._seen, self._refused = context, seen, ""
        self.loaded += 1
        log.info("the certificate was loaded", certificate=str(self._files[0]))
        return True

    def _look_at(self) -> str:
        """What tells one pair of files from another: their contents, as times of files can be the same."""
        digest = hashlib.sha256()
        for path in self._files:
            try:
                digest.update(path.read_bytes())
            except OSError as error:
                digest.update(type(error).__name__.encode())
            digest.update(b"\0")
        return digest.hexdigest()

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(_SUITES)
        # Somebody who resumes a session would not be shown the new certificate, nor be asked for renegotiation's cost.
        context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        context.num_tickets = 0
        context.set_alpn_protocols(["http/1.1"])
        certificate, key = self._files
        context.load_cert_chain(certificate, key, password=_no_password)
        return context


def _no_password() -> str:
    """A key with a password would make OpenSSL ask at the terminal, and wait."""
    return ""


def _words(certificate: Path, key: Path, error: Exception) -> str:
    why = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    return f"{certificate} and {key} cannot be used: {why}"
