"""A Llama-type checkpoint under declared names: the same tensors from both file formats, exact refusals."""

from types import SimpleNamespace

import pytest
import torch

from flare.checkpoint.gguf import GgufCheckpoint
from flare.checkpoint.safetensors import FolderCheckpoint
from flare.errors import CheckpointError
from recipes.smollm2.facts import geometry_of
from recipes.smollm2.weights import StoredWeights, stored_weights
from tests.checkpoint.copies import write_folder_copy
from tests.checkpoint.tiny import GEOMETRY, weights, write_folder, write_gguf


@pytest.mark.parametrize("tied", [False, True])
def test_both_formats_give_the_declared_tensors(tmp_path, tied):
    tensors, g = weights(tied), SimpleNamespace(**vars(GEOMETRY) | {"tied": tied})
    folder = StoredWeights(g, FolderCheckpoint(write_folder(tmp_path / "hf", tensors)))
    file = StoredWeights(g, GgufCheckpoint(write_gguf(tmp_path / "m.gguf", tensors)))
    p = "model.layers.1."
    want = {
        "embed": tensors["model.embed_tokens.weight"],
        "norm": tensors["model.norm.weight"],
        "layers.1.qkv": torch.cat([tensors[f"{p}self_attn.{part}_proj.weight"] for part in "qkv"]),
        "layers.1.gate_up": torch.cat([tensors[f"{p}mlp.{part}_proj.weight"] for part in ("gate", "up")]),
        "layers.1.output": tensors[p + "self_attn.o_proj.weight"],
        "layers.1.down": tensors[p + "mlp.down_proj.weight"],
        "layers.1.attention_norm": tensors[p + "input_layernorm.weight"],
        "layers.1.mlp_norm": tensors[p + "post_attention_layernorm.weight"],
    } | ({} if tied else {"head": tensors["lm_head.weight"]})
    for seen in (folder, file):
        read = stored_weights(seen.checkpoint, g)
        assert torch.equal(read("embed"), want["embed"])
        assert len(seen.parts) == 2 + (not tied) + 6 * g.layers
        assert want.keys() <= seen.parts.keys()
        for name, tensor in want.items():
            assert torch.equal(seen.read(name), tensor), name
    assert all(torch.equal(folder.read(name), file.read(name)) for name in folder.parts)


@pytest.mark.parametrize(("kind", "tolerance"), [("Q8_0", 0.04), ("Q4_1", 0.6), ("BF16", 0.0), ("F16", 0.0)])
def test_quantised_files_pass_the_check_and_read_close(tmp_path, kind, tolerance):
    tensors = weights()
    seen = StoredWeights(GEOMETRY, GgufCheckpoint(write_gguf(tmp_path / "q.gguf", tensors, quantised=kind)))
    seen.check()
    want = torch.cat([tensors[f"model.layers.0.self_attn.{part}_proj.weight"] for part in "qkv"])
    got = seen.read("layers.0.qkv").float()
    assert (got - want).abs().max() <= tolerance


def test_the_real_file_is_what_its_geometry_declares(smollm2_gguf):
    checkpoint = GgufCheckpoint(smollm2_gguf)
    facts = geometry_of(checkpoint)
    assert facts == {
        "hidden": 576, "layers": 30, "query_heads": 9, "kv_heads": 3, "head_dim": 64, "ffn": 1536, "vocab": 49152,
        "rope_base": 100000.0, "norm_eps": 1e-5, "tied": True, "context": 8192,
    }  # fmt: skip
    seen = StoredWeights(SimpleNamespace(**facts), checkpoint)
    seen.check()
    assert seen.read("layers.29.qkv").shape == (15 * 64, 576)


def test_a_safetensors_copy_of_the_real_file_reads_the_same(tmp_path, smollm2_gguf):
    file, copy = GgufCheckpoint(smollm2_gguf), FolderCheckpoint(write_folder_copy(smollm2_gguf, tmp_path, layers=2))
    facts = geometry_of(copy)
    assert facts == geometry_of(file) | {"layers": 2}
    one, two = (StoredWeights(SimpleNamespace(**facts), checkpoint) for checkpoint in (file, copy))
    two.check()
    assert all(torch.equal(one.read(name), two.read(name)) for name in one.parts)
    text = "a  12 🌊 <|im_start|>"
    assert copy.vocabulary().encode(text) == file.vocabulary().encode(text)
    assert copy.vocabulary().eos_ids == file.vocabulary().eos_ids


