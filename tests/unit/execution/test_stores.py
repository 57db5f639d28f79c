"""Every store that comes with tilegrad passes the suite that it brings for others; an unknown one is named."""

from __future__ import annotations

import pytest
from torch import nn

import tilegrad
from tilegrad.errors import InputError
from tilegrad.execution.stores import make_store, stores
from tilegrad.testing import StoreSuite


class TestDevice(StoreSuite):
    store = "device"


class TestHost(StoreSuite):
    store = "host"


class TestDisk(StoreSuite):
    store = "disk"


def test_every_store_is_here() -> None:
    assert stores().keys() == {suite.store for suite in (TestDevice, TestHost, TestDisk)}


def test_a_store_that_is_not_there_is_named() -> None:
    with pytest.raises(InputError, match="there is no store 'tape'"):
        make_store("tape")
    with pytest.raises(InputError, match=r"halos cannot be kept on 'tape'\n.*device, disk, host"):
        tilegrad.tile(nn.Conv2d(1, 1, 3), tile=4, halos="tape")
