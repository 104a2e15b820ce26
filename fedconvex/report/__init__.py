"""What a run looks like on paper: tables and plots.

Every plot takes what is drawn, a mapping of names to results or scores, then the path of a file; the rest by name.
"""

from typing import TYPE_CHECKING

from fedconvex import _lazy

if TYPE_CHECKING:
    from fedconvex.report.bayesian import PracticalDifference, bayesian_t_test
    from fedconvex.report.client_grouping import Clustering, DomainTerms, cluster, domain_terms, domain_trade_off
    from fedconvex.report.fairness import (
        DomainDifferences,
        DomainScores,
        domain_differences,
        domain_scores,
        wilson_interval,
    )
    from fedconvex.report.fairness_figures import domain_weights_plot, fairness_plot, fairness_table
    from fedconvex.report.flatness import Sharpness, largest_curvature, sharpness
    from fedconvex.report.heterogeneity import (
        Dissimilarity,
        Drift,
        LossSpread,
        client_drift,
        gradient_dissimilarity,
        heterogeneity_trace,
        loss_spread,
        weight_divergence,
    )
    from fedconvex.report.heterogeneity_drawing import heterogeneity_plot, heterogeneity_table
    from fedconvex.report.language import TextScores, text_scores
    from fedconvex.report.plots import best_step_plot, convergence_plot
    from fedconvex.report.tables import comparison, format_table, outlook, per_client_metrics, write_trace

__all__ = [
    "Clustering",
    "Dissimilarity",
    "DomainDifferences",
    "DomainScores",
    "DomainTerms",
    "Drift",
    "LossSpread",
    "PracticalDifference",
    "Sharpness",
    "TextScores",
    "bayesian_t_test",
    "best_step_plot",
    "client_drift",
    "cluster",
    "comparison",
    "convergence_plot",
    "domain_differences",
    "domain_scores",
    "domain_terms",
    "domain_trade_off",
    "domain_weights_plot",
    "fairness_plot",
    "fairness_table",
    "format_table",
    "gradient_dissimilarity",
    "heterogeneity_plot",
    "heterogeneity_table",
    "heterogeneity_trace",
    "largest_curvature",
    "loss_spread",
    "outlook",
    "per_client_metrics",
    "sharpness",
    "text_scores",
    "weight_divergence",
    "wilson_interval",
    "write_trace",
]

__getattr__, __dir__ = _lazy.attach(__name__, __file__)
