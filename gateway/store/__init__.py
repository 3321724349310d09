"""Tenants and keys in SQLite or PostgreSQL. The only room that knows SQLAlchemy."""
