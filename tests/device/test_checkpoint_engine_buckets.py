from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace

import pytest
import torch

from verl_musa.device import checkpoint_engine_buckets as buckets
from verl_musa.device.checkpoint_engine_buckets import Header, Packer, Piece, Unpacker, digest

CPU = torch.device("cpu")
Named = tuple[str, torch.Tensor]
# Every kind of trouble: odd sizes and dtypes that misalign what follows, a scalar, nothing at all, a view with strides.
WEIGHTS: list[Named] = [
    ("odd", torch.arange(7, dtype=torch.uint8)),
    ("half", torch.randn(3, 5, dtype=torch.float32).to(torch.bfloat16)),
    ("wide", torch.randn(11, dtype=torch.float64)),
    ("scalar", torch.tensor(2.5)),
    ("empty", torch.empty(0, 4)),
    ("strided", torch.arange(24.0).reshape(4, 6).t()),
    ("large", torch.randn(1000)),
    ("flag", torch.tensor([True, False, True])),
]


async def stream(weights: Iterable[Named]) -> AsyncIterator[Named]:
    for named in weights:
        yield named


def packed(
    weights: Iterable[Named], size: int, *, checksum: bool = True
) -> list[tuple[Header, torch.Tensor]]:
    async def collect() -> list[tuple[Header, torch.Tensor]]:
        packer = Packer(size, CPU, checksum=checksum)
        # A copy of each: the buffer is filled anew.
        return [(header, bucket.clone()) async for header, bucket in packer.buckets(stream(weights))]

    return asyncio.run(collect())


def unpacked(sent: Iterable[tuple[Header, torch.Tensor]]) -> list[Named]:
    unpacker = Unpacker()
    return [named for header, bucket in sent for named in unpacker.tensors(header, bucket)]


@pytest.mark.parametrize("size", [64, 128, 1024, 1 << 20])
def test_all_weights_come_back_bit_for_bit(size: int) -> None:
    sent = packed(WEIGHTS, size)
    for (name, tensor), (found_name, found) in zip(WEIGHTS, unpacked(sent), strict=True):
        assert found_name == name
        assert found.dtype == tensor.dtype
        assert found.shape == tensor.shape
        assert torch.equal(found, tensor)
    assert [header.last for header, _ in sent] == [False] * (len(sent) - 1) + [True]
    assert all(header.length == bucket.numel() <= size for header, bucket in sent)


def test_small_buckets_split_large_tensors_and_count_them_once() -> None:
    sent = packed(WEIGHTS, 64)
    pieces = [piece for header, _ in sent for piece in header.pieces if piece.name == "large"]
    assert len(pieces) == -(-4000 // 64)
    totals = [buckets.summary(header) for header, _ in sent]
    assert sum(total["tensors"] for total in totals) == len(WEIGHTS)
    assert sum(total["bytes"] for total in totals) == sum(tensor.nbytes for _, tensor in WEIGHTS)


def test_a_model_without_weights_is_one_last_empty_bucket() -> None:
    ((header, bucket),) = packed([], 64)
    assert header == Header((), 0, last=True, digest=None)
    assert bucket.numel() == 0


def test_headers_survive_the_wire() -> None:
    for header, _ in packed(WEIGHTS, 128):
        assert Header.loads(header.dumps()) == header


def test_a_bucket_too_small_for_anything_is_refused() -> None:
    with pytest.raises(ValueError, match="expected at least 64"):
        Packer(63, CPU, checksum=False)


def test_without_checksums_there_are_none() -> None:
    assert all(header.digest is None for header, _ in packed(WEIGHTS, 128, checksum=False))


def test_a_missing_piece_is_noticed() -> None:
    sent = packed([("large", torch.randn(1000))], 1024)
    with pytest.raises(
        ValueError, match="found bytes 2048 and on of 'large'; expected 1024 and on of 'large'"
    ):
        unpacked([sent[0], *sent[2:]])


def test_another_tensor_within_a_tensor_is_noticed() -> None:
    (first, data), *_ = packed([("large", torch.randn(1000))], 1024)
    other = replace(first.pieces[0], name="other", start=1024)
    with pytest.raises(ValueError, match="of 'other'; expected"):
        unpacked([(first, data), (replace(first, pieces=(other,)), data)])


def test_a_stream_that_ends_within_a_tensor_is_noticed() -> None:
    (first, data), *_ = packed([("large", torch.randn(1000))], 1024)
    with pytest.raises(ValueError, match="expected the rest of 'large'"):
        unpacked([(replace(first, last=True), data)])


def test_an_unknown_dtype_is_named() -> None:
    header = Header((Piece("w", "float33", (1,), 0, 4, 0),), 64, last=True, digest=None)
    with pytest.raises(ValueError, match="float33"):
        unpacked([(header, torch.zeros(64, dtype=torch.uint8))])


def test_the_digest_sees_every_byte_and_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "CHUNK_WORDS", 5)  # several chunks, the last one short
    data = torch.randint(0, 256, (128,), dtype=torch.uint8)
    plain = digest(data)
    for index in range(128):
        changed = data.clone()
        changed[index] ^= 1
        assert digest(changed) != plain
    words = data.view(torch.int32)
    swapped = words.clone()
    swapped[[3, 20]] = words[[20, 3]]
    assert digest(swapped.view(torch.uint8)) != plain


def test_the_digest_does_not_depend_on_its_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    data = torch.randint(0, 256, (4096,), dtype=torch.uint8)
    whole = digest(data)
    monkeypatch.setattr(buckets, "CHUNK_WORDS", 7)
    assert digest(data) == whole
    assert 0 <= whole < 1 << 64
