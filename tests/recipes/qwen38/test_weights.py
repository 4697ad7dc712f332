"""What a Qwen3.8 repository holds, by formula, and how each stored variant reaches the declared names."""

import re
import shutil

import pytest
import torch

from flare.checkpoint.safetensors import FolderCheckpoint
from flare.errors import CheckpointError
from recipes.qwen38.geometry import Formats
from recipes.qwen38.layout import mtp_tensors, repository_forms, target_tensors
from recipes.qwen38.weights import stored_weights
from tests.recipes.qwen38.small import PACKED, PREFIX, REAL, SMALL, add, change, edit_json, stored, tensors_of, written


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return written(tmp_path_factory.mktemp("qwen38") / "model")


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def test_the_mtp_layer_has_4637_tensors_in_1596720640_bytes():
    tensors = mtp_tensors(REAL, repository_forms(REAL, PACKED))
    assert len(tensors) == 29 + 3 * 512 * 3 == 4637
    assert sum(tensor.format == "uint8" for tensor in tensors.values()) == 1536
    experts = 3 * 512 * (2560 * 640 * 9 // 16 + 4)
    assert sum(tensor.bytes for tensor in tensors.values()) == experts + 2 * 90_568_448 == 1_596_720_640


def test_the_target_has_the_documented_tensors_of_each_layer_kind():
    tensors = target_tensors(REAL, repository_forms(REAL, PACKED))
    counts = [3 + 2, 48 * 8, 36 * 9, 12 * 9, 48 * 5, 48 * 512 * 3 * 4, 6 + 3 + 128 + 1]
    assert len(tensors) == sum(counts)
    kinds = {re.sub(r"\d+", "#", name.removeprefix(PREFIX)): tensor for name, tensor in tensors.items()}
    shapes = {
        "layers.#.linear_attn.in_proj_qkv.weight": (10240, 2560),
        "layers.#.linear_attn.conv#d.weight": (10240, 1, 4),
        "layers.#.self_attn.q_proj.weight": (12288, 2560),
        "layers.#.self_attn.indexer.index_qk_proj.weight": (640, 2560),
        "layers.#.mlp.experts.#.gate_proj.weight": (640, 1280),
        "layers.#.mlp.experts.#.down_proj.weight_scale": (2560, 40),
        "layers.#.ple.ple_embedding.ngram_embedding.shard_#.weight": (2_500_012, 160),
        "layers.#.mlp_hyper_connection.block_inject_weight.weight": (4, 10240),
        "lm_head.weight": (248320, 2560),
    }
    assert {name: kinds[name].shape for name in shapes} == shapes
    full = {int(name.split(".")[3]) for name in tensors if ".self_attn." in name}
    assert full == set(range(3, 48, 4))


def test_packed_tensors_keep_their_bytes_and_order(folder):
    tensors, read = tensors_of(folder), stored(folder).read
    for declared in (
        "layers.0.mlp.experts.gate_proj",
        "layers.3.mlp.experts.down_proj",
        "mtp.layers.0.mlp.experts.up_proj",
    ):
        module, projection = declared.rsplit(".", 1)
        place = module if module.startswith("mtp.") else PREFIX + module
        for kind, dtype in (
            ("weight", torch.uint8),
            ("weight_scale", torch.float8_e4m3fn),
            ("weight_scale_2", torch.float32),
        ):
            whole = read(f"{declared}.{kind}")
            assert whole.dtype == dtype and len(whole) == SMALL.experts
            for expert in range(SMALL.experts):
                one = tensors[f"{place}.{expert}.{projection}.{kind}"].reshape(whole.shape[1:])
                assert torch.equal(whole[expert].float(), one.float())


def test_table_shards_are_joined_in_numeric_order(tmp_path):
    geometry = SMALL.model_copy(update={"ngram_shards": 12})  # shard_10 sorts before shard_2 by name
    folder = written(tmp_path / "m", geometry=geometry)
    table, tensors = "layers.1.ple.ple_embedding.ngram_embedding", tensors_of(folder)
    whole = stored(folder, geometry=geometry).read(f"{table}.weight")
    parts = [tensors[f"{PREFIX}{table}.shard_{index}.weight"] for index in range(12)]
    assert torch.equal(whole.view(torch.uint8), torch.cat([part.view(torch.uint8) for part in parts]))
    assert whole.shape == (240, 16)


def test_the_last_table_shard_may_be_shorter():
    geometry = SMALL.model_copy(update={"ngram_shards": 7})
    assert geometry.shard_rows(0) == (35, 35, 35, 35, 35, 35, 30)


@pytest.mark.parametrize("layout", ["separate", "fused"])
def test_unquantised_experts_are_read_from_both_layouts(folder, copy, layout):
    originals, formats = tensors_of(folder), Formats(experts="dense", mtp_experts="dense", ple="fp8")
    expected, fused = {}, {}
    for module in [*(f"layers.{layer}.mlp.experts" for layer in range(4)), "mtp.layers.0.mlp.experts"]:
        place = module if module.startswith("mtp.") else PREFIX + module
        for projection, shape in (("gate_proj", (8, 16, 32)), ("up_proj", (8, 16, 32)), ("down_proj", (8, 32, 16))):
            values = torch.randn(shape).bfloat16()
            expected[f"{module}.{projection}.weight"] = values
            if layout == "separate":
                fused |= {f"{place}.{expert}.{projection}.weight": one.clone() for expert, one in enumerate(values)}
        if layout == "fused":
            gate, up = expected[f"{module}.gate_proj.weight"], expected[f"{module}.up_proj.weight"]
            fused[f"{place}.gate_up_proj"] = torch.cat((gate, up), dim=1)
            fused[f"{place}.down_proj"] = expected[f"{module}.down_proj.weight"].clone()
    change(copy, lambda name, tensor: None if ".mlp.experts." in name else tensor)
    add(copy, fused)
    edit_json(copy / "config.json", unquantise)
    read = stored_weights(FolderCheckpoint(copy), SMALL, formats, drafter=True)
    for name, values in expected.items():
        assert torch.equal(read(name), values) and read(name).is_contiguous()
    assert torch.equal(read("lm_head.weight"), originals["lm_head.weight"])


def unquantise(config):
    layers = config["quantization_config"]["quantized_layers"]
    for key in [key for key in layers if key.endswith(".experts")]:
        del layers[key]


def test_fp8_blocks_expand_to_bfloat16(copy):
    originals = tensors_of(copy)
    change(copy, lambda name, tensor: None if "mtp.layers.0.mlp.experts" in name else tensor)
    blocks, expected = {}, {}
    for projection, shape in (("gate_proj", (16, 32)), ("up_proj", (16, 32)), ("down_proj", (32, 16))):
        for expert in range(SMALL.experts):
            name = f"mtp.layers.0.mlp.experts.{expert}.{projection}.weight"
            blocks[name] = torch.randn(shape).to(torch.float8_e4m3fn)
            blocks[f"{name}_scale_inv"] = torch.tensor([[0.25 + expert]]).bfloat16()
            expected[projection, expert] = (blocks[name].float() * (0.25 + expert)).bfloat16()
    add(copy, blocks)
    edit_json(copy / "config.json", lambda config: fp8_blocks(config["quantization_config"]["quantized_layers"]))
    formats = Formats(experts="nvfp4", mtp_experts="dense", ple="fp8")
    read = stored_weights(FolderCheckpoint(copy), SMALL, formats, drafter=True)
    for projection in ("gate_proj", "up_proj", "down_proj"):
        whole = read(f"mtp.layers.0.mlp.experts.{projection}.weight")
        assert all(torch.equal(whole[expert], expected[projection, expert]) for expert in range(SMALL.experts))
    assert torch.equal(read("embed_tokens.weight"), originals[f"{PREFIX}embed_tokens.weight"])


def fp8_blocks(layers):
    for entry in (entry for key, entry in layers.items() if key.startswith("mtp.")):
        entry["quant_algo"] = "FP8_BLOCK_SCALES"


def test_target_experts_need_no_activation_scales(copy):
    change(copy, lambda name, tensor: None if name.endswith(".input_scale") else tensor)
    assert stored(copy).differences() == []


def test_old_activation_scales_on_mtp_experts_are_accepted(copy):
    names = [f"mtp.layers.0.mlp.experts.{e}.{p}_proj.input_scale" for e in range(8) for p in ("gate", "up", "down")]
    add(copy, {name: torch.tensor(0.5) for name in names})
    assert stored(copy).differences() == []


def test_scalars_may_be_stored_as_vectors_of_one(copy):
    change(copy, lambda name, tensor: tensor.reshape(1) if name.endswith(("weight_scale_2", "input_scale")) else tensor)
    weights = stored(copy)
    assert weights.differences() == []
    assert weights.read("layers.0.mlp.experts.up_proj.weight_scale_2").shape == (SMALL.experts,)


def test_what_other_engines_need_is_ignored(copy):
    further = {
        "model.visual.blocks.0.attn.qkv.weight": torch.zeros(3, 3),
        "mtp.shared_head.head.weight": torch.zeros(2, 2),
        f"{PREFIX}layers.3.self_attn.k_scale": torch.zeros(1),
        f"{PREFIX}hyper_connection_mixer.block_inject_weight.weight": torch.zeros(4, 128),
        f"{PREFIX}layers.1.ple.ple_embedding.token_lookup": torch.zeros(2),
    }
    add(copy, further)
    assert stored(copy).differences() == []


def test_the_target_alone_ignores_and_misses_no_mtp_tensor(copy):
    change(copy, lambda name, tensor: None if name.startswith("mtp.") else tensor)
    assert stored(copy, drafter=False).differences() == []
    assert [line.split(":")[0] for line in stored(copy).differences()] == [f"{29 + 8 * 3 * 3} missing"]


def test_a_prefixed_mtp_layer_is_read(copy):
    originals = tensors_of(copy)
    change(copy, lambda name, tensor: None if name.startswith("mtp.") else tensor)
    add(copy, {f"model.{name}": tensor for name, tensor in originals.items() if name.startswith("mtp.")})
    read = stored_weights(FolderCheckpoint(copy), SMALL, PACKED, drafter=True)
    assert torch.equal(read("mtp.fc_hidden.weight"), originals["mtp.fc_hidden.weight"])


def test_a_gguf_checkpoint_is_refused_in_a_sentence():
    class Other:
        origin = "model.gguf"

    with pytest.raises(CheckpointError, match=r"model\.gguf is no Hugging Face folder"):
        stored_weights(Other(), SMALL, PACKED, drafter=True)  # type: ignore[arg-type]
