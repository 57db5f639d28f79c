"""A module that stands for another: the same parameters, buffers and children under unchanged names."""

from __future__ import annotations

from typing import Any

from torch import nn


class Wrapped(nn.Module):
    """Base of modules that run another one's computation in their own way. `_state` is out of torch's registries."""

    def __init__(self, module: nn.Module, state: Any):
        super().__init__()
        # The very same dictionaries: one set of parameters, buffers and children.
        for part in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            self.__dict__[part] = module.__dict__[part]
        self.__dict__["_state"] = state
        self.__dict__["_wrapped"] = module
        self.training = module.training

    @property
    def module(self) -> nn.Module:
        """The module as it was given."""
        found: nn.Module = self.__dict__["_wrapped"]
        return found

    def __getattr__(self, name: str) -> Any:
        """Anything the wrapped module has, such as `model.features`."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_wrapped"], name)

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self.module.train(mode)
        return self
