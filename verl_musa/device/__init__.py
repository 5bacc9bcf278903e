"""What runs inside verl's workers: the musa platform, the engines and rollouts registered for it, and the proofs.

Loaded by verl itself through the entry point ``verl_musa.device.plugin`` (group ``verl.plugins``), by SGLang through
``verl_musa.device.sglang_plugin`` (group ``sglang.srt.plugins``) and by Ray through
``verl_musa.device.guard.on_worker_start`` (``worker_process_setup_hook``). This room imports torch, verl, sglang
and the standard library, and no other room; importing this package alone has no effect.
"""
