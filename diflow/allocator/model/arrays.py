"""Names for the numpy arrays that snapshots, plans and policies are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


def frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same array, made read-only."""
    array.flags.writeable = False
    return array


def ints(values: Any, shape: tuple[int, ...]) -> IntArray:
    """`values` as an integer array of `shape`, also if empty."""
    return np.asarray(values, dtype=np.int64).reshape(shape)
