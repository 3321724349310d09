"""Pure decisions of a worker: admission, life cycle, draft length."""
