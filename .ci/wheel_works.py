"""Builds the wheel, installs it beside nothing of the source tree, and plans and reads with what came in it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        out, env = Path(folder) / "dist", Path(folder) / "env"
        pip = [sys.executable, "-m", "pip"]
        subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", str(out), "."], check=True)
        venv.create(env, with_pip=True)
        wheel = next(out.glob("*.whl"))
        subprocess.run([env / "bin" / "pip", "install", "-q", "-c", "requirements.lock", str(wheel)], check=True)
        run = [str(env / "bin" / "tuner"), "plan", "demo", "--free-before", "46.83", "--free-after", "19.29", "--json"]
        for command in (run, [run[0], "guide", "two-pools"]):
            here = {**os.environ, "TUNER_HOME": folder}
            subprocess.run(command, check=True, cwd=folder, env=here, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
