"""What a run says while it goes: metrics, progress, proofs, and who died of what."""
