"""What both sides of the bus agree on: errors, settings, messages, the stream protocol, telemetry."""
