"""Stored names to parts: a Qwen3.8-Flash-Next repository, read under the names that target and drafter declare.

A declared name is the stored one without `model.language_model.`; `lm_head.` and `mtp.` stay. Two things are joined:
    {mlp}.experts.{gate,up,down}_proj.*   all experts stacked: weight [E, out, in / 2] uint8, weight_scale
                                          [E, out, in / 16] float8_e4m3fn, weight_scale_2 [E] and, where it is stored,
                                          input_scale [E] float32; or weight [E, out, in] where they are not NVFP4
    {ple}.ple_embedding.ngram_embedding.* weight [rows, E], and the NVFP4 weight_scale, all shards one after the other

Everything is checked before anything is read, and all that is wrong is said at once: damaged files, missing, unknown
and mis-shaped tensors, formats, quantisation metadata, config.json, hash constants.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from flare.checkpoint.headers import differences, listing, refuse
from flare.checkpoint.safetensors import FolderCheckpoint
from flare.checkpoint.tensors import FLOAT_FORMATS, Checkpoint, StoredTensor
from flare.errors import CheckpointError
from flare.ops.ngram.geometry import check_geometry
from recipes.qwen38.facts import contradictions
from recipes.qwen38.geometry import Formats, Geometry
from recipes.qwen38.layout import (
    BLOCK,
    FORMAT,
    PREFIX,
    Form,
    expected,
    mtp_experts_module,
    mtp_tensors,
    repository_forms,
    tables,
    target_experts,
    target_tensors,
)
from recipes.qwen38.quantisation import quantisation_of

# The vision tower, diagnostics, and what other engines derive or never use.
IGNORED: Final = re.compile(
    r"^model\.visual\.|^mtp\.shared_head\.head\.|hashstats_|token_lookup|"
    r"hyper_connection_mixer\.block_inject_weight|\.[kv]_scale$"
)
EXPERT: Final = re.compile(r"^(?P<module>.*\.mlp\.experts)\.\d+\.\w+_proj\.(?P<kind>\w+)$")
SHARD: Final = re.compile(r"^(?P<module>.*\.ngram_embedding)\.shard_\d+\.weight$")
EXPERT_FORMS: Final[dict[str, Form]] = {
    "uint8": "nvfp4",
    "float8_e4m3fn": "float8_block",
    **dict.fromkeys(FLOAT_FORMATS, "separate"),
}
TABLE_FORMS: Final[dict[str, Form]] = {
    "uint8": "nvfp4",
    "float8_e4m3fn": "fp8",
    **dict.fromkeys(FLOAT_FORMATS, "dense"),
}
HASH_CONSTANTS: Final = ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets")
STACK: Final = re.compile(r"^(?P<module>.*\.mlp\.experts)\.(?P<projection>\w+_proj)\.(?P<kind>\w+)$")
TABLE: Final = re.compile(r"^(?P<module>.*\.ngram_embedding)\.(?P<kind>weight|weight_scale)$")


def stored_weights(
    checkpoint: Checkpoint, geometry: Geometry, formats: Formats, drafter: bool
) -> Callable[[str], Tensor]:
    """From declared names to tensors in their stored dtype, memory of the caller's own.

    Args:
        formats: what target and drafter declare; a checkpoint in another format is refused with the override it needs.
        drafter: also check and read `mtp.*`, which is ignored otherwise.

    Raises:
        CheckpointError: no Hugging Face folder, or one report of all in which it differs from the declaration.
    """
    if not isinstance(checkpoint, FolderCheckpoint):
        raise CheckpointError(f"{checkpoint.origin} is no Hugging Face folder, which is the layout this recipe reads.")
    stored = StoredWeights(checkpoint, geometry, formats, drafter)
    refuse(stored.differences(), checkpoint.origin)
    return stored.read


class StoredWeights:
    """A repository seen through a geometry.

    Attributes:
        forms: module → how it is stored, told from the stored tensors themselves.
        tensors: what has to be there in these forms.
    """

    def __init__(self, checkpoint: FolderCheckpoint, geometry: Geometry, formats: Formats, drafter: bool) -> None:
        self.checkpoint, self.geometry, self.formats, self.drafter = checkpoint, geometry, formats, drafter
        # Some exporters put `model.` before `mtp.`.
        self._names = {re.sub(r"^model\.mtp\.", "mtp.", name): name for name in checkpoint.headers}
        self.headers = {
            name: replace(checkpoint.headers[spelled], name=name)
            for name, spelled in self._names.items()
            if not IGNORED.search(name) and (drafter or not name.startswith("mtp."))
        }
        self.forms = stored_forms(self.headers.values(), repository_forms(geometry, formats))
        self.tensors = target_tensors(geometry, self.forms)
        if drafter:
            self.tensors |= mtp_tensors(geometry, self.forms)

    def differences(self) -> list[str]:
        """Everything in which the repository is not what was declared; reads the hash constants and nothing else."""
        headers = {name: as_declared(header, self.tensors.get(name)) for name, header in self.headers.items()}
        quantisation = quantisation_of(self.checkpoint, self.geometry)
        forms = dict(self.forms)
        if not self.drafter:
            del forms[mtp_experts_module()]
        found = [
            *differences(expected(self.tensors), headers, self.checkpoint.damaged),
            listing("in another format than declared", self._undeclared(forms)),
            listing("against the quantisation metadata", quantisation.contradictions(forms) if quantisation else []),
            listing("of another model by config.json", contradictions(self.checkpoint.config, self.geometry)),
            listing("hashed otherwise", self._foreign_hashes(headers)),
        ]
        return [difference for difference in found if difference]

    def _undeclared(self, forms: Mapping[str, Form]) -> list[str]:
        """Modules that the memory plan counted in another format, with the override that counts them right."""
        keys = dict.fromkeys(target_experts(self.geometry), "experts") | dict.fromkeys(tables(self.geometry), "ple")
        keys[mtp_experts_module()] = "mtp_experts"
        return [
            f"{module} (recipe.target.formats.{keys[module]}={FORMAT.get(form, form)})"
            for module, form in forms.items()
            if FORMAT.get(form, form) != getattr(self.formats, keys[module])
        ]

    def _foreign_hashes(self, headers: Mapping[str, StoredTensor]) -> list[str]:
        """Hash constants that are there in the right form and differ from their derivation."""
        found = []
        for ordinal, table in enumerate(tables(self.geometry)):
            names = [f"{table.rsplit('.', 1)[0]}.{name}" for name in HASH_CONSTANTS]
            whole = [name for name in names if name in headers and headers[name].shape == self.tensors[name].shape]
            for name in (name for name in whole if headers[name].format == "int64"):
                try:
                    check_geometry(self.geometry.ngrams(ordinal), {name: self.checkpoint.read(name).tolist()})
                except CheckpointError as error:
                    found.append(str(error))
        return found

    def read(self, name: str) -> Tensor:
        """The declared weight."""
        stored = name if name.startswith(("lm_head.", "mtp.")) else PREFIX + name
        if stack := STACK.match(stored):
            return self._experts(stack["module"], stack["projection"], stack["kind"])
        if (table := TABLE.match(stored)) and stored not in self.tensors:
            shards = range(len(self.geometry.shard_rows(tables(self.geometry).index(table["module"]))))
            return self._concatenated([f"{table['module']}.shard_{index}.{table['kind']}" for index in shards])
        return self._tensor(stored)

    def _experts(self, module: str, projection: str, kind: str) -> Tensor:
        """One projection of all experts [E, …]."""
        names = [f"{module}.{expert}.{projection}.{kind}" for expert in range(self.geometry.experts)]
        match self.forms[module], projection:
            case "fused", "down_proj":
                return self._tensor(f"{module}.down_proj")
            case "fused", _:
                rows = self.geometry.expert_ffn
                gate, up = self._tensor(f"{module}.gate_up_proj").split(rows, dim=1)
                return (gate if projection == "gate_proj" else up).clone()
            case "float8_block", _:
                return torch.stack([self._expanded(name) for name in names])
        return self._stacked(names)

    # Both fill one result in place: torch.stack and torch.cat would hold everything twice, and a table may take most
    # of the memory.
    def _stacked(self, names: list[str]) -> Tensor:
        first = self._tensor(names[0])
        result = torch.empty((len(names), *self.tensors[names[0]].shape), dtype=first.dtype)
        for index, name in enumerate(names):
            result[index] = self._tensor(name).reshape(result.shape[1:])
        return result

    def _concatenated(self, names: list[str]) -> Tensor:
        first, rows = self._tensor(names[0]), [self.tensors[name].shape[0] for name in names]
        result = torch.empty((sum(rows), *first.shape[1:]), dtype=first.dtype)
        for name, part in zip(names, result.split(rows), strict=True):
            part.copy_(self._tensor(name))
        return result

    def _expanded(self, name: str) -> Tensor:
        """An FP8 matrix with a scale per block of 128 x 128, in bfloat16."""
        values, scale = self._tensor(name).float(), self._tensor(f"{name}_scale_inv").float()
        scales = scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        return (values * scales[: values.shape[0], : values.shape[1]]).bfloat16()

    def _tensor(self, name: str) -> Tensor:
        return self.checkpoint.read(self._names.get(name, name))


def as_declared(header: StoredTensor, declared: StoredTensor | None) -> StoredTensor:
    """A header whose single value counts as a scalar or as a vector of one, as exporters please."""
    if declared is None or header.values != 1 or declared.values != 1:
        return header
    return replace(header, shape=declared.shape)


def stored_forms(headers: Iterable[StoredTensor], otherwise: Mapping[str, Form]) -> dict[str, Form]:
    """How each module is stored, by what most of its tensors say, so that one wrong tensor stays one difference.

    Args:
        otherwise: the forms of modules of which nothing is stored; its keys are the modules.
    """
    weights: dict[str, Counter[Form]] = {module: Counter() for module in otherwise}
    scales: Counter[str] = Counter()
    for header in headers:
        module, form = evidence(header)
        if module in weights and form == "nvfp4_input_scale":
            scales[module] += 1
        elif module in weights and form is not None:
            weights[module][form] += 1
    forms = dict(otherwise)
    for module, votes in weights.items():
        if not votes:
            continue
        forms[module], count = votes.most_common(1)[0]
        if forms[module] == "nvfp4" and 2 * scales[module] > count:
            forms[module] = "nvfp4_input_scale"
    return forms


def evidence(header: StoredTensor) -> tuple[str, Form | None]:
    """The module one tensor belongs to, and the form it speaks for."""
    if header.name.endswith(".mlp.experts.gate_up_proj"):
        return header.name.removesuffix(".gate_up_proj"), "fused"
    if expert := EXPERT.match(header.name):
        if expert["kind"] == "input_scale":
            return expert["module"], "nvfp4_input_scale"
        return expert["module"], EXPERT_FORMS.get(header.format) if expert["kind"] == "weight" else None
    if shard := SHARD.match(header.name):
        return shard["module"], TABLE_FORMS.get(header.format)
    return "", None
