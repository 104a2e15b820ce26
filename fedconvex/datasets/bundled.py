"""Data sets that come with scikit-learn, and two downloads from OpenML: the only functions that use the network."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedconvex._check import among, flag
from fedconvex.datasets.table import Table, checked, coded, encoded

BUNDLED = ("breast_cancer", "diabetes", "digits", "iris", "wine")


class Bundled(NamedTuple):
    """A bundled data set: features (n, d), target (n,), names of the d features.

    Attributes
    ----------
    X : array (n, d)
        Features.
    y : array (n,)
        Target.
    names : tuple of d strings
        Of the features.

    Examples
    --------
    >>> from fedconvex.datasets import load_bundled
    >>> data = load_bundled("diabetes")
    >>> data.X.shape, data.y.shape, data.names[:2]
    ((442, 10), (442,), ('age', 'sex'))
    """

    X: np.ndarray
    y: np.ndarray
    names: tuple[str, ...]


def load_bundled(name: str, standardised: bool = True) -> Bundled:
    """Return a data set that comes with scikit-learn.

    Parameters
    ----------
    name : {"breast_cancer", "diabetes", "digits", "iris", "wine"}
        Which; diabetes is regression, breast_cancer is binary, the others have several classes.
    standardised : bool
        Whether to centre every feature and divide it by its standard deviation (constant features become 0).

    Returns
    -------
    Bundled
        X (n, d) float64; y (n,): -1/+1 for breast_cancer (+1 is benign), 0, ..., C-1 for several classes, the raw
        target for diabetes; names of the features.

    Raises
    ------
    ValueError
        If the name is another.

    Examples
    --------
    >>> X, y, names = load_bundled("breast_cancer")
    >>> X.shape, sorted(set(y.tolist())), names[0]
    ((569, 30), [-1.0, 1.0], 'mean radius')
    """
    among("load_bundled: name", name, BUNDLED)
    from sklearn import datasets

    data = getattr(datasets, f"load_{name}")()
    X, y = np.array(data.data, dtype=np.float64), np.array(data.target, dtype=np.float64)
    if flag("load_bundled: standardised", standardised):
        X -= X.mean(axis=0)
        sd = X.std(axis=0)
        X /= np.where(sd > 0.0, sd, 1.0)
    return Bundled(X, 2.0 * y - 1.0 if name == "breast_cancer" else y, tuple(str(f) for f in data.feature_names))


def fetch_mnist() -> Table:
    """Download MNIST (70,000 images of 28 x 28 pixels in [0, 1], ten classes) from OpenML, or read the cache.

    Returns
    -------
    Table
        X (70000, 784), y = 0, ..., 9; by custom the first 60,000 rows are for training.

    Raises
    ------
    OSError
        If neither the network nor the cache has it.

    References
    ----------
    LeCun, Bottou, Bengio and Haffner: Gradient-Based Learning Applied to Document Recognition, Proc. IEEE 86, 1998.
    OpenML data set mnist_784, version 1.

    Examples
    --------
    >>> table = fetch_mnist()  # doctest: +SKIP
    """
    from sklearn.datasets import fetch_openml

    data = fetch_openml("mnist_784", version=1, as_frame=False, parser="liac-arff")
    classes, y = coded(np.asarray(data.target).astype(str))
    X = np.asarray(data.data, dtype=np.float64) / 255.0
    return checked("fetch_mnist", Table(X, y, feature_names=tuple(data.feature_names), classes=classes))


def fetch_adult() -> Table:
    """Download Adult (48,842 people of the 1994 census; is the income above 50,000 dollars?), or read the cache.

    Unknown entries, which workclass, occupation and native-country have, are a category of their own, named "?". The
    domains are those of Mohri et al. (2019): people with a doctorate and all others.

    Returns
    -------
    Table
        X one-hot encoded (CSR, numeric columns not scaled), y = 0 or 1, classes "<=50K" and ">50K", domains "doctorate"
        and "other".

    Raises
    ------
    OSError
        If neither the network nor the cache has it.

    References
    ----------
    Kohavi: Scaling Up the Accuracy of Naive-Bayes Classifiers, KDD 1996. Mohri, Sivek and Suresh: Agnostic Federated
    Learning, ICML 2019, Section 5. OpenML data set adult, version 2.

    Examples
    --------
    >>> table = fetch_adult()  # doctest: +SKIP
    """
    from sklearn.datasets import fetch_openml

    data = fetch_openml("adult", version=2, as_frame=False, parser="liac-arff")
    columns: dict[str, np.ndarray] = {}
    for j, name in enumerate(data.feature_names):
        cells = np.asarray(data.data[:, j], dtype=np.float64)
        if name in data.categories:
            names = np.array([*data.categories[name], "?"])
            cells = names[np.where(np.isnan(cells), len(names) - 1, cells).astype(np.int64)]
        columns[name] = cells
    classes, y = coded(np.asarray(data.target).astype(str))
    X, feature_names = encoded(columns)
    domains = np.where(columns["education"] == "Doctorate", "doctorate", "other")
    return checked("fetch_adult", Table(X, y, domains=domains, feature_names=feature_names, classes=classes))
