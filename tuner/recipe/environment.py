"""The environment of a start."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.recipe import references
from tuner.recipe.model import Recipe

#: Beginnings of the names of variables that SGLang, PyTorch and CUDA look at.
LOOKED_AT = (
    "CUDA_", "CUBLAS_", "FLASHINFER_", "HF_", "HUGGING_FACE_", "NCCL_", "NVIDIA_", "OMP_", "PYTORCH_", "SGL_",
    "SGLANG_", "TORCH", "TRITON_",
)  # fmt: skip


def resolve_environment(recipe: Recipe, environ: Mapping[str, str]) -> dict[str, str]:
    """The recipe's variables with ``${NAME}`` read from ``environ``; :class:`RecipeError` names one that is not set.

    Only the recipe's own variables, not ``environ`` itself. They may hold secrets: never keep or show them.
    """
    return {
        name: str(references.resolve(value, environ, f"environment.{name}"))
        for name, value in recipe.environment.items()
    }
