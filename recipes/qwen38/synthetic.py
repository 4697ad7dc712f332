"""A seeded checkpoint of any geometry in exactly the repository's layout, tokenizer and metadata included.

Weights are drawn so that signals keep their size from layer to layer. The head leans towards one successor of each
token, which the MTP layer sees as well, so that some drafts are accepted and some are not; the text means nothing.
"""

import json
from collections.abc import Iterator, Mapping
from math import sqrt
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from flare.checkpoint.byte_tokenizer import write_tokenizer
from flare.checkpoint.synthetic import draws, refuse_without_room, write_shards
from flare.checkpoint.tensors import StoredTensor
from flare.ops.formats.nvfp4 import quantise_nvfp4
from recipes.qwen38.facts import config_of
from recipes.qwen38.geometry import Formats, Geometry
from recipes.qwen38.layout import PREFIX, Form, Tensors, mtp_tensors, repository_forms, tables, target_tensors
from recipes.qwen38.quantisation import LEGACY, metadata_of

SHARD_BYTES: Final = 4 << 30
LEAST_SHARDS: Final = 4  # so that a tiny checkpoint has shards as well
INPUT_SCALE: Final = 8.0 / (6 * 448)  # activations up to 8
SUCCESSOR: Final = 97  # a token's likeliest successor has this many ids more
HEAD_GAIN: Final = 3.0  # how much likelier
TABLE_SCALE: Final = 1 / 128  # of an FP8 table, exact in bfloat16


