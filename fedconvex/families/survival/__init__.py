"""Survival: Cox's proportional hazards, every client a stratum of its own (Cox 1972, 1975; Efron 1977)."""
