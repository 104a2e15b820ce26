"""Parts of arrays in kernels, without the checks that slices make: which bring their ends into range."""

from __future__ import annotations

from typing import Any

from fedconvex.kernels.cache import DISABLED, types

# mypy: disable-error-code="no-untyped-def"


def stretch(a, first, size):
    """a[first : first + size] of a contiguous array (n,): nothing is checked, 0 <= first and first + size <= n."""
    return a[first : first + size]


def line(a, i):
    """a[i] of a contiguous array (n, m): nothing is checked, 0 <= i < n."""
    return a[i]


if not DISABLED:
    from numba.core.imputils import impl_ret_borrowed
    from numba.extending import intrinsic
    from numba.np.arrayobj import populate_array

    def _typed(typing, a, first, size):
        """Return the type of a stretch, and what writes the code for it."""

        def write(context, b, signature, values):
            whole = context.make_array(signature.args[0])(context, b, values[0])
            at, number = (
                context.cast(b, v, t, types.intp) for v, t in zip(values[1:], signature.args[1:], strict=True)
            )
            made = context.make_array(signature.return_type)(context, b)
            populate_array(
                made, b.gep(whole.data, [at]), (number,), (whole.itemsize,), whole.itemsize, whole.meminfo, whole.parent
            )
            return impl_ret_borrowed(context, b, signature.return_type, made._getvalue())

        return (a(a, first, size), write) if isinstance(a, types.Array) and a.ndim == 1 and a.is_c_contig else None

    def _line(typing, a, i):
        """Return the type of a line, and what writes the code for it."""

        def write(context, b, signature, values):
            whole = context.make_array(signature.args[0])(context, b, values[0])
            made, m = context.make_array(signature.return_type)(context, b), b.extract_value(whole.shape, 1)
            start = b.gep(whole.data, [b.mul(context.cast(b, values[1], signature.args[1], types.intp), m)])
            populate_array(made, start, (m,), (whole.itemsize,), whole.itemsize, whole.meminfo, whole.parent)
            return impl_ret_borrowed(context, b, signature.return_type, made._getvalue())

        fits = isinstance(a, types.Array) and a.ndim == 2 and a.is_c_contig
        return (types.Array(a.dtype, 1, "C")(a, i), write) if fits else None

    made: Any = intrinsic
    stretch, line = made(_typed), made(_line)
