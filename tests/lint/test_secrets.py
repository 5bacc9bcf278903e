from __future__ import annotations

import pytest

from verl_musa.lint import secrets

RANDOM = "q7Zk2Vd9Xw4Tn8Rb3Yc6Lm1Pf5Hs0JgAaEeUu"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("hf" + f"_{RANDOM[:34]}", "Hugging Face token"),
        ("gh" + f"p_{RANDOM[:36]}", "GitHub token"),
        ("sk" + f"-proj-{RANDOM}", "OpenAI or Anthropic key"),
        ("LT" + f"AI{RANDOM[:18]}", "Aliyun key"),
        ("AI" + f"za{RANDOM[:35]}", "Google key"),
        ("-----BEGIN " + "OPENSSH PRIVATE KEY-----", "private key"),
        ("http://bot:" + "s3cretWord@pypi.corp/simple", "password in a URL"),
    ],
)
def test_known_forms(text: str, name: str) -> None:
    assert list(secrets.known(f"x = '{text}'")) == [(5, name)]


@pytest.mark.parametrize(
    "text",
    [
        "hf_transfer",
        "sk-" + "x" * 40,
        "hf_" + "a" * 34,
        "http://user:password@host",
        "http://guest:guest@localhost:5672",
        "http://${USER}:${PASS}@host",
        "https://host:8000/a@b",
        "-----BEGIN PUBLIC KEY-----",
    ],
)
def test_no_secrets(text: str) -> None:
    assert list(secrets.known(text)) == []


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("HF_TOKEN", RANDOM, True),
        ("wandb.api_key", "0123456789abcdef9876543210fedcba01234567", True),
        ("password", "hunter22", True),
        ("password", "$PASSWORD", False),
        ("password", "null", False),
        ("HF_TOKEN", "${oc.env:HF_TOKEN}", False),
        ("HF_TOKEN", "short1", False),
        ("HF_TOKEN", "only-words-and-no-digits", False),
        ("HF_TOKEN", "aaaaaaaaaaaaaaaaaaaaa1", False),
        ("pad_token", RANDOM, False),
        ("max_token", RANDOM, False),
        ("tokenizer", RANDOM, False),
        ("api_key", "your-api-key-0123456789", False),
        ("api_key", "EMPTY", False),
    ],
)
def test_named_values(name: str, value: str, secret: bool) -> None:
    assert secrets.is_secret_value(name, value) is secret
