"""The lines that `evenflow up` prints for whoever wants the next answer. They work as they stand, under TLS too."""

import shlex
from pathlib import Path
from urllib.parse import urlsplit

from gateway.up.authority import names_of

_RECIPES = """
Ask it yourself, from a shell:

  curl -N {curl}{url}/v1/chat/completions -H "Authorization: Bearer $(cat {key})" \\
    -H "Content-Type: application/json" \\
    -d '{{"model": "{model}", "temperature": 0, "stream": true,
         "messages": [{{"role": "user", "content": "Hello!"}}]}}'

or from Python (pip install openai):

{trust}  client = OpenAI(base_url="{url}/v1", api_key=open("{key}").read().strip(){client})
  answer = client.chat.completions.create(model="{model}", temperature=0,
                                          messages=[{{"role": "user", "content": "Hello!"}}])
  print(answer.choices[0].message.content)
"""
_PLAIN = "  from openai import OpenAI\n"
_TRUST = """  import ssl
  from openai import DefaultHttpxClient, OpenAI
  trust = ssl.create_default_context(cafile="{trusted}")
"""
_PINNED = "  trust.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN\n"


def recipes(url: str, key: Path, model: str, *, certificate: str = "", authority: str = "") -> str:
    """Return how to ask the door at `url`, by curl and by the official client.

    Over TLS (`certificate`, a PEM file) the lines trust that `authority`, or else the very certificate. Where it is not
    for the address in `url` they go by the first name that it is for.

    Raises:
        StartError: the certificate cannot be read.
    """
    if not certificate:
        return _RECIPES.format(url=url, model=model, key=key, curl="", trust=_PLAIN, client="")
    parts = urlsplit(url)
    host, names = parts.hostname or "", names_of(Path(certificate))
    trusted = authority or certificate
    curl, note = f"--cacert {shlex.quote(trusted)} ", ""
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
        trust=_TRUST.format(trusted=trusted) + ("" if authority else _PINNED),
        client=",\n                  http_client=DefaultHttpxClient(verify=trust)",
    )
    return text + note
