"""What `compare` sets side by side, by name."""

from __future__ import annotations

METHODS = {  # what each computes, in the order of tables; the first stands for no model at all
    "base rate": "every client's own share of each class, or mean, without features",
    "pooled": "one model, the optimum over all rows: what those up to newton aim at",
    "fedavg": "one model, by federated averaging",
    "fedprox": "one model, by federated averaging with a proximal term",
    "scaffold": "one model, by local steps with control variates",
    "fedsgd": "one model, by one gradient a round",
    "newton": "one model, by one Hessian a round",
    "afl": "one model, fair to the worst client or domain",
    "mocha": "a model per client, whose relations are learned",
    "mean-regularised": "a model per client, drawn towards their mean",
    "boosting": "boosted stumps, good on the worst of several sources",
    "alone": "every client by itself",
}
DEFAULT = tuple(m for m in METHODS if m not in ("newton", "boosting"))
TEST_SIZE, FOLDS, LOCAL_STEPS, ROUNDS, GAP, MIN_ROWS = 0.25, 5, 5, 500, 1e-3, 10  # defaults of `compare`
LOSSES = ("squared", "logistic", "softmax")  # with a curvature, and probabilities of classes
