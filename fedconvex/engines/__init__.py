"""Runs on engines of others; nothing here is imported by the rest of the package."""
