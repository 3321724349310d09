"""The door: HTTP in, HTTP out. With `gateway.app` the only room that knows Litestar."""
