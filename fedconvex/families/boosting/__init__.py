"""Boosting from several sources: ensembles good on the worst of them (Cortes, Mohri, Storcheus, Suresh 2021)."""
