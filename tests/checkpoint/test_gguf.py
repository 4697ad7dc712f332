"""GGUF files: the same header and values as the gguf package reads, and sentences for broken ones."""

import gguf
import numpy as np
import pytest
import torch

from flare.checkpoint.gguf import GgufCheckpoint
from flare.errors import CheckpointError
from tests.checkpoint.tiny import weights, write_gguf


@pytest.fixture
def tiny(tmp_path):
    return write_gguf(tmp_path / "tiny.gguf", weights())


def test_header_equals_the_gguf_package(tiny):
    ours, theirs = GgufCheckpoint(tiny), gguf.GGUFReader(tiny)
    scalars = {name: field.contents() for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert ours.config == {name: value for name, value in scalars.items() if not isinstance(value, list)}
    assert {name: header.shape for name, header in ours.headers.items()} == {
        tensor.name: tuple(int(extent) for extent in reversed(tensor.shape)) for tensor in theirs.tensors
    }
    assert {name: header.bytes for name, header in ours.headers.items()} == {
        tensor.name: int(tensor.n_bytes) for tensor in theirs.tensors
    }


def test_the_real_file_reads_as_the_gguf_package_reads_it(smollm2_gguf):
    ours, theirs = GgufCheckpoint(smollm2_gguf), gguf.GGUFReader(smollm2_gguf)
    assert list(ours.headers) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors[:6]:
        want = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(ours.headers[tensor.name].shape)
        got = ours.read(tensor.name)
        assert got.dtype == torch.float32
        np.testing.assert_array_equal(got.numpy(), want)
    assert ours.headers["token_embd.weight"].format == "q8_0"
    assert ours.headers["blk.0.attn_q.weight"].format == "q4_1"
    assert ours.headers["token_embd.weight"].shape == (49152, 576)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.float32])
def test_plain_formats_keep_their_dtype_and_every_bit(tmp_path, dtype):
    tensors = {name: tensor.to(dtype) for name, tensor in weights().items()}
    checkpoint = GgufCheckpoint(write_gguf(tmp_path / "plain.gguf", tensors))
    got = checkpoint.read("token_embd.weight")
    assert got.dtype == dtype and checkpoint.headers["token_embd.weight"].format == str(dtype).removeprefix("torch.")
    assert torch.equal(got, tensors["model.embed_tokens.weight"])


def test_bfloat16_is_read_as_stored(tmp_path):
    checkpoint = GgufCheckpoint(write_gguf(tmp_path / "b.gguf", weights(), quantised="BF16"))
    got = checkpoint.read("token_embd.weight")
    assert got.dtype == torch.bfloat16 and torch.equal(got.float(), weights()["model.embed_tokens.weight"])


def test_a_read_tensor_can_be_written_without_touching_the_file(tiny):
    checkpoint = GgufCheckpoint(tiny)
    checkpoint.read("output_norm.weight").zero_()
    assert torch.equal(checkpoint.read("output_norm.weight"), weights()["model.norm.weight"])


@pytest.mark.parametrize(
    ("content", "cause"),
    [(b"", "is empty"), (b"PK\x03\x04 zip", "is not a GGUF file"), (b"GGUF\x03\x00", "is truncated"),
     (b"GGUF\x00\x00\x00\x03" + bytes(16), "version")],
)  # fmt: skip
def test_what_is_no_gguf_is_refused_by_cause(tmp_path, content, cause):
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=cause) as caught:
        GgufCheckpoint(path)
    assert str(path) in str(caught.value) and str(caught.value).count("\n") == 0


def test_every_truncation_is_found_when_opening(tiny):
    whole = tiny.read_bytes()
    cut = tiny.with_name("cut.gguf")
    # The last tensor ends where the file does, up to the padding of the alignment.
    for size in [*range(5, 4000, 97), len(whole) // 2, len(whole) - 64]:
        cut.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match="is truncated"):
            GgufCheckpoint(cut)


def test_a_missing_file_a_folder_and_one_part_of_several_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="No such file"):
        GgufCheckpoint(tmp_path / "none.gguf")
    with pytest.raises(CheckpointError, match="directory"):
        GgufCheckpoint(tmp_path)
    with pytest.raises(CheckpointError, match="one of several parts"):
        GgufCheckpoint(write_gguf(tmp_path / "part.gguf", weights(), split__count=3))


def test_an_unknown_tensor_is_named(tiny):
    with pytest.raises(CheckpointError, match=r"has no tensor blk\.9"):
        GgufCheckpoint(tiny).read("blk.9")


@pytest.mark.parametrize(("key", "value"), [("tokenizer__ggml__model", "llama"), ("tokenizer__ggml__pre", "llama-bpe")])
def test_a_tokenizer_that_cannot_be_rebuilt_exactly_is_refused(tmp_path, key, value):
    path = write_gguf(tmp_path / "t.gguf", {}, **{key: value})
    with pytest.raises(CheckpointError, match="cannot be rebuilt exactly"):
        GgufCheckpoint(path).vocabulary()
