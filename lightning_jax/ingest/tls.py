"""TLS of gRPC and HTTP: what the server shows, what it asks of clients, and what a client trusts."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc


@dataclass(frozen=True, slots=True)
class ServerTls:
    """PEM files of a server. With ``client_ca`` a client without a certificate of that authority is refused (mTLS)."""

    certificate: Path  # the chain, the server's own certificate first
    key: Path
    client_ca: Path | None = None

    @classmethod
    def of(cls, certificate: str | None, key: str | None, client_ca: str | None) -> ServerTls | None:
        """From a configuration's paths; None where none is given. Raises ValueError for a certificate without key."""
        if certificate and key:
            return cls(Path(certificate), Path(key), Path(client_ca) if client_ca else None)
        if certificate or key or client_ca:
            raise ValueError(
                f"TLS takes a certificate and its key; got tls_certificate={certificate!r}, tls_key={key!r}, "
                f"tls_client_ca={client_ca!r}"
            )
        return None

    def credentials(self) -> grpc.ServerCredentials:
        """gRPC's credentials. Raises ValueError naming the file that cannot be read."""
        pair = (_read(self.key, "TLS key"), _read(self.certificate, "TLS certificate"))
        ca = _read(self.client_ca, "TLS client CA") if self.client_ca is not None else None
        return grpc.ssl_server_credentials([pair], root_certificates=ca, require_client_auth=ca is not None)

    def uvicorn(self) -> dict[str, Any]:
        """The same for an HTTP port, as arguments of uvicorn.Config."""
        verified: dict[str, Any] = {}
        if self.client_ca is not None:
            verified = {"ssl_ca_certs": str(self.client_ca), "ssl_cert_reqs": ssl.CERT_REQUIRED}
        return {"ssl_certfile": str(self.certificate), "ssl_keyfile": str(self.key), **verified}


@dataclass(frozen=True, slots=True)
class ClientTls:
    """PEM files of a client: whom it trusts (None: the system's authorities) and, for mTLS, who it is."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> ClientTls:
        """LJX_TLS_CA, LJX_TLS_CERTIFICATE and LJX_TLS_KEY, each the path of a PEM file."""
        names = ("LJX_TLS_CA", "LJX_TLS_CERTIFICATE", "LJX_TLS_KEY")
        return cls(*(Path(value) if (value := environment.get(name)) else None for name in names))

    def credentials(self) -> grpc.ChannelCredentials:
        """gRPC's credentials. Raises ValueError naming the file that cannot be read."""
        return grpc.ssl_channel_credentials(
            root_certificates=_read(self.ca, "TLS CA") if self.ca else None,
            private_key=_read(self.key, "TLS key") if self.key else None,
            certificate_chain=_read(self.certificate, "TLS certificate") if self.certificate else None,
        )

    def files(self) -> dict[str, Path]:
        """What is given, by the ends of the names that OpenTelemetry's exporters read (OTEL_EXPORTER_OTLP_...)."""
        named = {"CERTIFICATE": self.ca, "CLIENT_CERTIFICATE": self.certificate, "CLIENT_KEY": self.key}
        return {name: path for name, path in named.items() if path is not None}

    def context(self) -> ssl.SSLContext:
        """The same trust for HTTPS. Raises ValueError naming the file that cannot be read."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except OSError as error:
            raise ValueError(f"TLS of a client (ca={self.ca}, certificate={self.certificate}): {error}") from error
        return context

    def bundle(self) -> str:
        """PEM of the system's authorities and `ca`, for programs that know one file of them (SSL_CERT_FILE)."""
        system = ssl.get_default_verify_paths().cafile
        files = [Path(system)] if system else []
        return "\n".join(
            _read(file, "TLS CA").decode("ascii", "replace") for file in [*files, *([self.ca] if self.ca else [])]
        )


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{what} {str(path)!r} cannot be read: {error}") from error
