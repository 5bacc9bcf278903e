"""What verl's engines have in common on device musa: each proves where it runs before it builds a model.

The classes are in engines_fsdp and engines_megatron, so that a job imports only the back end that it uses.
"""

from __future__ import annotations

from typing import Any

from verl_musa.device import proof


class Proven:
    """Mixin of an engine of verl's: writes the proof before the model is built, and counters after each batch."""

    proof_role = ""

    def parallel_sizes(self) -> dict[str, int]:
        """How many ranks share one model, by kind; empty where each holds or shards the whole."""
        return {}

    def initialize(self) -> None:
        """Prove, then build model, optimizer and checkpoint manager.

        Raises:
            ExpectationError: this worker is not on the device or backend that the run expects.
        """
        proof.prove(self.proof_role, parallel=self.parallel_sizes())
        super().initialize()  # type: ignore[misc]

    def train_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Train on one batch as verl does, then write the counters."""
        result = super().train_batch(*args, **kwargs)  # type: ignore[misc]
        proof.write_counters()
        return result

    def infer_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Infer one batch as verl does, then write the counters."""
        result = super().infer_batch(*args, **kwargs)  # type: ignore[misc]
        proof.write_counters()
        return result
