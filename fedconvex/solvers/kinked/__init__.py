"""Losses with kinks, by their dual: coordinate ascent on rows, and smooth losses of shrinking width."""
