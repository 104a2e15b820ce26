"""Compiled loops: rows, losses over rows, mini-batches, the loop over jobs, and the cache of what was compiled."""
