"""The functions of int8 quantisation, against a clumsy one in float64, and the fused kernels against them."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="the pools need torch")

from stemcache import InvalidArgumentError  # noqa: E402
from stemcache.pools import quant  # noqa: E402
from stemcache.pools.quantiser import Pairs, load_batched, store_batched  # noqa: E402

torch.set_num_threads(1)
DTYPES = quant.QUANTISABLE
# Half a step of the last place, relative, and the least normal number.
ROUNDING = {torch.float16: (2**-11, 2**-14), torch.bfloat16: (2**-8, 2**-126), torch.float32: (2**-24, 2**-126)}
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
