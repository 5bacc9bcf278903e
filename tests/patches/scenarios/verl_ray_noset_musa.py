"""A worker whose Ray was told to leave MUSA's visible devices alone must know that it was."""

from support import load

module = load("verl.utils.ray_utils", distribution="verl", stubs=("ray",))
told = {"RAY_EXPERIMENTAL_NOSET_MUSA_VISIBLE_DEVICES": "1"}
if not module.ray_noset_visible_devices(told):
    raise SystemExit("ray_noset_visible_devices() is False")
if module.ray_noset_visible_devices({}) or not module.ray_noset_visible_devices(
    {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}
):
    raise SystemExit("the other vendors' variables no longer count as before")
