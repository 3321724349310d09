"""Engines behind one narrow seam, see `base.py`."""
