"""The way of the field article, round by round, by commands alone: from 63,501 KV tokens to 223,039 there.

The stand-in has the article's model and a card of its size, so the steps have the same signs; the numbers are the
stand-in's own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import User

PRESETS = Path(__file__).parents[2] / "presets"
FORMATS = ("toml", "settings", "yaml", "sh", "systemd", "docker", "md", "json")
SPECULATION = {
    "speculative_algorithm": "NEXTN",
    "speculative_num_steps": 1,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 2,
}
#: What the stand-in needs, whatever the round.
HERE: dict[str, Any] = {"attention_backend": "triton", "host": "127.0.0.1"}
#: What each round changed from the one before, with the word that the operator left on it.
STORY: tuple[tuple[dict[str, Any], str], ...] = (
    ({}, "where it began: float32 states"),
    ({"mem_fraction_static": 0.88}, "a little more for both pools"),
    ({"mamba_ssm_dtype": "bfloat16"}, "states of half the bytes"),
    ({"mamba_full_memory_ratio": 0.5}, "the ratio is the lever for KV"),
    ({"kv_cache_dtype": "fp8_e4m3"}, "KV of half the bytes"),
    ({"enable_metrics": True}, "metrics, which should have been on since the first day"),
    (SPECULATION, "MTP: its head takes KV"),
    ({"mem_fraction_static": 0.5}, "too low: the weights leave nothing"),
    ({"mem_fraction_static": 0.92}, "back, and higher"),
    ({"chunked_prefill_size": 4096}, "smaller chunks"),
    ({"max_prefill_tokens": 8192}, "and a smaller batch of them"),
    ({"mamba_radix_cache_strategy": "extra_buffer"}, "states are kept where prefixes part"),
    ({"schedule_policy": "lpm"}, "the longest prefix first"),
    ({"mem_fraction_static": 0.98}, "nearly all of it"),
    ({"mamba_full_memory_ratio": 0.9}, "as the article ends"),
)


def starting_point(user: User) -> None:
    """The preset of the first round as the user's own file, without what later rounds add."""
    text = (PRESETS / "qwen3.8-27b-r01.toml").read_text(encoding="utf-8")
    source = text.replace("chunked_prefill_size = 4096\n", "").replace("max_prefill_tokens = 8192\n", "")
    source = source.replace("enable_metrics = true", "enable_metrics = false")
    (user.home / "r01.toml").write_text(source, encoding="utf-8")


def words_of(flags: dict[str, Any]) -> list[str]:
    """Flags as --set words."""
    texts = {name: json.dumps(value) if isinstance(value, bool) else str(value) for name, value in flags.items()}
    return [word for name, text in texts.items() for word in ("--set", f"{name}={text}")]


@pytest.mark.timeout(300)
def test_fifteen_rounds_are_kept_told_apart_and_compared(user: User) -> None:
    starting_point(user)
    asked = dict(HERE)
    for number, (changes, note) in enumerate(STORY, start=1):
        asked |= changes
        round_ = user.simulate("r01.toml", *words_of(asked), "--note", note, status=None)
        assert round_["name"] == f"r{number}"
    rounds = {r["name"]: r for r in user.json("rounds")}
    assert list(rounds) == [f"r{n}" for n in range(15, 0, -1)]
    assert all(r["simulated"] for r in rounds.values())
    kv = {name: r["boot"]["kv_tokens"] if r["boot"] else None for name, r in rounds.items()}
    ended = {name: r["state"] for name, r in rounds.items()}
    # The article's path: up with the state's type, the ratio and the KV's type, down with MTP, up with the fraction.
    assert kv["r1"] < kv["r4"] < kv["r5"]
    assert kv["r7"] < kv["r6"]
    assert kv["r14"] > kv["r9"] > kv["r7"]
    assert ended["r8"] in ("refused", "failed") and rounds["r8"]["reason"]
    assert {ended[name] for name in ("r12", "r13", "r14", "r15")} == {"verified"}

    _words_on_rounds(user)
    _first_and_last(user, rounds)


