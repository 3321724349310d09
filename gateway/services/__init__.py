"""The asynchronous owners: each holds one piece of shared state and the tasks that keep it true."""
