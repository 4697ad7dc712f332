"""Hugging Face folders, given by path or found in Hugging Face's cache: whole, sharded, broken, absent."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch

from flare.checkpoint import source as source_module
from flare.checkpoint.safetensors import FolderCheckpoint
from flare.checkpoint.source import Source, locate
from flare.errors import CheckpointError
from tests.checkpoint.tiny import TEMPLATE, weights, write_folder, write_gguf


class HubError(Exception):
    """Stands for the errors of huggingface_hub, which are no OSError in every version."""


HUB_ERRORS = SimpleNamespace(HfHubHTTPError=HubError, HFValidationError=HubError, LocalEntryNotFoundError=HubError)


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "model", weights())


@pytest.mark.parametrize("shards", [1, 3])
def test_every_tensor_is_read_as_it_was_written(tmp_path, shards):
    tensors = weights()
    tensors["model.norm.weight"] = tensors["model.norm.weight"].bfloat16()
    checkpoint = FolderCheckpoint(write_folder(tmp_path, tensors, shards))
    assert set(checkpoint.headers) == set(tensors)
    for name, tensor in tensors.items():
        header = checkpoint.headers[name]
        assert (header.shape, header.bytes) == (tuple(tensor.shape), tensor.nbytes)
        assert header.format == str(tensor.dtype).removeprefix("torch.")
        assert torch.equal(checkpoint.read(name), tensor) and checkpoint.read(name).dtype == tensor.dtype


def test_folder_and_gguf_give_the_same_vocabulary(tmp_path, folder):
    one = FolderCheckpoint(folder).vocabulary()
    two = locate(Source("path", path=str(write_gguf(tmp_path / "m.gguf", weights())))).vocabulary()
    text = "hello 123  🌊 <|im_start|>the\n"
    assert one.encode(text) == two.encode(text)
    assert (one.eos_ids, one.bos_id, one.add_bos) == (two.eos_ids, two.bos_id, two.add_bos) == ((2, 0), 1, False)
    assert one.chat_template == two.chat_template == TEMPLATE


def test_end_tokens_come_from_all_files_that_name_them(folder):
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 2]}))
    assert FolderCheckpoint(folder).vocabulary().eos_ids == (7, 2, 0)


def test_a_post_processor_that_begins_sequences_is_honoured(folder):
    document = json.loads((folder / "tokenizer.json").read_text())
    document["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
    }
    (folder / "tokenizer.json").write_text(json.dumps(document))
    vocabulary = FolderCheckpoint(folder).vocabulary()
    assert vocabulary.add_bos and vocabulary.encode("h")[0] == 1 and len(vocabulary.encode("h")) == 2


def test_a_template_file_wins_over_the_configuration(folder):
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    assert FolderCheckpoint(folder).vocabulary().render([{"role": "user", "content": "hi"}]) == "hi!"


@pytest.mark.parametrize(
    ("file", "content", "cause"),
    [
        ("config.json", None, "has no config.json"),
        ("config.json", b"{", "not valid JSON"),
        ("config.json", b"[]", "no JSON object"),
        ("config.json", b"\xff\xfe", "not valid JSON"),
        ("tokenizer.json", None, "has no tokenizer.json"),
        ("tokenizer.json", b"{}", "is not a tokenizer"),
        ("tokenizer.json", b"", "is not a tokenizer"),
        ("model.safetensors", None, "has no weights"),
        ("model.safetensors", b"", "it is empty"),
        ("model.safetensors", b"\x08\x00\x00\x00\x00\x00\x00\x00{}", "Cannot read"),
    ],
)
def test_a_missing_or_broken_file_is_named_with_its_cause(folder, file, content, cause):
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_bytes(content)
    with pytest.raises(CheckpointError, match=cause) as caught:
        FolderCheckpoint(folder).vocabulary()
    assert file in str(caught.value) and "\n" not in str(caught.value)


def test_truncated_weights_are_found_when_opening(folder):
    weights_file = folder / "model.safetensors"
    weights_file.write_bytes(weights_file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"Cannot read .*model\.safetensors"):
        FolderCheckpoint(folder)


def test_a_missing_shard_is_named(tmp_path):
    folder = write_folder(tmp_path, weights(), shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match="lacks 1 of 3 shards"):
        FolderCheckpoint(folder)


def test_pickled_weights_are_not_read(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin, which can run code"):
        FolderCheckpoint(folder)


def test_a_path_is_a_file_or_a_folder_or_a_sentence(tmp_path, folder):
    assert locate(Source("path", path=str(folder))).layout == "huggingface"
    assert locate(Source("path", path=str(write_gguf(tmp_path / "m.gguf", weights())))).layout == "gguf"
    with pytest.raises(CheckpointError, match="does not exist"):
        locate(Source("path", path=str(tmp_path / "none")))
    with pytest.raises(CheckpointError, match=r"needs checkpoint\.path"):
        locate(Source("path"))


def test_a_hub_id_is_downloaded_where_the_cache_has_none(hub_home, folder, monkeypatch):
    asked = []

    def snapshot_download(id, revision, allow_patterns):
        asked.append((id, revision))
        return str(folder)

    hub = SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setattr(source_module, "find_spec", lambda name: hub)
    monkeypatch.setattr(source_module, "import_module", lambda name: HUB_ERRORS if name.endswith("errors") else hub)
    assert locate(Source("hub", id="org/name", revision="v2")).origin == str(folder)
    assert asked == [("org/name", "v2")]


@pytest.mark.parametrize("error", [ConnectionError("no route\nmore"), HubError("404 not found")])
def test_a_failed_download_says_what_else_can_be_done(hub_home, monkeypatch, error):
    def snapshot_download(id, revision, allow_patterns):
        raise error

    hub = SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setattr(source_module, "find_spec", lambda name: hub)
    monkeypatch.setattr(source_module, "import_module", lambda name: HUB_ERRORS if name.endswith("errors") else hub)
    with pytest.raises(CheckpointError, match=r"no route;|404 not found;") as caught:
        locate(Source("hub", id="org/name"))
    assert "checkpoint.source=path" in str(caught.value) and "\n" not in str(caught.value)


def in_hub_cache(home, folder, commit="abc123"):
    repository = home / "hub" / "models--org--name"
    shutil.copytree(folder, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    return repository / "snapshots" / commit


@pytest.fixture
def hub_home(tmp_path, monkeypatch):
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return tmp_path / "hf"


@pytest.mark.parametrize("revision", [None, "main", "abc123"])
def test_a_hub_id_is_found_in_the_local_cache(hub_home, folder, revision):
    snapshot = in_hub_cache(hub_home, folder)
    assert locate(Source("hub", id="org/name", revision=revision)).origin == str(snapshot)


def test_an_incomplete_snapshot_is_not_used(hub_home, folder, monkeypatch):
    snapshot = in_hub_cache(hub_home, folder)
    (snapshot / "tokenizer.json").unlink()
    monkeypatch.setattr(source_module, "find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match="install huggingface_hub") as caught:
        locate(Source("hub", id="org/name"))
    assert "checkpoint.source=path" in str(caught.value)


def test_a_damaged_shard_beside_whole_ones_waits_for_the_report(tmp_path):
    folder = write_folder(tmp_path, weights(), shards=3)
    shard = folder / "model-00002-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    checkpoint = FolderCheckpoint(folder)
    (damage,) = checkpoint.damaged
    assert "model-00002-of-00003.safetensors" in damage.cause
    assert damage.names == set(weights()) - set(checkpoint.headers) != set()
