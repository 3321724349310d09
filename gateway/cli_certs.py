"""`evenflow certs`: certificates for development, and how clients come to trust them."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from gateway.up.dev_certificates import DevCertificates

DIRECTORY = Path(".evenflow/tls")
"""Where `evenflow up --tls` keeps them, too."""

_TOLD = """\
  authority    {authority}   (what clients are to trust; its key stays here)
  certificate  {certificate}   (until {ends:%Y-%m-%d}; for {names})
  key          {key}

Serve with it:

  {serve}

Trust it: curl, the openai client (and all of Python that goes by OpenSSL's variable), the openai client by itself:

  curl --cacert {authority} https://localhost:8080/health

  SSL_CERT_FILE={authority} python program.py

  import ssl
  from openai import DefaultHttpxClient, OpenAI
  trust = ssl.create_default_context(cafile={literal!r})
  client = OpenAI(base_url="https://localhost:8080/v1", http_client=DefaultHttpxClient(verify=trust))
"""


@click.group()
def certs() -> None:
    """Certificates for development; for production take those of an authority that your clients know."""


@certs.command()
@click.option(
    "--dir", "directory", metavar="DIR", default=str(DIRECTORY), show_default=True, help="Where to keep everything."
)
@click.option("--name", "names", metavar="NAME", multiple=True, help="One more name or address that it is to be for.")
def dev(directory: str, names: tuple[str, ...]) -> None:
    """Make an authority, and a certificate for localhost, 127.0.0.1, ::1 and any NAMEs. Repeating it is safe.

    The authority stays as it is; the certificate is made anew when a name is missing or its end is near.
    """
    from gateway.up.dev_certificates import keep_dev_certificates  # noqa: PLC0415

    kept = keep_dev_certificates(Path(directory), names)
    click.echo("Made:" if kept.made else "All there, and good:")
    click.echo(_told(kept, standard=Path(directory) == DIRECTORY), nl=False)


def _told(kept: "DevCertificates", *, standard: bool) -> str:
    certificate, key = shlex.quote(str(kept.certificate)), shlex.quote(str(kept.key))
    return _TOLD.format(
        authority=shlex.quote(str(kept.authority)),
        certificate=certificate,
        key=key,
        names=", ".join(kept.names),
        ends=kept.ends,
        serve="evenflow up --tls"
        if standard
        else f"EVENFLOW_TLS__CERTIFICATE={certificate} EVENFLOW_TLS__KEY={key} evenflow up",
        literal=str(kept.authority),
    )
