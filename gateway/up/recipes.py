"""The lines that `evenflow up` prints for whoever wants the next answer. They work as they stand, under TLS too."""

from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509

from shared.errors import StartError

_RECIPES = """
Ask it yourself, from a shell:

  curl -N {curl}{url}/v1/chat/completions -H "Authorization: Bearer $(cat {key})" \\
    -H "Content-Type: application/json" \\
    -d '{{"model": "{model}", "temperature": 0, "stream": true,
         "messages": [{{"role": "user", "content": "Hello!"}}]}}'

or from Python (pip install openai):

{imports}  from openai import OpenAI
  client = OpenAI(base_url="{url}/v1", api_key=open("{key}").read().strip(){client})
  answer = client.chat.completions.create(model="{model}", temperature=0,
                                          messages=[{{"role": "user", "content": "Hello!"}}])
  print(answer.choices[0].message.content)
"""
_TRUST = """  import httpx, ssl
  trust = ssl.create_default_context(cafile="{certificate}")
  trust.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
"""


def recipes(url: str, key: Path, model: str, certificate: str = "") -> str:
    """Return how to ask the door at `url`, by curl and by the official client.

    With a `certificate` (PEM file) that is not for the address in `url`, the lines go by the first name that it is for.

    Raises:
        StartError: the certificate cannot be read.
    """
    if not certificate:
        return _RECIPES.format(url=url, model=model, key=key, curl="", imports="", client="")
    parts = urlsplit(url)
    host, names = parts.hostname or "", names_of(Path(certificate))
    curl, note = f"--cacert {certificate} ", ""
    if names and host not in names:
        name, host = names[0].replace("*", "any"), f"[{host}]" if ":" in host else host
        url = f"https://{name}:{parts.port}"
        curl += f"--resolve {name}:{parts.port}:{host} "
        note = f"(The certificate is for {', '.join(names)}: Python needs {name} to lead to {host}.)\n"
    text = _RECIPES.format(
        url=url,
        model=model,
        key=key,
        curl=f"{curl}\\\n    ",
        imports=_TRUST.format(certificate=certificate),
        client=",\n                  http_client=httpx.Client(verify=trust)",
    )
    return text + note


def names_of(certificate: Path) -> list[str]:
    """Return the names and addresses that a certificate is for, names first.

    Raises:
        StartError: it cannot be read.
    """
    try:
        found = x509.load_pem_x509_certificate(certificate.read_bytes()).extensions
        names = found.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    except (OSError, ValueError) as error:
        raise StartError(f"{certificate} cannot be read as a certificate") from error
    addresses = map(str, names.get_values_for_type(x509.IPAddress))
    return [*names.get_values_for_type(x509.DNSName), *addresses]
