"""Invariant, agnostic and average learning where domains shift: Arjovsky et al. (2019), Mohri et al. (2019)."""
