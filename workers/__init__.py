"""Workers: one process per engine, a bus at one end and a model at the other."""
