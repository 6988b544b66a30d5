import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.redact import redact, redact_text

SECRET = "correct-horse-7"


@pytest.mark.parametrize(
    "text",
    [
        f"--api-key {SECRET} --port 3",
        f"--api-key={SECRET}",
        f"--api-key \\\n  {SECRET}",
        f"--admin-api-key '{SECRET} with blanks'",
        f"['--api-key', '{SECRET}', '--port']",
        f"server_args=ServerArgs(host='x', api_key='{SECRET}', admin_api_key='{SECRET}', port=1)",
        f"{{'api_key': '{SECRET}', 'port': 1}}",
        f'{{"api_key": "{SECRET}"}}',
        f'body={{\\"api_key\\": \\"{SECRET}\\"}}',
        f"export TAOTOKEN_API_KEY={SECRET}",
        f"HF_TOKEN={SECRET}",
        f"Authorization: Bearer {SECRET}",
        f'{{"Authorization": "Basic {SECRET}"}}',
        f"curl http://user:{SECRET}@host/v1?api_key={SECRET}",
        f"password: {SECRET}",
        f"api_key='{SECRET}",
        f"openai.api_key = '{SECRET}'",
    ],
)
def test_a_secret_never_stays_in_a_text(text):
    shown = redact_text(text)
    assert SECRET not in shown
    assert "***" in shown
    assert redact_text(shown) == shown


def test_keys_are_known_by_their_shape_alone():
    assert redact_text("use sk-abcdef123456 or hf_AbCdEf123456 here") == "use *** or *** here"


@pytest.mark.parametrize(
    "text",
    [
        "ServerArgs(api_key=None, tokenizer_path='/models/x', max_total_tokens=5, hf_chat_template_name=None)",
        "Prefill batch, #new-seq: 1, #new-token: 11, #cached-token: 0, full token usage: 0.00",
        "gen throughput (token/s): 44.14, #queue-req: 0",
        "HF_TOKEN=${HF_TOKEN} --api-key=${KEY}",
        "api_key_env = 'TAOTOKEN_API_KEY'",
        "--max-running-requests 3 --tokenizer-path a --speculative-num-draft-tokens 2",
        "eos_token='<s>', token: 151645, hf_overrides=3",
        "task-runner disk-cache risk-free",
    ],
)
def test_what_is_no_secret_stays_readable(text):
    assert redact_text(text) == text


def test_nested_values_are_hidden_by_name():
    value = {
        "api_key": SECRET,
        "api": {"Authorization": [SECRET], "api_key_env": "NAME"},
        "env": {"HF_TOKEN": SECRET, "OTHER": "${HF_TOKEN}"},
        "argv": ["--api-key", SECRET, "--port", "3"],
        "usage": {"completion_tokens": 3, "token_usage": 0.2},
        "admin_api_key": None,
        "pair": ("--hf-token", SECRET),
        "numeric": {"api_key": 12345},
    }
    assert redact(value) == {
        "api_key": "***",
        "api": {"Authorization": ["***"], "api_key_env": "NAME"},
        "env": {"HF_TOKEN": "***", "OTHER": "${HF_TOKEN}"},
        "argv": ["--api-key", "***", "--port", "3"],
        "usage": {"completion_tokens": 3, "token_usage": 0.2},
        "admin_api_key": None,
        "pair": ("--hf-token", "***"),
        "numeric": {"api_key": "***"},
    }
    assert value["api_key"] == SECRET


@given(st.text(max_size=300))
def test_redacting_twice_changes_nothing_more(text):
    once = redact_text(text)
    assert redact_text(once) == once


@pytest.mark.parametrize("key", ["a", "api_key"])
@pytest.mark.parametrize("levels", [100, 50_000])
def test_what_is_nested_without_end_is_hidden_and_no_traceback(key: str, levels: int) -> None:
    value: dict[str, object] = {"api_key": "hunter2hunter2"}
    for _ in range(levels):
        value = {key: [value]}
    hidden = redact(value)
    assert "hunter2" not in repr(hidden)
    assert "***" in repr(hidden)
