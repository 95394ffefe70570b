"""Certificates for tests: an authority of their own, and what it signs, as files."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import trustme

__all__ = ["Authority", "Certificate"]


class Certificate(NamedTuple):
    certificate: Path
    key: Path


class Authority:
    """Signs certificates. `path` is its own, by which others know it."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._authority = trustme.CA()
        self.path = folder / f"{name}.pem"
        self._authority.cert_pem.write_to_path(str(self.path))

    def issue(self, *hosts: str) -> Certificate:
        """A certificate for these hosts, and its key."""
        issued = self._authority.issue_cert(*hosts)
        base = self._folder / f"{self._name}-{hosts[0]}"
        found = Certificate(base.with_suffix(".crt"), base.with_suffix(".key"))
        issued.cert_chain_pems[0].write_to_path(str(found.certificate))
        issued.private_key_pem.write_to_path(str(found.key))
        return found
