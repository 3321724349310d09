"""The operators' API: who may use it, and what it does. Like `gateway.http` it knows Litestar; no tenant comes here."""
