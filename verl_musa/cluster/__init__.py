"""The hosts a run uses: what they offer, the Ray this run starts on them, and the processes it owns."""
