"""The shape of a model, read from its ``config.json``."""

from tuner.modelcard.config import shape_from_config
from tuner.modelcard.types import Family, ModelError, ModelShape, StateShape

__all__ = ["Family", "ModelError", "ModelShape", "StateShape", "shape_from_config"]
