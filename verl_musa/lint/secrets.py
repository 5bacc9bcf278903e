"""Which texts are secrets.

Rules of our own instead of detect-secrets: it knows neither Hugging Face, Weights & Biases, ModelScope nor Aliyun tokens, its
entropy plugins fire on checksums and model names, and it keeps its settings in process-wide state.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

_KNOWN: Final = (
    ("Hugging Face token", r"hf_[A-Za-z0-9]{30,}"),
    ("GitHub token", r"gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{40,}"),
    ("GitLab token", r"glpat-[A-Za-z0-9_-]{20}"),
    ("OpenAI or Anthropic key", r"sk-(?:ant-|proj-|svcacct-)?[A-Za-z0-9_-]{32,}"),
    ("AWS key", r"(?:AKIA|ASIA)[0-9A-Z]{16}"),
    ("Aliyun key", r"LTAI[A-Za-z0-9]{16,20}"),
    ("Tencent key", r"AKID[A-Za-z0-9]{32}"),
    ("Google key", r"AIza[0-9A-Za-z_-]{35}"),
    ("Slack token", r"xox[abprs]-[0-9A-Za-z-]{20,}"),
    ("PyPI token", r"pypi-AgEI[0-9A-Za-z_-]{40,}"),
    ("npm token", r"npm_[A-Za-z0-9]{36}"),
    ("ModelScope token", r"ms-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"),
    ("Weights & Biases key", r"wandb_v\d_[A-Za-z0-9_]{40,}"),
    ("JSON web token", r"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"),
    ("private key", r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----"),
)
_PREFIXED: Final = tuple((name, re.compile(rf"(?<![A-Za-z0-9_-])(?:{pattern})")) for name, pattern in _KNOWN)
_IN_URL: Final = re.compile(
    r"\b[a-z][a-z0-9+]*://[^\s/:@\"'$<>{}]+:([^\s/@\"'$<>{}]{3,})@(?!localhost|127\.)"
)

_KEY: Final = re.compile(
    r"(?:^|[_.-])(?:token|secret|secret_?key|passw(?:or)?d|passphrase|api_?key|access_?key(?:_?id)?|private_?key|credentials?)$",
    re.IGNORECASE,
)
_PASSWORD_KEY: Final = re.compile(r"passw(?:or)?d|passphrase", re.IGNORECASE)
_PLACEHOLDER: Final = re.compile(
    r"your|xxx|\*\*\*|<|\$|\{|changeme|change_me|example|placeholder|dummy|redacted|\bnone\b|\bnull\b|not[-_]?(?:set|used|needed)|\.\.\.|"
    r"^/|^file:|^env:|test",
    re.IGNORECASE,
)
MIN_LENGTH: Final = 16
MIN_PASSWORD: Final = 4
MIN_BITS: Final = 3.2
"""Per character. A random 16-digit hexadecimal text has about 3.4, words joined by signs stay below 3.2 or lack digits."""


def known(text: str) -> Iterator[tuple[int, str]]:
    """Yield the offset and the name of every secret in ``text`` that its form gives away."""
    for name, pattern in _PREFIXED:
        for found in pattern.finditer(text):
            body = found[0]
            if not re.search(r"xxx|XXX|your|\.\.\.", body) and (
                name == "private key" or _bits(body) > MIN_BITS - 0.4
            ):
                yield found.start(), name
    for found in _IN_URL.finditer(text):
        if not _PLACEHOLDER.search(found[1]) and found[1].lower() not in {
            "password",
            "pass",
            "passwd",
            "pwd",
        }:
            yield found.start(), "password in a URL"


def is_secret_name(name: str) -> bool:
    """Whether a variable or key of this name holds a secret (``HF_TOKEN``, ``db.password``)."""
    return bool(_KEY.search(name)) and not re.search(
        r"(?:pad|eos|bos|unk|sep|cls|mask|image|video|audio|stop|special|start|end|think|max|num|per|next|last|first)_token$",
        name,
        re.IGNORECASE,
    )


def is_secret_value(name: str, value: str) -> bool:
    """Whether ``value``, which stands under a name for secrets, is one, and not a placeholder or a reference."""
    if not is_secret_name(name) or _PLACEHOLDER.search(value) or re.search(r"\s", value):
        return False
    if _PASSWORD_KEY.search(name):
        return len(value) >= MIN_PASSWORD and value.lower() not in {"true", "false"}
    mixed = re.search(r"\d", value) and re.search(r"[A-Za-z]", value)
    return len(value) >= MIN_LENGTH and bool(mixed) and _bits(value) >= MIN_BITS


def _bits(text: str) -> float:
    counts = Counter(text)
    return -sum(count / len(text) * math.log2(count / len(text)) for count in counts.values())
