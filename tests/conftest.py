"""Shared by all tests: two cores, no surprises."""

from __future__ import annotations

import gc
import importlib
import os

import pytest
import torch
from hypothesis import settings

import thorough

torch.set_num_threads(1)
os.environ["TILEGRAD_CACHE"] = "off"  # nobody's measurements and plans are read or written
os.environ.pop("COLUMNS", None)  # of whoever runs the tests: tables would be as wide
settings.register_profile("tilegrad", deadline=None, print_blob=True)
settings.load_profile("tilegrad")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run thousands of random networks")


def pytest_configure(config: pytest.Config) -> None:
    thorough.slow = bool(config.getoption("--slow"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "slow" in item.keywords and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="on demand: --slow"))
        if "gpu" in item.keywords and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish() -> None:
    """Modules and tests stay: the collector need not walk half a million objects of theirs whenever it looks for
    what a test has left behind."""
    importlib.import_module("torch._dynamo")  # the first capture would
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)  # and need not look after every few hundred objects of a capture
