"""The gateway: one OpenAI-compatible door in front of many workers."""
