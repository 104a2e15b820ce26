"""
A scikit-learn pipeline with clients
====================================

The clients of the rows are metadata: pipelines, searches and cross-validation pass them on. Folds that leave whole
clients out say how good a model will be for a client that has not joined yet.
"""

import matplotlib.pyplot as plt
import numpy as np
import sklearn
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import GridSearchCV, GroupKFold, LeaveOneGroupOut, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedconvex.datasets import partition_dirichlet
from fedconvex.estimators import FederatedLogisticRegression

sklearn.set_config(enable_metadata_routing=True)
X, y = load_breast_cancer(return_X_y=True)
X, y = X[::3, :10], y[::3]  # a part of it, to be quick
clinic = partition_dirichlet(y, n_clients=6, alpha=1.0, seed=3)  # clinics with more or fewer malign cases
pipe = make_pipeline(StandardScaler(), FederatedLogisticRegression())

# %%
l2 = np.geomspace(1e-4, 1.0, 5)
search = GridSearchCV(pipe, {"federatedlogisticregression__l2": l2}, cv=GroupKFold(3), scoring="neg_log_loss")
search.fit(X, y, clients=clinic, groups=clinic)
best = search.best_estimator_
print(search.best_params_, best[-1].n_clients_, "clients, certified gap", best[-1].gap_)

# %%
both = {"clients": clinic, "groups": clinic}
new = cross_val_predict(best, X, y, params=both, cv=LeaveOneGroupOut())
right = [np.mean(new[clinic == k] == y[clinic == k]) for k in range(6)]

# %%
fig, (left, other) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
mean, spread = -search.cv_results_["mean_test_score"], search.cv_results_["std_test_score"]
left.errorbar(l2, mean, spread, marker="o", capsize=3)
left.set(xlabel="l2", ylabel="log loss on clinics left out", xscale="log")
other.bar([f"{k}\n{np.sum(clinic == k)} rows" for k in range(6)], right, color="#009E73")
other.set(xlabel="clinic left out", ylabel="accuracy on its rows", ylim=(0.5, 1.0))
plt.show()

# %%
# Left: too little and too much regularisation both cost a clinic that has not joined. Right: how well each clinic
# would be served by the model of the other five.
