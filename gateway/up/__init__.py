"""`evenflow up`: NATS, a worker and the gateway as one supervised family of processes."""
