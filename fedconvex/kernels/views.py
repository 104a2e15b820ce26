"""Parts of arrays in kernels, without the checks that slices make: which bring their ends into range."""

from __future__ import annotations

from typing import Any

from fedconvex.kernels.cache import DISABLED, types

# mypy: disable-error-code="no-untyped-def"


def stretch(a, first, size):
    """a[first : first + size] of a contiguous array (n,): nothing is checked, 0 <= first and first + size <= n."""
    return a[first : first + size]


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

    made: Any = intrinsic
    stretch = made(_typed)
