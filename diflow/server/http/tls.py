"""The server's certificate: loaded, and reloaded when its files change, without closing connections.

A loaded `ssl.SSLContext` is never modified: new connections get the newest context, open connections keep theirs. A
half-written pair of files does no harm, and a renewed certificate needs no restart.
"""

from __future__ import annotations

import hashlib
import ssl
from pathlib import Path
from typing import Final

import structlog

from diflow.common.errors import InvalidError

# Suites of TLS 1.2 with forward secrecy and authenticated encryption; all suites of TLS 1.3 have both.
_SUITES: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"

log = structlog.get_logger("diflow.server")


class Certificates:
    """A certificate with its chain, and its key (PEM files). `context` is for new connections.

    Raises InvalidError if the files cannot be used at start. Later, the last usable pair stays in use.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        self._files = (certificate, key)
        self._seen = self._digest()
        self._refused = ""
        self.loaded = 1
        try:
            self.context = self._load()
        except (OSError, ssl.SSLError) as error:
            raise InvalidError(_reason(certificate, key, error), path="DIFLOW_SERVER_TLS_CERTIFICATE") from None

    def reload(self) -> bool:
        """Load the pair if the files have changed; returns whether it was loaded. An unusable pair is logged once."""
        seen = self._digest()
        if seen in (self._seen, self._refused):
            return False
        try:
            context = self._load()
        except (OSError, ssl.SSLError) as error:
            self._refused = seen
            log.error("the new certificate cannot be used; the old one stays in use", why=_reason(*self._files, error))
            return False
        if self._digest() != seen:
            return False  # the files changed meanwhile: the loaded pair may not match
        self.context, self._seen, self._refused = context, seen, ""
        self.loaded += 1
        log.info("the certificate was loaded", certificate=str(self._files[0]))
        return True

    def _digest(self) -> str:
        """A digest of the files' contents: modification times may be equal."""
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
        # A resumed session would not see the new certificate; renegotiation lets a client cause work cheaply.
        context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        context.num_tickets = 0
        context.set_alpn_protocols(["http/1.1"])
        certificate, key = self._files
        context.load_cert_chain(certificate, key, password=_no_password)
        return context


def _no_password() -> str:
    """Without this, OpenSSL asks for the password of an encrypted key at the terminal, and blocks."""
    return ""


def _reason(certificate: Path, key: Path, error: Exception) -> str:
    why = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    return f"{certificate} and {key} cannot be used: {why}"
