"""The NATS server's configuration, as text: pure. Paths in it are relative to the server's working directory.

`server.conf` says where to listen and whom to let through the TLS handshake; it includes `identities.conf`, which says
who may do what, so that one identity more rewrites only the latter.
"""

import json
from collections.abc import Iterable

import msgspec

from shared.permissions import Permissions, permissions
from shared.subjects import Kind

SERVER = "server.conf"
IDENTITIES = "identities.conf"
PID = "nats.pid"
MAX_PAYLOAD_BYTES = 8 * 1024 * 1024
MEMORY_STORE_BYTES = 64 * 1024 * 1024
FILE_STORE_BYTES = 1024 * 1024 * 1024


class Known(msgspec.Struct, frozen=True, order=True):
    """An identity as the server knows it: `public` is the public half of its NKey."""

    kind: Kind
    name: str
    public: str


def server_conf(listen: str, *, note: str) -> str:
    """Return `server.conf`: TLS before the first byte of NATS, client certificates demanded, JetStream."""
    return f"""\
# {note}
server_name: evenflow
listen: {json.dumps(listen)}
pid_file: "{PID}"
max_payload: {MAX_PAYLOAD_BYTES}
max_pending: {8 * MAX_PAYLOAD_BYTES}
write_deadline: "10s"
ping_interval: "10s"
tls {{
  cert_file: "server/certificate.pem"
  key_file: "server/key.pem"
  ca_file: "authority/ca.pem"
  verify: true
  handshake_first: true
  min_version: "1.3"
  timeout: 5
}}
jetstream {{
  store_dir: "jetstream"
  max_memory_store: {MEMORY_STORE_BYTES}
  max_file_store: {FILE_STORE_BYTES}
}}
include "{IDENTITIES}"
"""


def identities_conf(known: Iterable[Known]) -> str:
    """Return `identities.conf`: no `no_auth_user`, no default permissions; nobody else gets in."""
    users = "\n".join(
        user(one.public, permissions(one.kind, one.name), f"{one.kind} {one.name}") for one in sorted(known)
    )
    return f"""\
# Written by Evenflow from the table in shared/subjects.py; changes made here are lost.
authorization {{
  timeout: 5
  users: [
{users}
  ]
}}
"""


def user(public: str, allowed: Permissions, note: str) -> str:
    """Return one entry of the list of users."""
    return f"""\
    # {note}
    {{
      nkey: {public}
      permissions: {{
        publish: {{ allow: {json.dumps(allowed.publish)} }}
        subscribe: {{ allow: {json.dumps(allowed.subscribe)} }}
      }}
    }}"""
