"""A recipe: which model, which flags, which environment, which interpreter. What a round is started from."""

from __future__ import annotations

import shlex
from typing import Any

import msgspec

#: Value of ``[server] python`` that starts the stand-in instead of a real SGLang.
SIMULATOR = "simulator"


class TunerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The ``[tuner]`` table: what is ours and never reaches SGLang."""

    #: Name of a packaged model shape, used while the model folder is not on this machine.
    model_shape: str | None = None
    #: SGLang version to plan for when it cannot be read.
    sglang_version: str | None = None
    headroom_gib: float | None = None
    #: Words in front of the interpreter, as in a shell: "srun --gres=gpu:1", "docker run --rm --gpus all IMAGE".
    launcher: str | None = None
    #: What an answer must keep to count as good in a measurement: time to first token, mean time between tokens.
    slo_ttft_s: float | None = None
    slo_itl_ms: float | None = None
    #: What the server must be good for: longest input and longest answer in tokens, agents at once, conversations kept
    #: warm beside them.
    need_input_tokens: int | None = None
    need_output_tokens: int | None = None
    need_agents: int | None = None
    need_warm_prefixes: int | None = None
    #: The checks that a restart has to pass, with commas between them: all of them unless given. A model that cannot
    #: do what a check asks (a base model, one without tools) would never be verified otherwise.
    checks: str | None = None
    #: Extra switches for the stand-in server, by name without dashes ("speed", "fault").
    simulator: dict[str, Any] = {}


class ApiSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The gateway above the server (``settings.json``: api)."""

    base_url: str | None = None
    api_key_env: str | None = None
    timeout_seconds: float | None = None


class KeptKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key of an imported file that is no SGLang flag: kept, reported, without effect."""

    where: str
    value: Any
    #: What it would be in SGLang and why it has no effect, one sentence.
    why: str
    nearest: str | None = None


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """Flags are SGLang's long names with underscores, exactly as asked; nothing resolved is stored.

    ``environment`` may hold ``${NAME}``, which is read at launch and never written back.
    """

    name: str = ""
    flags: dict[str, Any] = {}
    environment: dict[str, str] = {}
    #: Interpreter that has SGLang; ``SIMULATOR`` for the stand-in; None: not told.
    python: str | None = None
    tuner: TunerSettings = TunerSettings()
    api: ApiSettings = ApiSettings()
    kept: tuple[KeptKey, ...] = ()
    #: Text of the file it came from, so that comments and unknown keys survive a write.
    source_text: str | None = None
    #: "toml:flat" (article A layout), "toml" (article B layout), "settings", ... ; see recipe.toml_file.
    source_layout: str | None = None

    @property
    def simulated(self) -> bool:
        """Whether a start of this recipe starts the stand-in."""
        return self.python == SIMULATOR

    @property
    def launcher(self) -> tuple[str, ...]:
        """Words of the command in front of the interpreter; empty when the server is started directly."""
        return tuple(shlex.split(self.tuner.launcher or ""))

    @property
    def model_path(self) -> str:
        """The model folder as asked, or an empty string."""
        return str(self.flags.get("model_path", ""))

    @property
    def served_name(self) -> str:
        """The name under which clients ask for the model."""
        return str(self.flags.get("served_model_name") or self.model_path)

    @property
    def host(self) -> str:
        """Address the server binds (SGLang's default: 127.0.0.1)."""
        return str(self.flags.get("host", "127.0.0.1"))

    @property
    def port(self) -> int:
        """Port the server binds (SGLang's default: 30000)."""
        return int(self.flags.get("port", 30000))

    def with_flags(self, changes: dict[str, Any]) -> Recipe:
        """A recipe with some flags changed; a value of None removes the flag."""
        flags = {k: v for k, v in {**self.flags, **changes}.items() if v is not None}
        return msgspec.structs.replace(self, flags=flags)


class RecipeError(Exception):
    """A file or a value that no recipe can be made from; the message is one sentence for the operator."""
