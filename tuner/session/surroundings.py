"""The environment of a start as it is kept with a round."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.recipe.environment import LOOKED_AT
from tuner.recipe.model import Recipe
from tuner.redact import redact

#: What only describes a container's image, or says to the container runtime what may run it (NVIDIA's CUDA and NGC
#: images set them): nothing that a server loads reads it.
_IMAGE = ("NVIDIA_REQUIRE_", "NVIDIA_PRODUCT_NAME", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_BUILD_", "PYTORCH_BUILD_")
#: Ends of names of the same kind (CUDA_VERSION, NCCL_VERSION, ...), but for SGLang's own variables.
_IMAGE_ENDS, _OWN = "_VERSION", ("SGLANG_", "SGL_")


def kept_environment(recipe: Recipe, environ: Mapping[str, str]) -> dict[str, str]:
    """The recipe's variables as asked (``${NAME}`` unresolved) and the inherited ones that matter, secrets hidden."""
    inherited = {name: value for name, value in sorted(environ.items()) if _matters(name)}
    hidden: dict[str, str] = redact({**inherited, **recipe.environment})
    return hidden


def _matters(name: str) -> bool:
    """Whether SGLang, or what it loads, may behave otherwise by it."""
    of_image = name.startswith(_IMAGE) or (name.endswith(_IMAGE_ENDS) and not name.startswith(_OWN))
    return name.startswith(LOOKED_AT) and not of_image
