"""Statistical inference from sums over sites: standard errors, tests, intervals and heterogeneity."""
