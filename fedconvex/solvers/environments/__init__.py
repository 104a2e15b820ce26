"""Environments that do not agree: equilibria of games, and penalties on invariance, solved globally."""
