"""Data to federate: synthetic federations with known truth, partitions of real data, and loaders."""

from typing import TYPE_CHECKING

from fedconvex import _lazy

if TYPE_CHECKING:
    from fedconvex.datasets.bundled import Bundled, fetch_adult, fetch_mnist, load_bundled
    from fedconvex.datasets.invariant import (
        chain_federation,
        chain_moments,
        coloured_federation,
        federation_of_moments,
    )
    from fedconvex.datasets.loaders import load, load_npz, load_svmlight
    from fedconvex.datasets.partition import (
        partition_dirichlet,
        partition_iid,
        partition_shards,
        partition_similarity,
    )
    from fedconvex.datasets.sharing import Sharing, share
    from fedconvex.datasets.synthetic import (
        FedProxSynthetic,
        LinearFederation,
        LogisticFederation,
        fedprox_synthetic,
        linear_federation,
        logistic_federation,
    )
    from fedconvex.datasets.table import Table
    from fedconvex.datasets.table_files import load_table

__all__ = [
    "Bundled",
    "FedProxSynthetic",
    "LinearFederation",
    "LogisticFederation",
    "Sharing",
    "Table",
    "chain_federation",
    "chain_moments",
    "coloured_federation",
    "federation_of_moments",
    "fedprox_synthetic",
    "fetch_adult",
    "fetch_mnist",
    "linear_federation",
    "load",
    "load_bundled",
    "load_npz",
    "load_svmlight",
    "load_table",
    "logistic_federation",
    "partition_dirichlet",
    "partition_iid",
    "partition_shards",
    "partition_similarity",
    "share",
]

__getattr__, __dir__ = _lazy.attach(__name__, __file__)
