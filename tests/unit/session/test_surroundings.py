"""The environment that is kept with a round."""

from __future__ import annotations

import pytest

from tuner.recipe.model import Recipe
from tuner.session.surroundings import kept_environment


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA_REQUIRE_CUDA", "NVIDIA_REQUIRE_JETPACK_HOST_MOUNTS", "NVIDIA_PRODUCT_NAME",
        "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_BUILD_ID", "NVIDIA_PYTORCH_VERSION", "CUDA_VERSION",
        "CUDA_DRIVER_VERSION", "CUBLAS_VERSION", "NCCL_VERSION", "PYTORCH_VERSION", "PYTORCH_BUILD_NUMBER",
    ],
)  # fmt: skip
def test_what_only_describes_the_container_is_not_listed_with_a_round(name: str) -> None:
    assert kept_environment(Recipe(), {name: "cuda>=13.0 brand=unknown,driver>=535,driver<536"}) == {}


@pytest.mark.parametrize(
    "name",
    [
        "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "CUDA_MODULE_LOADING", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE",
        "NCCL_NVLS_ENABLE", "PYTORCH_CUDA_ALLOC_CONF", "TORCH_CUDA_ARCH_LIST", "FLASHINFER_DISABLE_VERSION_CHECK",
        "SGLANG_ENABLE_JIT_DEEPGEMM", "SGLANG_SOME_VERSION", "HF_HUB_OFFLINE", "OMP_NUM_THREADS", "TRITON_CACHE_DIR",
    ],
)  # fmt: skip
def test_what_changes_how_a_server_behaves_is_kept(name: str) -> None:
    assert kept_environment(Recipe(), {name: "1", "HOME": "/root"}) == {name: "1"}


def test_a_variable_that_the_recipe_sets_is_kept_whatever_its_name() -> None:
    recipe = Recipe(environment={"CUDA_VERSION": "13", "NVIDIA_REQUIRE_CUDA": "cuda>=13"})
    assert kept_environment(recipe, {"CUDA_VERSION": "12"}) == recipe.environment
