"""Per-module quantisation metadata: config.json first, hf_quant_config.json where that has no map of modules.

Stored tensors decide how they are read; metadata that contradicts them marks a damaged or edited repository.

Source: qwen38.md sections 10.2 and 10.3.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from flare.checkpoint.safetensors import FolderCheckpoint
from recipes.qwen38.geometry import Geometry
from recipes.qwen38.layout import GROUP, MTP_LAYER, PREFIX, Form

LEGACY: Final = "hf_quant_config.json"
NVFP4: Final = ("NVFP4", "W4A16_NVFP4")
ALGORITHMS: Final[dict[Form, tuple[str | None, ...]]] = {
    # Old exports of W4A16 carry activation scales that nobody reads, so both names go with both forms.
    "nvfp4": NVFP4,
    "nvfp4_input_scale": NVFP4,
    "float8_block": ("FP8_BLOCK_SCALES", "FP8_PB_WO"),
    "fp8": ("FP8",),
    "separate": (None,),
    "fused": (None,),
    "dense": (None,),
}
IGNORED: Final = (
    "lm_head",
    "model.visual*",
    f"{PREFIX}embed_tokens",
    "*hyper_connection*",
    "*.linear_attn*",
    "*.self_attn*",
    "*.mlp.gate",
    "*.mlp.shared_expert*",
    "mtp.fc_*",
)


@dataclass(frozen=True)
class Quantisation:
    """What a repository says about its modules.

    Attributes:
        modules: module prefix → entry with quant_algo, and group_size where blocks have scales.
        whole: algorithm of every module that is not ignored, in a repository without a map; else None.
        ignored: glob patterns.
        conflicts: MTP modules whose alias says otherwise.
    """

    modules: Mapping[str, Mapping[str, Any]]
    whole: str | None
    ignored: tuple[str, ...]
    conflicts: tuple[str, ...]

    def algorithm(self, module: str) -> str | None:
        """The algorithm of a module, None where it is not quantised.

        Exact name, then names below it, then — for routed experts — names beside it.
        """
        below = [key for key in self.modules if key.startswith(f"{module}.")]
        parent = module.rsplit(".", 1)[0] + "."
        beside = [key for key in self.modules if module.endswith(".experts") and key.startswith(parent)]
        for keys in ([module] if module in self.modules else [], below, beside):
            if keys:
                return self.modules[keys[0]].get("quant_algo")
        return None if any(fnmatchcase(module, pattern) for pattern in self.ignored) else self.whole

    def contradictions(self, forms: Mapping[str, Form]) -> list[str]:
        """Modules stored in a form that the metadata does not mean, conflicting aliases, foreign group sizes."""
        found = [
            f"{module} is {self.algorithm(module) or 'unquantised'}, stored as {form}"
            for module, form in forms.items()
            if self.algorithm(module) not in ALGORITHMS[form]
        ]
        groups = [
            f"{key} has groups of {entry['group_size']}, not {GROUP}"
            for key, entry in self.modules.items()
            if entry.get("quant_algo") in NVFP4 and entry.get("group_size", GROUP) != GROUP
        ]
        return [*self.conflicts, *found, *groups]


def quantisation_of(checkpoint: FolderCheckpoint, geometry: Geometry) -> Quantisation | None:
    """The repository's metadata; None where it has none, and tensors speak alone."""
    config = checkpoint.config.get("quantization_config") or {}
    legacy = checkpoint.document(LEGACY).get("quantization") or {}
    stated = (
        config if config.get("quantized_layers") else legacy if legacy.get("quantized_layers") else config or legacy
    )
    dtype: str | None = (checkpoint.config.get("text_config") or {}).get("ple_embedding_dtype")
    if not stated and dtype is None:
        return None
    modules, conflicts = canonical(stated.get("quantized_layers") or {}, geometry)
    algorithm = {"float8_e4m3fn": "FP8", "nvfp4": "NVFP4"}.get(dtype or "")
    for number in geometry.ple_layers if algorithm else ():
        modules.setdefault(f"{PREFIX}layers.{number - 1}.ple.ple_embedding.ngram_embedding", {"quant_algo": algorithm})
    whole = stated.get("quant_algo")
    ignored = tuple(stated.get("ignore") or stated.get("exclude_modules") or ())
    return Quantisation(modules, None if whole == "MIXED_PRECISION" else whole, ignored, conflicts)


def canonical(
    layers: Mapping[str, Mapping[str, Any]], geometry: Geometry
) -> tuple[dict[str, Mapping[str, Any]], tuple[str, ...]]:
    """Modules under the names of their tensors; the MTP layer may also be counted after the target's layers.

    Returns:
        module → entry, and the aliases that contradict what they stand for.
    """
    alias, modules, conflicts = f"mtp.layers.{geometry.layers}", {}, []
    for key, entry in layers.items():
        name = PREFIX + key.removeprefix("language_model.model.") if key.startswith("language_model.model.") else key
        if name == alias or name.startswith(f"{alias}."):
            name = MTP_LAYER + name.removeprefix(alias)
        other = modules.setdefault(name, entry)
        if other.get("quant_algo") != entry.get("quant_algo"):
            conflicts.append(f"{key} is {entry.get('quant_algo')}, {name} {other.get('quant_algo')}")
    return modules, tuple(conflicts)


def metadata_of(forms: Mapping[str, Form], geometry: Geometry) -> tuple[dict[str, Any], dict[str, Any]]:
    """quantization_config of config.json, and hf_quant_config.json, for a repository stored in these forms."""
    names = {"nvfp4": "W4A16_NVFP4", "nvfp4_input_scale": "NVFP4", "fp8": "FP8"}
    layers: dict[str, dict[str, Any]] = {}
    for module, form in forms.items():
        if form not in names:
            continue
        entry: dict[str, Any] = {"quant_algo": names[form]}
        layers[module] = entry | ({"group_size": GROUP} if names[form] in NVFP4 else {})
        if module.startswith(MTP_LAYER):
            layers[f"mtp.layers.{geometry.layers}{module.removeprefix(MTP_LAYER)}"] = layers[module]
    if not layers:
        return {}, {}
    shared = {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    config = {"quant_method": "modelopt", **shared, "ignore": list(IGNORED)}
    return config, {"producer": {"name": "modelopt"}, "quantization": {**shared, "exclude_modules": list(IGNORED)}}
