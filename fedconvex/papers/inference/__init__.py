"""Inference of `analyse`: what its intervals cover, and what simpler estimators miss."""
