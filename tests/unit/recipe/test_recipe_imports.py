"""What people start SGLang with, read as recipes: commands, scripts, docker, units, YAML, running servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tuner.recipe import RecipeError, load, read_text, to_argv
from tuner.recipe.bash_words import commands
from tuner.recipe.server_answer import from_process, from_server_info

MEASURED = Path(__file__).parents[2] / "data" / "measured"


def flags(text: str, name: str = "start.sh") -> dict[str, Any]:
    return read_text(text, name).recipe.flags


def test_a_command_as_pasted_from_a_terminal() -> None:
    read = read_text(
        "CUDA_VISIBLE_DEVICES=3 nohup /opt/sgl/bin/python -u -m sglang.launch_server --model-path /models/a \\\n"
        "  --mem-fraction-static=0.9 --enable-metrics --cuda-graph-bs-decode 1 2 4 \\\n"
        '  --default-chat-template-kwargs \'{"enable_thinking": true}\' --served-model-name "my 模型" > log 2>&1 &\n'
    )
    assert read.recipe.flags == {
        "model_path": "/models/a",
        "mem_fraction_static": 0.9,
        "enable_metrics": True,
        "cuda_graph_bs_decode": [1, 2, 4],
        "default_chat_template_kwargs": {"enable_thinking": True},
        "served_model_name": "my 模型",
    }
    assert read.recipe.python == "/opt/sgl/bin/python"
    assert read.recipe.environment == {"CUDA_VISIBLE_DEVICES": "3"}
    assert read.remarks == ()


def test_sglang_serve_names_the_interpreter_beside_it() -> None:
    read = read_text("/opt/sgl/bin/sglang serve --model-path m --port 1\n")
    assert read.recipe.python == "/opt/sgl/bin/python" and read.recipe.port == 1
    assert read_text("sglang serve --model-path m").recipe.python is None


SCRIPT = """#!/bin/bash
# how we start it
set -euo pipefail
MODEL=${MODEL:-/models/b}   # the default
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
EXTRA="--enable-metrics --schedule-policy lpm"
ARGS=(
  --max-running-requests 3   # three agents
  --mem-fraction-static 0.98
)
ARGS+=(--port "$PORT")
cat <<EOF > /dev/null
python -m sglang.launch_server --model-path /not/this
EOF
if [ -n "${DEBUG:-}" ]; then echo "python -m sglang.launch_server is next"; fi
source ~/.venv/bin/activate
exec python3 -m sglang.launch_server --model-path "$MODEL" "${ARGS[@]}" $EXTRA --revision 'a $b' "$@" >>"$LOG" 2>&1
"""


def test_a_script_with_variables_arrays_and_here_documents() -> None:
    read = read_text(SCRIPT.replace('"$PORT"', "30001"), "run.sh")
    assert read.recipe.flags == {
        "model_path": "/models/b",
        "max_running_requests": 3,
        "mem_fraction_static": 0.98,
        "port": 30001,
        "enable_metrics": True,
        "schedule_policy": "lpm",
        "revision": "a $b",
    }
    assert read.recipe.environment == {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert read.recipe.name == "run"
    assert any("looked up on PATH" in remark for remark in read.remarks)


def test_a_variable_that_the_script_does_not_set_stays_one() -> None:
    assert flags("python -m sglang.launch_server --model-path $ROOT/a --served-model-name '$x'") == {
        "model_path": "${ROOT}/a",
        "served_model_name": "$x",
    }
    assert flags("python -m sglang.launch_server --model-path ~/a")["model_path"] == "${HOME}/a"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("python -m sglang.launch_server --port $(pick)", 'The script works out "$(pick)" when it runs'),
        ("python -m sglang.launch_server --port", "--port needs a value."),
        ("python -m sglang.launch_server --port 1 2", "--port takes one value"),
        ("python -m sglang.launch_server --enable-metrics yes", "--enable-metrics is a switch and takes no value"),
        ("python -m sglang.launch_server extra", 'The word "extra" belongs to no flag'),
        ("python -m sglang.launch_server --port 'a", "a quote or bracket in line 1 that is not closed"),
        ("echo sglang", "starts no SGLang"),
        ("python -m sglang.launch_server --mem-fraction-static 2", "it takes a number above 0 and up to 1"),
        ("python -m sglang.launch_server --schedule-policy best", "it takes one of lpm, random, fcfs"),
        ("hello", "nor a command that starts SGLang"),
    ],
)
def test_a_command_that_cannot_be_is_explained(text: str, said: str) -> None:
    with pytest.raises(RecipeError) as refused:
        read_text(text, "a.sh")
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_unknown_and_renamed_flags_are_explained_suggested_and_kept() -> None:
    read = read_text(
        "python3 -m sglang.launch_server --model m --mem-frac 0.9 --mamba-scheduler-strategy extra_buffer "
        "--kv-cache-type fp8 --disable-cuda-graph --attn-dp-size 2 --enable-elastic-memory-pool --speculative-topk 1"
    )
    said = " ".join(read.remarks)
    assert read.recipe.flags["mamba_radix_cache_strategy"] == "extra_buffer"
    assert read.recipe.flags["mem_fraction_static"] == 0.9 and read.recipe.flags["speculative_eagle_topk"] == 1
    assert "--mamba-scheduler-strategy is another name of --mamba-radix-cache-strategy since SGLang 0.5.17." in said
    assert "--mem-frac is short for --mem-fraction-static." in said
    assert "--disable-cuda-graph is deprecated; write --cuda-graph-backend" in said
    assert "--attn-dp-size is not in SGLang 0.5.17: it came with 0.5.23." in said
    kept = {key.where: key for key in read.recipe.kept}
    assert kept["flags.kv_cache_type"].value == "fp8" and kept["flags.kv_cache_type"].nearest == "kv_cache_dtype"
    assert kept["flags.enable_elastic_memory_pool"].value is True
    assert "enable_unified_memory" in kept["flags.enable_elastic_memory_pool"].why
    assert "--kv-cache-type" not in to_argv(read.recipe)


def test_a_secret_in_clear_becomes_a_variable_and_is_nowhere() -> None:
    read = read_text(
        "export HF_TOKEN=hf_abcdefghij0123456789\n"
        "python -m sglang.launch_server --model-path m --api-key hunter2hunter2 --my-api-key hunter3hunter3\n"
    )
    assert read.recipe.flags["api_key"] == "${API_KEY}"
    assert read.recipe.environment == {"HF_TOKEN": "${HF_TOKEN}"}
    assert "hunter" not in str(read) and "abcdefghij" not in str(read)
    assert any("export API_KEY" in remark for remark in read.remarks)


def test_a_docker_command_gives_the_paths_outside() -> None:
    read = read_text(
        "sudo docker run -d --gpus all --shm-size 32g -p 30000:30000 --rm -v /data/models:/models:ro \\\n"
        '  -e HF_TOKEN -e NCCL_DEBUG=INFO --env "A=b c" --ipc=host --name x lmsysorg/sglang:v0.5.17 \\\n'
        "  python3 -m sglang.launch_server --model-path /models/q --host 0.0.0.0 --port 30000",
        "docker.txt",
    )
    assert read.recipe.flags == {"model_path": "/data/models/q", "host": "0.0.0.0", "port": 30000}
    assert read.recipe.environment == {"HF_TOKEN": "${HF_TOKEN}", "NCCL_DEBUG": "INFO", "A": "b c"}
    assert read.recipe.python is None
    assert any("lmsysorg/sglang:v0.5.17" in remark for remark in read.remarks)


def test_docker_with_a_shell_inside_or_an_entry_point() -> None:
    inner = "docker run -it -v ~/m:/m img bash -lc 'python3 -m sglang.launch_server --model-path /m/a --port 2'"
    assert flags(inner) == {"model_path": "${HOME}/m/a", "port": 2}
    assert flags("docker run lmsysorg/sglang:latest --model-path a --port 3") == {"model_path": "a", "port": 3}


UNIT = """[Unit]
Description=x
[Service]
Environment="A=1 2" B=%%3
Environment=PATH=/opt/bin
# a comment
ExecStart=-/opt/sgl/bin/python -m sglang.launch_server --model-path /models/a \\
    --served-model-name "a \\"b\\" $$c %% d" \\
    --api-key ${KEY} --enable-metrics
