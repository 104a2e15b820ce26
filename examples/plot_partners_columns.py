"""
What a partner's columns are worth
==================================

A bank knows who paid back; a shop and an insurer know other things about the same customers. What would each partner's
columns add? Exact minima say it for these customers, held-out rows for new ones.
"""

import matplotlib.pyplot as plt
import numpy as np

from fedconvex import Logistic, VerticalFederation
from fedconvex.comparison import compare_owners

rng = np.random.default_rng(3)
n = 300
bank, shop, insurer = rng.normal(size=(n, 2)), rng.normal(size=(n, 2)), rng.normal(size=(n, 6))
score = bank @ [1.0, -0.5] + shop @ [0.9, 0.4]  # the insurer's columns are noise
paid = np.where(score + rng.logistic(size=n) > 0, 1.0, -1.0)
federation = VerticalFederation.from_blocks({"bank": bank, "shop": shop, "insurer": insurer}, paid)

# %%
found = compare_owners(federation, loss=Logistic(), l2=0.01, knows="bank")
print(found.table())
for sentence in found.sentences:
    print(sentence)

# %%
models = [m for m in found.models if m.name != "all owners"]
fig, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3), sharey=True, layout="constrained")
for place, m in enumerate(models):
    left.barh(-place, m.worth.high, color="#56B4E9")
    right.plot([m.change.low, m.change.high], [-place, -place], "-|", color="#0072B2")
    right.plot(0.5 * (m.change.low + m.change.high), -place, "o", color="#0072B2")
left.set(xlabel="rise of the least objective", yticks=[-i for i in range(len(models))])
left.set_yticklabels([m.name for m in models])
right.axvline(0.0, color="0.7")
right.set_xlabel("change of the held-out loss (95 % interval)")
plt.show()

# %%
# More columns never raise the minimum, noise among them: the insurer's six lower it by a hundredth. On new rows they do
# harm, and the shop's two columns help; leaving out both shows neither.
