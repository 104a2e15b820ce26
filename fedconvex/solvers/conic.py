"""One call of a conic solver, which may give up: cvxpy's own errors, overflow, and panics of compiled code."""

from __future__ import annotations

import warnings
from typing import Any


def attempt(programme: Any, **options: Any) -> bool:
    """Solve a programme of cvxpy as far as the solver comes; False where it gives up.

    Nobody believes the solver: whoever calls checks the values it leaves. So what cvxpy says about inaccurate
    solutions is not repeated. Clarabel is written in Rust, where an eigenvalue that cannot be found is a panic; it
    reaches Python as an exception that is not an `Exception`, and that no module offers by name. It is given one
    thread: its own wait for each other at every step, on a busy machine for most of the time.

    Examples
    --------
    >>> import cvxpy as cp
    >>> from fedconvex.solvers.conic import attempt
    >>> x = cp.Variable()
    >>> attempt(cp.Problem(cp.Minimize(x), [x >= 2.0]), solver=cp.CLARABEL), round(float(x.value), 6)
    (True, 2.0)
    """
    import cvxpy as cp

    if options.get("solver") == "CLARABEL":
        options = {"max_threads": 1, **options}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            programme.solve(**options)
    except (cp.SolverError, ValueError, ArithmeticError):  # ValueError: coefficients that overflow
        return False
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return False
    return True
