"""Pages for the people who run the service, served from the operators' door: no build step, nothing from elsewhere."""
