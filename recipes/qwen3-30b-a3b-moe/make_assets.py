"""Make the assets of qwen3-30b-a3b-moe@sim: Qwen3-30B-A3B shrunk in width and depth, its tokenizer and converted weights, and data.

    python make_assets.py --out DIR --seed N

Only the variant ``sim`` uses them; the recipe itself trains the real model on real data.
"""

from __future__ import annotations

import sys

from verl_musa.data.toy import shrunk

# Proportions of the real model: query heads to key/value heads, MLP to hidden, 8 experts a token. Experts are as wide as hidden, not three
# eighths of it: SGLang on a CPU pads each rank's part to 32, and a rank that holds nothing but padding shows nothing.
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 192,
    "moe_intermediate_size": 64,
    "num_experts": 32,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 8,
}

if __name__ == "__main__":
    sys.exit(shrunk.main("qwen3-30b-a3b-moe", SIZES))
