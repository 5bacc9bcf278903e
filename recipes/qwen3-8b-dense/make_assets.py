"""Make the assets of qwen3-8b-dense@sim: Qwen3-8B shrunk in width and depth, its tokenizer and converted weights, and data.

    python make_assets.py --out DIR --seed N

Only the variant ``sim`` uses them; the recipe itself trains the real model on real data.
"""

from __future__ import annotations

import sys

from verl_musa.data.toy import shrunk

# Proportions of the real model: query heads to key/value heads, MLP to hidden.
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
}

if __name__ == "__main__":
    sys.exit(shrunk.main("qwen3-8b-dense", SIZES))
