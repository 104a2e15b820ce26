"""Smooth losses: Newton's method, direct and truncated, and the quasi-Newton search that leads to where it begins."""
