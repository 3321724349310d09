"""Steps from one shape of the tables to the next, run by `gateway.store.migrate`."""
