"""Synthetic checkpoints: what is drawn is what is read, the same for a seed, in the repository's layout, kept once."""

import json
from dataclasses import replace

import pytest
import torch

from flare.build import synthesize as synthesize_for
from flare.checkpoint.safetensors import INDEX, FolderCheckpoint
from flare.checkpoint.source import Source, locate
from flare.checkpoint.synthetic import Synthesis, refuse_without_room, synthesized
from flare.cli import main
from flare.config.compose import compose
from flare.errors import CheckpointError, ConfigError
from recipes.qwen38.geometry import Formats
from recipes.qwen38.layout import mtp_tensors, repository_forms, target_tensors
from recipes.qwen38.synthetic import INPUT_SCALE, Weights, synthesize
from recipes.qwen38.weights import stored_weights
from tests.recipes.qwen38.small import PACKED, PREFIX, SMALL, stored, tensors_of, written

DENSE = Formats(experts="dense", mtp_experts="dense", ple="dense")
NVFP4 = Formats(experts="nvfp4", mtp_experts="nvfp4", ple="nvfp4")
TABLE = "layers.1.ple.ple_embedding.ngram_embedding"
MAGNITUDES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def unpacked(packed: torch.Tensor, scale: torch.Tensor, scale_2: torch.Tensor) -> torch.Tensor:
    """NVFP4 matrices from the format's definition: low nibble first, bit 3 the sign, both scales multiply."""
    codes = torch.stack((packed % 16, packed // 16), -1).flatten(-2).long()
    signed = torch.where(codes >= 8, -MAGNITUDES[codes % 8], MAGNITUDES[codes % 8])
    return signed * scale.float().repeat_interleave(16, -1) * scale_2.reshape(*scale_2.shape, 1, 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return written(tmp_path_factory.mktemp("qwen38") / "model")


@pytest.mark.parametrize("formats", [PACKED, DENSE, NVFP4])
def test_headers_are_exactly_the_declared_ones_and_every_tensor_is_read(tmp_path, formats):
    checkpoint = FolderCheckpoint(written(tmp_path / "m", formats))
    forms = repository_forms(SMALL, formats)
    assert dict(checkpoint.headers) == target_tensors(SMALL, forms) | mtp_tensors(SMALL, forms)
    read = stored_weights(checkpoint, SMALL, formats, drafter=True)
    for name in checkpoint.headers:
        if ".experts." not in name and ".shard_" not in name:
            assert torch.isfinite(read(name.removeprefix(PREFIX)).float()).all()


def test_unquantised_weights_are_read_as_drawn(folder):
    weights, read = Weights(SMALL, 0), stored(folder).read
    for name, tensor in target_tensors(SMALL, repository_forms(SMALL, PACKED)).items():
        if tensor.format == "bfloat16" and not name.endswith("weight_scale"):
            assert torch.equal(read(name.removeprefix(PREFIX)), weights.drawn(tensor))


@pytest.mark.parametrize("module", ["layers.0.mlp.experts", "mtp.layers.0.mlp.experts"])
def test_experts_expand_to_what_was_drawn_within_half_a_step(folder, module):
    weights, read = Weights(SMALL, 0), stored(folder).read
    place = module if module.startswith("mtp.") else PREFIX + module
    for projection, shape in (("gate_proj", (16, 32)), ("up_proj", (16, 32)), ("down_proj", (32, 16))):
        kinds = ("weight", "weight_scale", "weight_scale_2")
        packed, scale, scale_2 = (read(f"{module}.{projection}.{kind}") for kind in kinds)
        expanded = unpacked(packed, scale, scale_2)
        for expert in range(SMALL.experts):
            drawn = weights.normal(f"{place}.{expert}.{projection}", shape, shape[1] ** -0.5)
            # The widest gap, 4 to 6, rounds by one step; the scale's own rounding (1/16) may clip the largest value.
            step = (scale[expert].float() * scale_2[expert]).repeat_interleave(16, -1)
            bound = torch.maximum(step, drawn.abs() / 16)
            assert ((expanded[expert] - drawn).abs() <= bound * 1.001).all()


@pytest.mark.parametrize("formats", [PACKED, NVFP4])
def test_tables_expand_to_what_was_drawn(tmp_path, formats):
    weights, read = Weights(SMALL, 0), stored(written(tmp_path / "m", formats), formats).read
    drawn = torch.cat([weights.normal(f"{PREFIX}{TABLE}.shard_{index}", (60, 16), 1.0) for index in range(4)])
    if formats is PACKED:
        expanded = read(f"{TABLE}.weight").float() * read(f"{TABLE}.weight_scale").float()
        assert torch.allclose(expanded, drawn.clamp(-3.5, 3.5), rtol=2**-4, atol=2**-16)
        return
    expanded = unpacked(*(read(f"{TABLE}.{kind}") for kind in ("weight", "weight_scale", "weight_scale_2")))
    drawn[::60, 0] = 4.0  # written so in each part, so that all parts share one scale
    peaks = drawn.abs().amax(1, keepdim=True)
    assert ((expanded - drawn).abs() <= peaks / 6 + peaks / 16).all()


def test_gate_and_up_of_an_expert_share_a_scale_and_only_the_target_scales_activations(folder):
    tensors = tensors_of(folder)
    for expert in range(SMALL.experts):
        for module in (f"{PREFIX}layers.2.mlp.experts.{expert}", f"mtp.layers.0.mlp.experts.{expert}"):
            assert tensors[f"{module}.gate_proj.weight_scale_2"] == tensors[f"{module}.up_proj.weight_scale_2"]
    scales = {name: tensor for name, tensor in tensors.items() if name.endswith(".input_scale")}
    assert len(scales) == SMALL.layers * SMALL.experts * 3 and not any(name.startswith("mtp.") for name in scales)
    assert all(scale == torch.tensor(INPUT_SCALE) for scale in scales.values())


def test_a_seed_names_the_bytes(tmp_path, folder):
    again, other = written(tmp_path / "again"), written(tmp_path / "other", seed=1)
    for file in folder.iterdir():
        assert (again / file.name).read_bytes() == file.read_bytes()
    same, different = tensors_of(folder), tensors_of(other)
    assert not torch.equal(same["lm_head.weight"], different["lm_head.weight"])
    name = f"{PREFIX}layers.1.ple.ple_embedding.layer_multipliers"
    assert torch.equal(same[name], different[name])


def test_the_index_places_every_tensor_and_counts_the_bytes(folder):
    index = json.loads((folder / INDEX).read_text())
    assert len(set(index["weight_map"].values())) == len(list(folder.glob("model-*.safetensors"))) > 1
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors_of(folder).values())
    assert set(index["weight_map"]) == set(tensors_of(folder))


def test_every_token_id_decodes_and_every_text_survives(folder):
    vocabulary = FolderCheckpoint(folder).vocabulary()
    assert vocabulary.size == SMALL.vocab
    text = "The sea, 1 2 3 — größer 🌊\n"
    ids = vocabulary.encode(text)
    assert vocabulary.decode(ids) == text and len(ids) < len(text.encode())
    assert all(vocabulary.decode([id]) for id in range(SMALL.eos_id))
    assert vocabulary.eos_ids == (SMALL.eos_id + 2, SMALL.eos_id)
    chat = vocabulary.chat([{"role": "user", "content": "hi"}])
    assert chat[0] == SMALL.eos_id + 1 and SMALL.eos_id + 2 in chat


def test_a_vocabulary_without_room_for_bytes_is_refused(tmp_path):
    geometry = SMALL.model_copy(update={"vocab": 96, "eos_id": 95})
    with pytest.raises(CheckpointError, match="256 byte tokens below eos_id=95"):
        synthesize(geometry, PACKED, tmp_path, 0)
    assert list(tmp_path.iterdir()) == []


def test_what_the_disk_cannot_hold_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"takes 1,000,000,000,000,000,000 bytes"):
        refuse_without_room(tmp_path, 10**18)


def counting(tmp_path, **changes) -> tuple[Synthesis, list]:
    """A synthesis that counts how often it writes."""
    calls = []

    def write(folder, seed):
        calls.append(seed)
        synthesize(SMALL, PACKED, folder, seed)

    return replace(Synthesis("small", SMALL.model_dump(mode="json"), 3, write, tmp_path / "kept"), **changes), calls


def test_a_checkpoint_is_written_once_and_read_through_the_folder_reader(tmp_path):
    synthesis, calls = counting(tmp_path)
    checkpoint = locate(Source("synthetic", synthesis=synthesis))
    assert isinstance(checkpoint, FolderCheckpoint) and checkpoint.origin == str(tmp_path / "kept")
    assert locate(Source("synthetic", synthesis=synthesis)).headers == checkpoint.headers
    assert calls == [3] and [path.name for path in tmp_path.iterdir()] == ["kept"]


@pytest.mark.parametrize("changes", [{"seed": 4}, {"recipe": "other"}, {"settings": {"hidden": 48}}])
def test_a_folder_with_something_else_is_left_alone(tmp_path, changes):
    synthesis, calls = counting(tmp_path)
    synthesized(synthesis)
    with pytest.raises(CheckpointError, match=r"set checkpoint\.path to a new folder"):
        synthesized(replace(synthesis, **changes))
    assert calls == [3]


def test_the_cache_keeps_each_identity_apart(tmp_path, monkeypatch):
    monkeypatch.setenv("FLARE_CACHE", str(tmp_path))
    synthesis, _ = counting(tmp_path, path=None)
    others = [replace(synthesis, seed=4), replace(synthesis, settings={"hidden": 48}), replace(synthesis, recipe="b")]
    folders = {one.folder for one in [synthesis, *others]}
    assert len(folders) == 4 and all(folder.parent == tmp_path / "synthetic" for folder in folders)


def test_an_interrupted_write_leaves_nothing(tmp_path):
    def write(folder, seed):
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    synthesis, _ = counting(tmp_path, write=write)
    with pytest.raises(KeyboardInterrupt):
        synthesized(synthesis)
    assert list(tmp_path.iterdir()) == []


def test_the_action_prints_the_folder_that_the_recipe_then_reads(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLARE_CACHE", str(tmp_path / "cache"))
    assert main(["+recipe=qwen38_small", "action=synthesize", "output=text"]) == 0
    folder = capsys.readouterr().out.strip()
    assert folder.startswith(str(tmp_path / "cache")) and (tmp_path / folder / "config.json").is_file()
    assert str(synthesize_for(compose("qwen38_small"))) == folder
    assert main(["+recipe=qwen38_small", "action=synthesize", "output=json", "checkpoint.path=here"]) == 0
    assert json.loads(capsys.readouterr().out) == {"folder": "here"}
    assert tensors_of(tmp_path / "here").keys() == tensors_of(tmp_path / folder).keys()


def test_the_small_recipe_answers_and_some_drafts_are_accepted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLARE_CACHE", str(tmp_path / "cache"))
    asked = ["prompt=hello", "sampling.max_tokens=48", "sampling.ignore_eos=true", "sampling.seed=1", "output=json"]
    assert main(["+recipe=qwen38_small", *asked, "serving.concurrency=1"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["token_ids"]) == 48
    assert 0 < answer["speculation"]["accepted"] < answer["speculation"]["offered"]


def test_recipes_and_sources_without_a_writer_are_refused():
    with pytest.raises(ConfigError, match=r"smollm2 writes no synthetic checkpoint"):
        synthesize_for(compose("smollm2", ["checkpoint.source=synthetic"]))
    with pytest.raises(ConfigError, match=r"but it is hub; add checkpoint\.source=synthetic"):
        synthesize_for(compose("qwen38"))
