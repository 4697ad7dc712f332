"""Quantisation metadata: where it is looked for, how a module's entry is found, what contradicts the tensors."""

import json
import shutil

import pytest

from flare.checkpoint.safetensors import FolderCheckpoint
from recipes.qwen38.layout import repository_forms
from recipes.qwen38.quantisation import Quantisation, canonical, quantisation_of
from tests.recipes.qwen38.small import PACKED, PREFIX, SMALL, edit_json, stored, written

MTP, ALIAS = "mtp.layers.0.mlp.experts", "mtp.layers.4.mlp.experts"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return written(tmp_path_factory.mktemp("qwen38") / "model")


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def layers(name: str, entry: dict | None):
    """An edit of config.json's map; None takes the entry out."""

    def edit(config):
        entries = config["quantization_config"]["quantized_layers"]
        entries.pop(name, None)
        if entry is not None:
            entries[name] = entry

    return edit


def algorithms(folder) -> dict:
    found = quantisation_of(FolderCheckpoint(folder), SMALL)
    assert found is not None
    return {module: found.algorithm(module) for module in repository_forms(SMALL, PACKED)}


def test_the_written_metadata_names_every_quantised_module_and_the_alias(folder):
    for file, keys in (("config.json", ("quantization_config",)), ("hf_quant_config.json", ("quantization",))):
        document = json.loads((folder / file).read_text())[keys[0]]
        assert document["quant_algo"] == "MIXED_PRECISION"
        entries = document["quantized_layers"]
        assert entries[MTP] == entries[ALIAS] == {"quant_algo": "W4A16_NVFP4", "group_size": 16}
        assert entries[f"{PREFIX}layers.3.mlp.experts"] == {"quant_algo": "NVFP4", "group_size": 16}
        assert entries[f"{PREFIX}layers.1.ple.ple_embedding.ngram_embedding"] == {"quant_algo": "FP8"}
        assert len(entries) == SMALL.layers + 3


def test_the_legacy_file_counts_only_where_config_has_no_map(copy):
    edit_json(copy / "hf_quant_config.json", lambda it: it["quantization"]["quantized_layers"].clear())
    assert algorithms(copy)[MTP] == "W4A16_NVFP4"
    edit_json(copy / "config.json", without_map)
    assert algorithms(copy)[MTP] is None


def without_map(config):
    del config["quantization_config"]["quantized_layers"]


def without_metadata(config):
    del config["quantization_config"]


@pytest.mark.parametrize("remove", [without_map, without_metadata])
def test_the_legacy_file_stands_in(copy, remove):
    edit_json(copy / "config.json", remove)
    assert algorithms(copy)[MTP] == "W4A16_NVFP4"
    assert stored(copy).differences() == []


def test_without_any_metadata_the_tensors_speak_alone(copy):
    edit_json(copy / "config.json", without_metadata)
    (copy / "hf_quant_config.json").unlink()
    assert quantisation_of(FolderCheckpoint(copy), SMALL) is None
    assert stored(copy).differences() == []


def test_the_alias_alone_describes_the_mtp_layer(copy):
    edit_json(copy / "config.json", layers(MTP, None))
    assert algorithms(copy)[MTP] == "W4A16_NVFP4"
    assert stored(copy).differences() == []


def test_an_alias_that_contradicts_is_reported(copy):
    edit_json(copy / "config.json", layers(ALIAS, {"quant_algo": "FP8"}))
    assert any(f"{ALIAS} is FP8, {MTP} W4A16_NVFP4" in line for line in stored(copy).differences())


def test_only_the_number_after_the_targets_layers_is_an_alias():
    modules, conflicts = canonical({"mtp.layers.40.mlp.experts": {"quant_algo": "FP8"}}, SMALL)
    assert set(modules) == {"mtp.layers.40.mlp.experts"} and conflicts == ()


def test_a_foreign_group_size_is_reported(copy):
    edit_json(copy / "config.json", layers(f"{PREFIX}layers.0.mlp.experts", {"quant_algo": "NVFP4", "group_size": 32}))
    assert any("layers.0.mlp.experts has groups of 32, not 16" in line for line in stored(copy).differences())


def resolved(module: str, whole: str | None = None, **entries: str) -> str | None:
    modules = {key.replace("__", "."): {"quant_algo": value} for key, value in entries.items()}
    return Quantisation(modules, whole, ("*.gate",), ()).algorithm(module)


def test_entries_are_found_by_name_then_below_then_beside():
    assert resolved("a.mlp.experts", a__mlp__experts="NVFP4", a__mlp__experts__0__up_proj="FP8") == "NVFP4"
    assert resolved("a.mlp.experts", a__mlp__experts__0__up_proj="FP8") == "FP8"
    assert resolved("a.mlp.experts", a__mlp__down_proj="NVFP4") == "NVFP4"
    assert resolved("a.mlp.gate", a__mlp__down_proj="NVFP4") is None
    assert resolved("a.mlp.experts", a__mlp__experts_of_old="NVFP4", b__mlp="FP8") == "NVFP4"


def test_a_whole_algorithm_spares_what_is_ignored():
    assert resolved("a.mlp.experts", whole="NVFP4") == "NVFP4" and resolved("a.mlp.gate", whole="NVFP4") is None


def test_another_spelling_of_the_prefix_is_the_same_module():
    modules, _ = canonical({"language_model.model.layers.0.mlp.experts": {"quant_algo": "NVFP4"}}, SMALL)
    assert set(modules) == {f"{PREFIX}layers.0.mlp.experts"}
