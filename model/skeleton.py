"""A model without numbers: shapes and names on the meta device, which takes no memory.

Filling weights that are not there would load torch's compiler, which takes seconds, so it is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _Unfilled(TorchFunctionMode):
    """`torch.nn.init` leaves tensors as they are."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if getattr(func, "__module__", None) == "torch.nn.init":
            return named["tensor"] if "tensor" in named else args[0]
        return func(*args, **named)


@contextmanager
def skeleton() -> Iterator[None]:
    """Modules that are built inside have shapes, and no memory."""
    with torch.device("meta"), _Unfilled():
        yield
