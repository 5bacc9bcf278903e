"""Sharing of musa tensors between processes: torch.multiprocessing and ``reduce_tensor``.

The memory behind the tensor is moved into shared memory at the first send; the receiver maps it. As on a real device,
the sender must keep the tensor alive until the receiver has opened it, and writes are seen on both sides.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions

from torch_musa import _C

Rebuild = tuple[Callable[..., Any], tuple[Any, ...]]
_original: dict[str, Any] = {}


def rebuild_musa_tensor(  # noqa: PLR0917 (the order that torch fixed)
    tensor_cls: type,
    tensor_size: torch.Size,
    tensor_stride: tuple[int, ...],
    tensor_offset: int,
    storage_cls: type,  # noqa: ARG001
    dtype: torch.dtype,
    storage_device: int,
    storage_handle: tuple[bytes, bytes],
    storage_size_bytes: int,
    requires_grad: bool,
) -> torch.Tensor:
    """Opens what :func:`reduce_musa_tensor` sent. The device ordinal is argument 6, where torch's CUDA form has it.

    Raises:
        RuntimeError: no such device here, or the sender has freed the memory.
    """
    cpu = torch.UntypedStorage._new_shared_filename_cpu(*storage_handle, storage_size_bytes)
    whole = torch.empty(0, dtype=torch.uint8).set_(cpu)
    # The bytes are the sender's: they count on the device there, not here.
    storage = _C.musa_alias(whole, storage_device, counted=False).untyped_storage()
    tensor = torch._utils._rebuild_tensor(
        torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True),
        tensor_offset,
        tensor_size,
        tensor_stride,
    )
    if tensor_cls is torch.nn.Parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)


def share_storage(tensor: torch.Tensor) -> tuple[tuple[bytes, bytes], int]:
    """Moves the memory behind ``tensor`` into shared memory, once; returns its name and size in bytes."""
    cpu = _C.storage_bytes(tensor).untyped_storage()
    manager, handle, size = cpu._share_filename_cpu_()
    # The memory moved under the musa storage, whose pointer must follow.
    _C.rebind_storage(tensor)
    return (manager, handle), size


def reduce_musa_tensor(tensor: torch.Tensor) -> Rebuild:
    """The (function, arguments) that rebuild ``tensor`` in another process; plain picklable.

    Raises:
        RuntimeError: the tensor is not a leaf but requires grad.
    """
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(
            "Cowardly refusing to serialize non-leaf tensor which requires_grad, since autograd does not support "
            "crossing process boundaries. If you just want to transfer the data, call detach() on the tensor before "
            "serializing (e.g., putting it on the queue)."
        )
    handle, size = share_storage(tensor)
    return (
        rebuild_musa_tensor,
        (
            type(tensor),
            tensor.size(),
            tensor.stride(),
            tensor.storage_offset(),
            type(tensor._typed_storage()),
            tensor.dtype,
            tensor.device.index,
            handle,
            size,
            tensor.requires_grad,
        ),
    )


def rebuild_musa_storage(handle: tuple[bytes, bytes], size: int, device: int) -> torch.UntypedStorage:
    """Opens a storage that another process sent."""
    cpu = torch.UntypedStorage._new_shared_filename_cpu(*handle, size)
    whole = torch.empty(0, dtype=torch.uint8).set_(cpu)
    storage: torch.UntypedStorage = _C.musa_alias(whole, device, counted=False).untyped_storage()
    return storage


def _reduce_tensor(tensor: torch.Tensor) -> Any:
    return reduce_musa_tensor(tensor) if tensor.device.type == "musa" else _original["tensor"](tensor)


def _reduce_storage(storage: Any) -> Any:
    if storage.device.type != "musa":
        return _original["storage"](storage)
    tensor = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    handle, size = share_storage(tensor)
    return rebuild_musa_storage, (handle, size, storage.device.index)


def install() -> None:
    """Teaches torch.multiprocessing about musa; other devices keep torch's own way."""
    if _original:
        return
    _original["tensor"] = reductions.reduce_tensor
    _original["storage"] = reductions.reduce_storage
    functools.update_wrapper(_reduce_tensor, reductions.reduce_tensor)
    functools.update_wrapper(_reduce_storage, reductions.reduce_storage)
    reductions.reduce_tensor = _reduce_tensor
    reductions.reduce_storage = _reduce_storage
    ForkingPickler.register(torch.Tensor, _reduce_tensor)
    ForkingPickler.register(torch.nn.Parameter, _reduce_tensor)
    ForkingPickler.register(torch.UntypedStorage, _reduce_storage)
