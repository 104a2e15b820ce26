"""What boosting from several sources declares."""

from fedconvex.families import Family, Option

FAMILY = Family(
    theorems=("theorems.boosting", "theorems.adaboost", "theorems.boosting_margins", "theorems.fedmultiboost"),
    experiments=("experiments", "experiments.inverted_digits"),
    command="command",
    options=(
        Option(
            "q",
            "which source a row is like, for ensembles: maxent (fitted, the default) or uniform",
            ("maxent", "uniform"),
        ),
        Option("cuts", "thresholds per feature of an ensemble's stumps; default all, 16 a source with fedmultiboost"),
    ),
    homes={
        "solvers.worst_domain": "worst_domain",
        "problems.boosting": "problem",
        "problems.stump_problem": "stump_problem",
        "problems.stumps": "stumps",
        "problems.predictors": "predictors",
        "problems.dictionaries": "dictionaries",
        "problems.ensemble": "ensemble",
        "problems.ensemble_model": "ensemble_model",
        "problems.source_probabilities": "source_probabilities",
        "methods.multiboost": "methods.multiboost",
        "methods.fedmultiboost": "methods.fedmultiboost",
        "theory.boosting": "edges",
        "theorems.adaboost": "theorems.adaboost",
        "theorems.boosting": "theorems.boosting",
        "theorems.boosting_margins": "theorems.boosting_margins",
        "theorems.fedmultiboost": "theorems.fedmultiboost",
        "estimators.boosting": "estimator",
    },
)
