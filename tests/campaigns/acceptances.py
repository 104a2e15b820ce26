"""Odd values that are accepted, by kind, and why each may be: what no kind covers fails the campaign `fuzz-api`."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import NamedTuple

__all__ = ["KINDS", "Kind", "kind_of"]


class Kind(NamedTuple):
    """A kind of acceptance; patterns are separated by bars."""

    name: str
    labels: str  # what the values are called in `odd_values`
    where: str  # entry.parameter
    why: str

    def covers(self, label: str, place: str) -> bool:
        """Whether a value of this label is of this kind at a place."""
        pairs = ((self.labels, label), (self.where, place))
        return all(any(fnmatchcase(x, p.strip()) for p in patterns.split("|")) for patterns, x in pairs)


KINDS = (
    Kind(
        "another value as good",
        "next | 1 | 2 | 0 | 1.5 | 10^9 | 1e-9 | half | reversed | shorter | doubled | all zero | constant | negated |"
        "negative | -1 | tiny | huge | 1e308* | 5e-324 | 2^63 | -2^63 | 10^30 | upper case | decimal | fraction",
        "*",
        "in the range of the parameter, which gets the answer for it; what squares would overflow is refused",
    ),
    Kind("None", "None", "*", "the default of what may be left out"),
    Kind(
        "another class of number or array",
        "welcome * | float32* | int16 | integers | unsigned | booleans | 0-d* | range | as a float | as floats",
        "*",
        "the same numbers; counts must be ints, and numbers of rows that theorems divide by may be floats",
    ),
    Kind("the other truth value", "the other | True | NumPy bool", "*", "flags; in arrays booleans are 0 and 1"),
    Kind("one number in a list", "one in a list", "*", "one per trajectory, client or row; a run checks how many"),
    Kind(
        "another object of the class",
        "* problem | problem | tasks | ensemble | stumps | constants | simplex | method | result | federation",
        "*",
        "the class is asked for, and these are of it or of one as good",
    ),
    Kind(
        "NaN and infinity in models",
        "NaN within | inf within | -inf within",
        "*Problem*.w | *Problem*.W | *Problem*.V | *Problem*.conjugates | problems.MovingTarget.*.w |"
        "problems.Covariance.*.W | report.*.w | theorems.dynamic_noise.gradient_noise.w",
        "diverged trajectories are measured as any other: the answer is NaN or infinite, never a number",
    ),
    Kind(
        "unknown values of domains",
        "NaN within | inf within | -inf within | [[]NaN] | NaN | inf | -inf",
        "methods.*.domain_weights | methods.*.v | methods.*.values | methods.*.g | report.wilson_interval.successes",
        "membership is denied, the largest of unknown values is unknown; AgnosticFedAvg asks when it knows the domains",
    ),
    Kind("another matrix", "transposed | flat", "*", "of a shape that is taken; some are symmetric"),
    Kind(
        "duals that diverged",
        "NaN | inf | -inf",
        "problems.MultiTaskProblem.certificate.penalty",
        "the certificate is then NaN or infinite, never a number",
    ),
    Kind(
        "not read",
        "*",
        "theorems.fedavg_strongly_convex.fedavg_step_by_step.participants |"
        "theorems.contraction.fedavg_contraction.participants |"
        "methods.resolved.problem | models.LinearModel.*.clients | problems.EnsembleModel.*.clients |"
        "theory.complexity.rademacher.s* | Federation.columns | problems.SurvivalFederation.columns |"
        "problems.Stump.predict.X",
        "where everybody takes part, nobody is drawn; "
        "a method with a step size asks no problem, a pooled model has one answer for all clients, few rows have all "
        "their signs tried; columns are kept for LinearModel, which checks them; a stump reads one feature",
    ),
    Kind(
        "several at once",
        "deeper | matrix | column | nested",
        "*",
        "models (R, ...), mixtures (..., p), rows (n, d): documented shapes",
    ),
    Kind(
        "nothing",
        "[[]] | () | {} | set | loss | none | empty array | empty text",
        "*",
        "no rows, no rounds, no names: the answer is that of none (`Squared()` is an empty tuple)",
    ),
    Kind("sparse rows", "sparse", "*.X", "CSR is taken wherever dense rows are"),
    Kind(
        "infinity where it means none",
        "inf | -inf",
        "problems.Covariance.sigma2 | problems.Stump.threshold | simplex.*.cap | remote.Limits.share",
        "no cap, no limit, no ridge, a stump that never splits: documented",
    ),
    Kind(
        "names of any kind",
        "strings within | objects within | dates | complex values | too large | text* | [[]'a'] | pairs",
        "Federation.from_arrays.* | datasets.partition_*.y | problems.QEnsemble.errors.domain | Federation.ids |"
        "problems.SurvivalFederation.ids |"
        "problems.Clustered.clusters | datasets.load_table.* | problems.EnsembleModel.feature_names",
        "clients, domains, classes and clusters are called by numbers, texts or dates",
    ),
    Kind("complex eigenvalues", "complex*", "theorems.virtual.virtual_growth.kappa", "of a matrix without symmetry"),
    Kind("large counts", "too large", "*.sizes | *.sources | secure.decode.total", "whole numbers in range"),
    Kind(
        "files and texts",
        "word | blank | unknown | long | null",
        "*.path | *.folder | report.format_table.indent",
        "names that the file system takes, tried before the work; any text indents",
    ),
    Kind(
        "functions",
        "function | type | generator",
        "problems.QEnsemble.q | methods.*.sums | verify.own_theorem.* | verify.tightest.progress |"
        "verify.tightness_map.progress | bench.bench.progress | remote.Site.make",
        "called when they are used, and what they return is checked then",
    ),
    Kind("paths", "text", "remote.Exchange.address", "of a Unix socket"),
    Kind("bytes", "bytes", "secure.Party.*.context | remote.Plain.secret", "what it is made for"),
    Kind(
        "the name of a set",
        "word | blank | unknown | long | null",
        "bench.Case.data",
        "the path of a file, which is looked for when the problem is made",
    ),
    Kind(
        "records",
        "*",
        "penalties.* | SmoothedHinge.gamma | NegativeBinomial.theta |"
        "theory.moments.Moved.* | datasets.Table.* | fields.* | estimators.*",
        "NamedTuples and scikit-learn's constructors keep what they are given; Problem, Federation and `fit` check it",
    ),
    Kind(
        "texts for people",
        "*",
        "*.who | *.words | *.title | *.name | *.names | *.about | theory.known_constants.* | theory.require.theorem",
        "shown, not used",
    ),
    Kind(
        "names that no column has",
        "[[]'a'] | set",
        "tables.read_frame.text",
        "columns that are texts if the table has them; `read_table` refuses names that no column has",
    ),
    Kind(
        "arguments of one point",
        "*",
        "methods.Point.* | methods.KLBall.start.p",
        "a set of one point has one answer to everything; methods check its size before they ask",
    ),
)


def kind_of(name: str, parameter: str, label: str) -> str:
    """Return the first kind that covers an accepted value, or "unjustified"."""
    place = f"{name}.{parameter}"
    return next((kind.name for kind in KINDS if kind.covers(label, place)), "unjustified")
