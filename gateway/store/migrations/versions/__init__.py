"""One file per step; each goes both ways."""
