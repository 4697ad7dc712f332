"""Whatever is wrong with a repository, in any mix, is one message before anything is read."""

import json
import random
import shutil

import pytest
import torch

from flare.checkpoint.safetensors import FolderCheckpoint
from flare.errors import CheckpointError
from recipes.qwen38.geometry import Formats
from recipes.qwen38.weights import stored_weights
from tests.recipes.qwen38.small import PACKED, PREFIX, SMALL, add, change, edit_json, stored, written

EXPERT = f"{PREFIX}layers.2.mlp.experts.5.up_proj"
HASH = f"{PREFIX}layers.1.ple.ple_embedding"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return written(tmp_path_factory.mktemp("qwen38") / "model")


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def report(folder, formats=PACKED, geometry=SMALL) -> str:
    with pytest.raises(CheckpointError) as caught:
        stored_weights(FolderCheckpoint(folder), geometry, formats, drafter=True)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def replaced(name, tensor):
    return lambda folder: change(folder, lambda one, stored: tensor if one == name else stored)


def dropped(name):
    return replaced(name, None)


def truncated(folder):
    """The shard that holds the embedding, cut short."""
    shard = (
        folder
        / json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"][
            f"{PREFIX}embed_tokens.weight"
        ]
    )
    shard.write_bytes(shard.read_bytes()[:-1])


# What is done to the folder, and what the message must say; `truncated` goes last, since others rewrite shards.
FAULTS = {
    "missing": (dropped("mtp.fc_hidden.weight"), "mtp.fc_hidden.weight [32, 32]"),
    "missing expert": (dropped(f"{EXPERT}.weight_scale"), f"{EXPERT}.weight_scale [16, 2]"),
    "extra": (lambda folder: add(folder, {"mtp.norm.weight": torch.zeros(3)}), "1 not declared: mtp.norm.weight [3]"),
    "mis-shaped": (
        replaced(f"{EXPERT}.weight", torch.zeros(16, 8, dtype=torch.uint8)),
        f"{EXPERT}.weight [16, 8], declared [16, 16]",
    ),
    "format": (
        replaced(f"{PREFIX}layers.0.linear_attn.A_log", torch.zeros(6, dtype=torch.int8)),
        f"{PREFIX}layers.0.linear_attn.A_log (int8)",
    ),
    "hash": (
        replaced(f"{HASH}.layer_multipliers", torch.tensor([1, 3, 5])),
        f"{HASH}.layer_multipliers holds [1, 3, 5]",
    ),
    "fact": (
        lambda folder: edit_json(folder / "config.json", lambda it: it["text_config"].update(num_experts_per_tok=4)),
        "num_experts_per_tok=4 (recipe.target.geometry.experts_per_token=2)",
    ),
    "metadata": (
        lambda folder: edit_json(
            folder / "config.json",
            lambda it: it["quantization_config"]["quantized_layers"].pop(f"{PREFIX}layers.0.mlp.experts"),
        ),
        f"{PREFIX}layers.0.mlp.experts is unquantised, stored as nvfp4_input_scale",
    ),
    "truncated": (truncated, "1 damaged: Cannot read"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_alone_is_the_only_one_reported(copy, fault):
    damage, sentence = FAULTS[fault]
    damage(copy)
    (difference,) = stored(copy).differences()
    assert sentence in difference and difference in report(copy)


@pytest.mark.parametrize("seed", range(6))
def test_faults_in_any_mix_are_one_report(copy, seed):
    # A truncated shard could be the one that another fault is in.
    chosen = random.Random(seed).sample([name for name in FAULTS if name != "truncated"], 4)
    for name in chosen:
        FAULTS[name][0](copy)
    message = report(copy)
    assert all(FAULTS[name][1] in message for name in chosen)


def test_tensors_of_a_damaged_shard_are_not_called_missing(copy):
    dropped("mtp.fc_hidden.weight")(copy)
    truncated(copy)
    message = report(copy)
    assert "1 damaged" in message and "1 missing: mtp.fc_hidden.weight" in message


def test_a_folder_with_only_damaged_shards_is_refused_when_opened(copy):
    for shard in copy.glob("*.safetensors"):
        shard.write_bytes(b"")
    with pytest.raises(CheckpointError, match="it is empty"):
        FolderCheckpoint(copy)


def test_another_format_names_the_override_that_serves_it(folder):
    message = report(folder, Formats(experts="dense", mtp_experts="nvfp4", ple="nvfp4"))
    assert "layers.0.mlp.experts (recipe.target.formats.experts=nvfp4)" in message
    assert "ngram_embedding (recipe.target.formats.ple=fp8)" in message
    assert "mtp_experts" not in message


def test_one_wrong_tensor_does_not_turn_a_module_into_another_form(copy):
    replaced(f"{EXPERT}.weight", torch.zeros(16, 32))(copy)
    message = report(copy)
    assert f"1 of another shape: {EXPERT}.weight [16, 32], declared [16, 16]" in message
    assert "missing" not in message and "another format" not in message


def test_another_geometry_is_told_by_shapes_and_facts(folder):
    message = report(folder, geometry=SMALL.model_copy(update={"hidden": 48, "rope_theta": 1e6}))
    assert "of another shape" in message and "hidden_size=32 (recipe.target.geometry.hidden=48)" in message
    assert "rope_theta=10000000.0 (recipe.target.geometry.rope_theta=1000000.0)" in message


def test_nothing_is_read_before_the_report(copy, monkeypatch):
    dropped("lm_head.weight")(copy)
    names = []
    read = FolderCheckpoint.read
    monkeypatch.setattr(FolderCheckpoint, "read", lambda self, name: names.append(name) or read(self, name))
    report(copy)
    assert set(names) <= {
        f"{HASH}.{name}" for name in ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets")
    }
