"""One request, top to bottom, one file a step. `gateway.journey` calls them in order."""
