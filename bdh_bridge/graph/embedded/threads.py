"""How many threads matrix products get; imports nothing heavy, since it must come first."""

from __future__ import annotations

import os

#: NumPy's matrix libraries read these when they are loaded.
VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def use_one_thread() -> None:
    """One thread for matrix products in this process; call it before NumPy is imported.

    The products are small, and their threads wait for each other by spinning: beside other busy
    processes two threads took five times the CPU time of one (89 ms a note instead of 16).
    """
    for name in VARIABLES:
        os.environ.setdefault(name, "1")
