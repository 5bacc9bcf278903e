"""Rules that score responses. Runs inside Ray's reward workers, so it imports nothing heavy and no other room.

Public face: :func:`score_math` and :func:`require_math_verify` for a recipe's ``reward.py``; :class:`Child` for whoever must run
code that may hang, eat memory or die.
"""

from __future__ import annotations

from verl_musa.reward.child import Child, ChildDiedError, ChildError, ChildTimeoutError
from verl_musa.reward.math_score import require_math_verify, score_math

__all__ = ["Child", "ChildDiedError", "ChildError", "ChildTimeoutError", "require_math_verify", "score_math"]
