"""What models of related tasks declare."""

from fedconvex.families import Family, Option

RELATIONS = {
    "learned": "the relations between clients are learned",
    "mean": "models are drawn towards their mean",
    "none": "models are not tied",
}

FAMILY = Family(
    theorems=("theorems.mocha", "theorems.mocha_sigma", "theorems.joint_mocha"),
    experiments=("experiments.har", "experiments.har_people", "experiments.har_activities"),
    command="command",
    options=(
        Option(
            "relation",
            "of models per client: learned (default of mocha, jointmocha), mean (of the others), none",
            tuple(RELATIONS),
        ),
    ),
    homes={
        "solvers.balance": "balance",
        "problems.multitask": "problem",
        "problems.multitask_fixed": "fixed_relation",
        "problems.multitask_joint": "learned_relation",
        "problems.relations": "relations",
        "problems.covariance": "covariance",
        "problems.ties": "coupling",
        "problems.task_predictions": "task_predictions",
        "problems.one_vs_rest": "one_vs_rest",
        "methods.mocha": "methods.mocha",
        "methods.jointmocha": "methods.jointmocha",
        "methods.cocoa": "methods.cocoa",
        "methods.minibatchsdca": "methods.minibatchsdca",
        "methods.minibatchsgd": "methods.minibatchsgd",
        "methods.parts.dual_nodes": "dual_nodes",
        "theory.separability": "separability",
        "theorems.mocha": "theorems.mocha",
        "theorems.mocha_sigma": "theorems.mocha_sigma",
        "theorems.joint_mocha": "theorems.joint_mocha",
        "estimators.multitask": "estimator",
        "estimators.multitask_fit": "estimator.task_fits",
        "estimators.choosing": "estimator.choosing",
    },
)