[Install]
WantedBy=multi-user.target
"""


def test_a_systemd_unit() -> None:
    read = read_text(UNIT, "sglang.service")
    assert read.recipe.flags == {
        "model_path": "/models/a",
        "served_model_name": 'a "b" $c % d',
        "api_key": "${KEY}",
        "enable_metrics": True,
    }
    assert read.recipe.environment == {"A": "1 2", "B": "%3"} and read.recipe.python == "/opt/sgl/bin/python"
    shell = "[Service]\nExecStart=/bin/bash -c 'python -m sglang.launch_server --model-path m'\n"
    assert flags(shell, "x.service") == {"model_path": "m"}
    with pytest.raises(RecipeError, match="import the script that its ExecStart names"):
        read_text("[Service]\nExecStart=/opt/start.sh\n", "x.service")
    with pytest.raises(RecipeError, match="no ExecStart"):
        read_text("[Unit]\n", "x.service")


def test_yaml_of_sglangs_own_config() -> None:
    read = read_text(
        "model-path: /models/a\nenable-metrics: true\ntrust-remote-code: false\ncuda-graph-bs-decode: [1, 2]\n"
        "mem_fraction_static: 0.9\nmamba-scheduler-strategy: extra_buffer\nport: null\nwatch-dog: 3\n"
        "default-chat-template-kwargs:\n  enable_thinking: true\n",
        "a.yaml",
    )
    assert read.recipe.flags == {
        "model_path": "/models/a",
        "enable_metrics": True,
        "cuda_graph_bs_decode": [1, 2],
        "mem_fraction_static": 0.9,
        "mamba_radix_cache_strategy": "extra_buffer",
        "default_chat_template_kwargs": {"enable_thinking": True},
    }
    assert [key.where for key in read.recipe.kept] == ["flags.watch_dog"]
    assert any("wants hyphens" in remark for remark in read.remarks)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1", "is not valid YAML at line 1"),
        ("- a\n", "must hold keys and values"),
        ("a: &x [1]\nb: *x\n", r"references \(\*name\) are not read"),
        ("server:\n  port: 1\n", "has no sections|SGLang"),
        ("port: 99999999\n", "at least 1 and up to 65535"),
        ("a: 2001-99-99\n", "a number or date that cannot be"),
        ("port: !!python/object/apply:os.system ['x']\n", "is not valid YAML"),
    ],
)
def test_bad_yaml_is_one_sentence(text: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said) as refused:
        read_text(text, "a.yaml")
    assert "\n" not in str(refused.value)


def test_the_flags_of_a_recorded_server_are_those_that_were_asked() -> None:
    recording = json.loads((MEASURED / "27b-48g-r15-full.json").read_text(encoding="utf-8"))
    read = from_server_info(json.loads(recording["endpoints"]["/server_info"]["body"]))
    asked = flags(" ".join(["python -m sglang.launch_server --model-path /models/hybrid-27b-fp8",
                            *recording["scenario"]["flags"]]))  # fmt: skip
    default = {"host", "port", "mamba_full_memory_ratio"}
    assert read.recipe.flags == {k: "EAGLE" if v == "NEXTN" else v for k, v in asked.items() if k not in default}
    assert read.recipe.tuner.sglang_version == "0.5.17"
    with pytest.raises(RecipeError, match="names no model"):
        from_server_info({"status": "ok"})


def test_a_process_gives_its_words_and_what_sglang_looks_at() -> None:
    words = ["/opt/sgl/bin/python", "-m", "sglang.launch_server", "--model-path", "/m", "--served-model-name", "a b"]
    environ = {"CUDA_VISIBLE_DEVICES": "1", "HF_TOKEN": "hf_abcdefghij0123456789", "HOME": "/root", "PATH": "/bin"}
    read = from_process(words, environ, "/opt/sgl/bin/python")
    assert read.recipe.flags == {"model_path": "/m", "served_model_name": "a b"}
    assert read.recipe.environment == {"CUDA_VISIBLE_DEVICES": "1", "HF_TOKEN": "${HF_TOKEN}"}
    assert read.recipe.python == "/opt/sgl/bin/python"
    with pytest.raises(RecipeError, match="no SGLang server"):
        from_process(["bash"], {}, "")


def test_an_exported_round_and_a_folder_are_read(tmp_path: Path) -> None:
    (tmp_path / "r1.json").write_text('{"number": 1, "recipe": {"flags": {"port": 7}}}', encoding="utf-8")
    assert load(tmp_path / "r1.json").port == 7
    (tmp_path / "r2.json").write_text('{"number": 1, "recipe": 3}', encoding="utf-8")
    with pytest.raises(RecipeError, match="no round that tuner export wrote"):
        load(tmp_path / "r2.json")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a 'b c' \"d $e\" f\\ g", [["a", "b c", "d $e", "f g"]]),
        ("a b # c\nd", [["a", "b"], ["d"]]),
        ("a#b; c && d | e & f", [["a#b"], ["c"], ["d"], ["e"], ["f"]]),
        ("a \\\n b", [["a", "b"]]),
        ("a >x 2>&1 b <<<y c", [["a", "b", "c"]]),
        ("a <<X b\nin a\nX\nc", [["a", "b"], ["c"]]),
        ("a $'x\\ty' \"\"", [["a", "x\ty", ""]]),
        ("a ${x:-y z} `q r` $(s (t) 'u)')", [["a", "$x", "`q r`", "$(s (t) 'u)')"]]),
    ],
)
def test_words_are_cut_as_bash_cuts_them(text: str, words: list[list[str]]) -> None:
    found = [
        ["".join("$" * (p.kind == "variable") + p.text for p in word.pieces) for word in command]
        for command in commands(text)
    ]
    assert found == words


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"A{n + 1}=$A{n}$A{n}\n" for n in range(64)) + "python -m sglang.launch_server --model-path $A64",
        "A0=x\n" + "".join(f"A{n + 1}=$A{n}$A{n}\n" for n in range(64)),
        "A=(x x)\n" + 'A+=("${A[@]}" "${A[@]}")\n' * 64,
        "A=x\n" + "A+=$A\n" * 64,
        "a=(" * 20_000,
        "${" * 20_000,
        "$(" * 20_000,
        "bash -c '" * 50,
        "docker run " * 5_000,
        '"' * 99_999,
    ],
)
def test_a_script_that_would_grow_without_end_is_refused(text: str) -> None:
    with pytest.raises(RecipeError):
        read_text(f"# sglang\n{text}", "a.sh")


@pytest.mark.parametrize("text", ["[" * 20_000, "{a: " * 5_000, "- " * 20_000, "? " * 5_000, "a: " + "9" * 9_000])
def test_yaml_that_is_nested_without_end_is_refused(text: str) -> None:
    with pytest.raises(RecipeError):
        read_text(text, "a.yaml")
