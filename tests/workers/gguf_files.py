"""Small GGUF files made on the spot."""

import struct
from pathlib import Path


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def write_gguf(path: Path, tokens: list[str], types: list[int], *, model: str = "gpt2", version: int = 3) -> None:
    pairs = [
        _string("general.architecture") + struct.pack("<I", 8) + _string("llama"),
        _string("tokenizer.ggml.model") + struct.pack("<I", 8) + _string(model),
        _string("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, len(tokens)) + b"".join(map(_string, tokens)),
        _string("tokenizer.ggml.token_type")
        + struct.pack("<IIQ", 9, 5, len(types))
        + struct.pack(f"<{len(types)}i", *types),
        _string("tokenizer.ggml.eos_token_id") + struct.pack("<II", 4, 1),
        _string("tokenizer.ggml.add_bos_token") + struct.pack("<IB", 7, 1),
    ]
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", version, 0, len(pairs)) + b"".join(pairs))