def synthesize(geometry: Geometry, formats: Formats, folder: Path, seed: int) -> None:
    """Write a whole checkpoint into an empty folder, one shard in memory at a time.

    Raises:
        CheckpointError: the disk has no room, or the vocabulary none for bytes.
    """
    forms = repository_forms(geometry, formats)
    tensors = target_tensors(geometry, forms) | mtp_tensors(geometry, forms)
    wanted_bytes = sum(tensor.bytes for tensor in tensors.values())
    refuse_without_room(folder, wanted_bytes)
    write_tokenizer(folder, geometry.vocab, geometry.eos_id)
    config, legacy = metadata_of(forms, geometry)
    documents = {
        "config.json": config_of(geometry) | ({"quantization_config": config} if config else {}),
        LEGACY: legacy,
    }
    for name, document in documents.items():
        if document:
            (folder / name).write_text(json.dumps(document, indent=1))
    shard_bytes = min(SHARD_BYTES, -(-wanted_bytes // LEAST_SHARDS))
    write_shards(folder, Weights(geometry, seed).groups(tensors, forms), shard_bytes)


class Weights:
    """The random tensors of one seed; each depends on its name alone, so order and company do not matter."""

    def __init__(self, geometry: Geometry, seed: int) -> None:
        self.geometry, self.seed = geometry, seed

    def groups(self, tensors: Tensors, forms: Mapping[str, Form]) -> Iterator[dict[str, Tensor]]:
        """Every stored tensor, those that are quantised together in one group."""
        for ordinal, table in enumerate(tables(self.geometry)):
            yield self.hash_constants(table.rsplit(".", 1)[0], ordinal)
        for name, stored in tensors.items():
            module, _, kind = name.rpartition(".")
            if stored.format == "bfloat16" and kind != "weight_scale":
                yield {name: self.drawn(stored)}
            elif kind == "weight" and ".ngram_embedding." in name:
                yield self.table_shard(module, stored, forms[module.rpartition(".")[0]])
            elif kind == "weight" and not name.endswith("up_proj.weight"):
                yield self.expert(module, tensors)
        for table in tables(self.geometry):
            yield self.table_scale(table, forms[table])

    def hash_constants(self, module: str, ordinal: int) -> dict[str, Tensor]:
        """Multipliers, table sizes and offsets."""
        ngrams = self.geometry.ngrams(ordinal)
        constants = {
            "layer_multipliers": ngrams.multipliers,
            "ngram_heads_vocab_sizes": ngrams.sizes,
            "ngram_heads_offsets": ngrams.offsets,
        }
        return {f"{module}.{name}": torch.tensor(values, dtype=torch.int64) for name, values in constants.items()}

    def expert(self, module: str, tensors: Tensors) -> dict[str, Tensor]:
        """An NVFP4 matrix with its scales; gate brings up along, because the two share one scale."""
        parts = [module, f"{module.removesuffix('gate_proj')}up_proj"] if module.endswith("gate_proj") else [module]
        rows = [tensors[f"{part}.weight"].shape[0] for part in parts]
        columns = 2 * tensors[f"{module}.weight"].shape[1]
        drawn = [
            self.normal(part, (count, columns), 1 / sqrt(columns)) for part, count in zip(parts, rows, strict=True)
        ]
        stored = quantise_nvfp4(torch.cat(drawn))
        group: dict[str, Tensor] = {}
        for part, packed, scale in zip(parts, stored.packed.split(rows), stored.scale.split(rows), strict=True):
            group |= {f"{part}.weight": packed, f"{part}.weight_scale": scale}
            group[f"{part}.weight_scale_2"] = stored.scale_2.clone()
            if f"{part}.input_scale" in tensors:
                group[f"{part}.input_scale"] = torch.tensor(INPUT_SCALE)
        return group

    def table_shard(self, module: str, stored: StoredTensor, form: Form) -> dict[str, Tensor]:
        """A quantised part of an n-gram table; NVFP4 scales are relative to the table's one `weight_scale_2`."""
        rows = self.normal(module, (stored.shape[0], self.geometry.ngram_dim), 1.0)
        if form == "fp8":
            return {f"{module}.weight": (rows / TABLE_SCALE).clamp(-448, 448).to(torch.float8_e4m3fn)}
        # Each value within the same bound, so that every part comes to the same scale_2.
        rows = rows.clamp(-4, 4)
        rows[0, 0] = 4.0
        quantised = quantise_nvfp4(rows)
        return {f"{module}.weight": quantised.packed, f"{module}.weight_scale": quantised.scale}

    def table_scale(self, table: str, form: Form) -> dict[str, Tensor]:
        """The scale that all parts of a quantised table share."""
        if form == "fp8":
            return {f"{table}.weight_scale": torch.tensor([TABLE_SCALE], dtype=torch.bfloat16)}
        return {f"{table}.weight_scale_2": torch.tensor([4.0 / (6 * 448)])} if form == "nvfp4" else {}

    def drawn(self, stored: StoredTensor) -> Tensor:
        """An unquantised tensor, of the size its part of the model expects."""
        name, shape = stored.name, stored.shape
        if name.endswith(".A_log"):
            return (1 + 15 * torch.rand(shape, generator=draws(self.seed, name))).log().bfloat16()
        if name.endswith(".dt_bias"):  # steps of 0.001 to 0.1 before the token's own share, so that states remember
            steps = 10 ** -(1 + 2 * torch.rand(shape, generator=draws(self.seed, name)))
            return steps.expm1().log().bfloat16()
        if name.endswith("linear_attn.norm.weight"):
            return (1 + self.normal(name, shape, 0.1)).bfloat16()
        if name == "lm_head.weight":
            embedding = self.normal(f"{PREFIX}embed_tokens.weight", shape, HEAD_GAIN / sqrt(shape[1]))
            return embedding.roll(SUCCESSOR, 0).bfloat16()
        if name == "mtp.fc_embedding.weight":
            return (torch.eye(shape[0]) + self.normal(name, shape, 0.3 / sqrt(shape[1]))).bfloat16()
        if name == "mtp.fc_hidden.weight":
            return self.normal(name, shape, 0.3 / sqrt(shape[1])).bfloat16()
        if len(shape) == 1:  # zero-centred norms
            return self.normal(name, shape, 0.1).bfloat16()
        spread = 1.0 if "embed" in name.rsplit(".", 2)[-2] or ".ngram_embedding." in name else 1 / sqrt(shape[-1])
        return self.normal(name, shape, spread).bfloat16()

    def normal(self, name: str, shape: tuple[int, ...], spread: float) -> Tensor:
        """Gaussian numbers in float32."""
        return spread * torch.randn(shape, generator=draws(self.seed, name))
