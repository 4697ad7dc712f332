"""The tiny model that transformers wrote, read as a repository: its names, its configuration, its hash constants."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from flare.checkpoint.safetensors import INDEX, FolderCheckpoint
from recipes.qwen38.facts import contradictions
from recipes.qwen38.weights import stored_weights
from tests.recipes.qwen38.tiny import FORMATS, GEOMETRY, GOLDEN, WEIGHTS, golden

PARTS = ("tiny_target_weights_0", "tiny_target_weights_1", "tiny_mtp_weights")


def golden_config() -> dict:
    with safe_open(GOLDEN / f"{PARTS[0]}.safetensors", "pt") as file:
        return json.loads(file.metadata()["params"])["config"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("golden")
    places = {}
    for part in PARTS:
        tensors = golden(part)
        save_file(tensors, path / f"{part}.safetensors")
        places |= dict.fromkeys(tensors, f"{part}.safetensors")
    (path / INDEX).write_text(json.dumps({"weight_map": places}))
    (path / "config.json").write_text(json.dumps({"model_type": "qwen4_exp", "text_config": golden_config()}))
    return path


def test_every_weight_of_the_golden_model_is_read_under_its_declared_name(folder):
    read = stored_weights(FolderCheckpoint(folder), GEOMETRY, FORMATS, drafter=True)
    for name, tensor in WEIGHTS.items():
        assert torch.equal(read(name), tensor), name


CHANGED = {
    "num_experts_per_tok": 3,
    "linear_num_key_heads": 1,
    "indexer_budget": 32,
    "rms_norm_eps": 1e-5,
    "output_gate_type": "silu",
    "norm_topk_prob": False,
    "eos_token_id": 94,
    "seed": 1,
    "layer_types": ["linear_attention"] * 4,
    "ple_layer_ids": [3],
}
TURNED = {"rope_theta": 1e6, "partial_rotary_factor": 0.25, "rope_type": "yarn"}


@pytest.mark.parametrize(("key", "value"), CHANGED.items())
def test_a_changed_fact_of_the_golden_configuration_is_named(key, value):
    config = {"model_type": "qwen4_exp", "text_config": golden_config()}
    assert contradictions(config, GEOMETRY) == []
    config["text_config"][key] = value
    (found,) = contradictions(config, GEOMETRY)
    assert found.startswith(key)


@pytest.mark.parametrize(("key", "value"), TURNED.items())
def test_a_changed_angle_is_named(key, value):
    config = {"model_type": "qwen4_exp", "text_config": golden_config()}
    config["text_config"]["rope_parameters"][key] = value
    assert len(contradictions(config, GEOMETRY)) == 1


def test_other_names_of_sparse_layers_mean_the_same():
    config = {"model_type": "qwen4_exp", "text_config": golden_config()}
    config["text_config"]["layer_types"][3] = "qwen_sparse_attention"
    assert contradictions(config, GEOMETRY) == []


def test_another_architecture_is_refused():
    assert contradictions({"model_type": "llama"}, GEOMETRY) == ["model_type=llama, not qwen4_exp"]