@pytest.mark.parametrize("tied", [False, True])
def test_both_formats_state_the_same_geometry(tmp_path, tied):
    tensors = weights(tied)
    folder = geometry_of(FolderCheckpoint(write_folder(tmp_path / "hf", tensors)))
    assert folder == geometry_of(GgufCheckpoint(write_gguf(tmp_path / "m.gguf", tensors)))
    assert folder | vars(GEOMETRY) | {"tied": tied} == folder


def test_transformers_5_keeps_the_base_with_the_other_rotary_parameters(tmp_path):
    changes = {"rope_theta": None, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}
    assert geometry_of(FolderCheckpoint(write_folder(tmp_path, weights(), **changes)))["rope_base"] == 5e5


@pytest.mark.parametrize(
    ("key", "value", "cause"),
    [
        ("model_type", "glm4", "model_type=glm4"),
        ("rope_scaling", {"rope_type": "llama3", "factor": 8.0}, "rope_scaling=llama3"),
        ("rope_scaling", {"type": "linear", "factor": 2.0}, "rope_scaling=linear"),
        ("partial_rotary_factor", 0.5, "partial_rotary_factor=0.5"),
        ("attention_bias", True, "attention_bias=True"),
        ("hidden_act", "gelu", "hidden_act=gelu"),
        ("quantization_config", {"quant_method": "gptq"}, "is quantised"),
        ("num_hidden_layers", None, "does not state num_hidden_layers"),
        ("num_attention_heads", 0, "num_attention_heads=0"),
        ("intermediate_size", "64", "intermediate_size=64"),
    ],
)
def test_a_folder_of_another_kind_is_refused(tmp_path, key, value, cause):
    with pytest.raises(CheckpointError, match=cause):
        geometry_of(FolderCheckpoint(write_folder(tmp_path, weights(), **{key: value})))


@pytest.mark.parametrize(
    ("key", "value", "cause"),
    [("llama__expert_count", 8, "mixture of experts"), ("llama__rope__scaling__type", "yarn", "scaling.type=yarn"),
     ("llama__rope__dimension_count", 4, "turns whole heads")],
)  # fmt: skip
def test_a_gguf_file_of_another_kind_is_refused(tmp_path, key, value, cause):
    with pytest.raises(CheckpointError, match=cause):
        geometry_of(GgufCheckpoint(write_gguf(tmp_path / "m.gguf", weights(), **{key: value})))


@pytest.mark.parametrize(("factor", "refused"), [(1.0, False), (8.0, True)])
def test_frequency_divisors_are_ignored_only_where_they_are_ones(tmp_path, factor, refused):
    tensors = weights() | {"rope_freqs.weight": torch.full((4,), factor)}
    checkpoint = GgufCheckpoint(write_gguf(tmp_path / "m.gguf", tensors))
    StoredWeights(GEOMETRY, checkpoint).check()
    if refused:
        with pytest.raises(CheckpointError, match="does not scale rotary"):
            geometry_of(checkpoint)
    else:
        geometry_of(checkpoint)


def test_rotary_buffers_and_the_copy_of_a_tied_head_are_ignored(tmp_path):
    tensors = weights() | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    tied = SimpleNamespace(**vars(GEOMETRY) | {"tied": True})
    StoredWeights(tied, FolderCheckpoint(write_folder(tmp_path, tensors))).check()


def test_biases_wrong_sizes_and_absent_layers_are_one_report(tmp_path):
    tensors = weights() | {"model.layers.0.self_attn.q_proj.bias": torch.zeros(32)}
    tensors["model.norm.weight"] = torch.zeros(33)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.layers.0.mlp.up_proj.weight"] = torch.zeros(64, 32, dtype=torch.float8_e4m3fn)
    with pytest.raises(CheckpointError) as caught:
        stored_weights(FolderCheckpoint(write_folder(tmp_path, tensors)), GEOMETRY)
    for part in (
        "1 missing: model.layers.1.mlp.up_proj.weight [64, 32]",
        "1 not declared: model.layers.0.self_attn.q_proj.bias [32]",
        "model.norm.weight [33], declared [32]",
        "model.layers.0.mlp.up_proj.weight (float8_e4m3fn)",
    ):
        assert part in str(caught.value)
