"""A model without numbers has all names and shapes, and loads no compiler."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import torch
from torch import nn

from unabridged.model.checkpoint import expected_tensors
from unabridged.model.k3 import K3
from unabridged.model.skeleton import skeleton


def test_a_skeleton_has_the_model_s_tensors(make_config: Any) -> None:
    config = make_config(quantized=True)
    with skeleton():
        empty = K3(config)
    assert {tensor.device.type for tensor in empty.state_dict().values()} == {"meta"}
    assert expected_tensors(empty) == expected_tensors(K3(config))


def test_only_what_is_built_inside_stays_unfilled() -> None:
    with skeleton():
        layer = nn.Linear(3, 3)
        assert layer.weight is nn.init.ones_(layer.weight)
        assert layer.weight is nn.init.ones_(tensor=layer.weight)
    assert nn.init.ones_(torch.empty(3)).tolist() == [1, 1, 1]


def test_loading_imports_no_compiler() -> None:
    code = (
        "import sys; from unabridged.model.checkpoint import load_model;"
        "from unabridged.model.folder import NANO; load_model(NANO);"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
