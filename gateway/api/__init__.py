"""OpenAI request bodies in, one neutral `Ask` out.

    bytes --parse--> body Struct --refused, fields, chat / text--> Ask

`parse` guards the bytes and turns msgspec's complaints into OpenAI's; `bodies` says what is read; `refused` lists what
cannot be honoured; `fields` checks ranges; `chat` and `text` know the two endpoints. Every fault is an
`InvalidRequestError` that names the field. No I/O, no clock. Field by field prose: docs/api.md.
"""

from gateway.api.ask import Ask, lacks, needs
from gateway.api.chat import decode_chat
from gateway.api.text import decode_completion

__all__ = ["Ask", "decode_chat", "decode_completion", "lacks", "needs"]