def _words_on_rounds(user: User) -> None:
    user.run("reject", "r14")
    user.run("keep", "r15")
    user.run("tag", "r15", "winner", "100K")
    user.run("note", "r8", "fraction 0.5: 权重放不下")
    assert user.json("show", "good")["name"] == "r15"
    assert [r["name"] for r in user.json("rounds", "权重放不下")] == ["r8"]
    assert [r["name"] for r in user.json("rounds", "--tag", "winner")] == ["r15"]
    assert [r["name"] for r in user.json("rounds", "--flag", "schedule_policy=lpm", "--rejected")] == ["r14"]
    refused = user.json("rounds", "--state", "refused", "--state", "failed")
    assert "r8" in [r["name"] for r in refused]
    assert "r8" in user.run("rounds", "--flag", "mem_fraction_static=0.5").stdout
    chart = user.run("chart", "kv_tokens").stdout.splitlines()
    assert len(chart) == 16 and "█" in chart[1] and chart[8].split()[-1] in ("refused", "failed")


def _first_and_last(user: User, rounds: dict[str, Any]) -> None:
    difference = user.json("diff", "r1", "r15")
    changed = {c["name"] for c in difference["flags_changed"]}
    assert {"mem_fraction_static", "mamba_ssm_dtype", "kv_cache_dtype", "speculative_algorithm"} <= changed
    pools = {c["name"]: c for c in difference["pools"]}
    assert pools["KV tokens"]["new"] > 2 * pools["KV tokens"]["old"] and pools["KV tokens"]["verdict"] == "better"
    assert "weights of the draft, GiB" in pools
    gained = rounds["r15"]["boot"]["kv_tokens"] - rounds["r1"]["boot"]["kv_tokens"]
    assert f"+{gained:,} KV tokens" in difference["summary"]
    assert difference["simulated"] is True
    many = user.json("diff", "r1", "r5", "r15")
    assert many["rounds"] == ["r1", "r5", "r15"] and set(many["pareto"]) <= set(many["rounds"])
    assert "SIMULATED" in user.run("diff", "r1", "r5", "r15").stdout
    assert "| KV tokens |" in user.run("diff", "r1", "r15", "--md").stdout


@pytest.mark.timeout(300)
def test_the_winner_leaves_in_every_form_and_comes_back_the_same(user: User) -> None:
    """Every form says that it is simulated; every form that can be read gives the same recipe, bytes and effect."""
    starting_point(user)
    asked: dict[str, Any] = dict(HERE)
    for changes, _ in STORY:
        asked |= changes
    last = user.simulate("r01.toml", *words_of(asked), "--note", "r15 of the story: 保留")
    assert last["state"] == "verified"
    folder = user.home / "r15"
    folder.mkdir()
    names = {
        "toml": "config.toml", "settings": "settings.json", "yaml": "r15.yaml", "sh": "start.sh",
        "systemd": "sglang.service", "docker": "docker.sh", "md": "r15.md", "json": "r15.json",
    }  # fmt: skip
    for fmt in FORMATS:
        user.run("export", "good", "--format", fmt, "-o", str(folder / names[fmt]))
        text = (folder / names[fmt]).read_text(encoding="utf-8")
        assert "SIMULATED" in text or '"simulated": true' in text, fmt
    for fmt in ("toml", "yaml", "sh", "systemd", "docker"):
        again = folder / f"again-{names[fmt]}"
        user.run("import", str(folder / names[fmt]), "--format", fmt, "-o", str(again))
        assert again.read_bytes() == (folder / names[fmt]).read_bytes(), fmt
    user.run("import", str(folder), "--format", "settings", "-o", str(folder / "again.json"))
    assert (folder / "again.json").read_bytes() == (folder / names["settings"]).read_bytes()
    user.run("import", str(folder / names["sh"]), "--save", "mine")
    for source in (*(str(folder / names[f]) for f in ("toml", "settings", "yaml", "sh", "systemd", "docker", "json")),
                   "mine"):  # fmt: skip
        fresh = user.json("run", source)
        assert fresh["state"] == "verified", source
        assert fresh["effective"] == last["effective"], source
        assert fresh["recipe"]["flags"] == last["recipe"]["flags"], source
        assert fresh["simulated"] is True
    server = user.json("import", "--server", f"127.0.0.1:{user.port}")
    words = user.json("import", "--pid", str(min(p.pid for p in user.servers())))
    assert words["recipe"] == last["recipe"]["flags"]
    told = {k: v for k, v in server["recipe"].items() if k in words["recipe"]}
    assert told["mem_fraction_static"] == 0.98 and told["mamba_ssm_dtype"] == "bfloat16"
    assert "mine" in [p["name"] for p in user.json("presets") if p["own"]]
