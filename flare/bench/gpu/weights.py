"""Weights of a visit: a file carried in pieces, or seeded ones of the same geometry."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from flare.checkpoint.byte_tokenizer import write_tokenizer

DONE = "complete"


def joined(parts: Sequence[Path], target: Path) -> Path:
    """The file whose pieces these are, in the order of their names."""
    with target.open("wb") as file:
        for part in sorted(parts):
            with part.open("rb") as piece:
                shutil.copyfileobj(piece, file)
    return target


def llama_folder(folder: Path, geometry: Mapping[str, Any], seed: int) -> Path:
    """A Hugging Face folder of a Llama-type model with drawn weights; written first unless it is there."""
    if (folder / DONE).exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    save_file(drawn(geometry, seed), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(llama_config(geometry)))
    write_tokenizer(folder, geometry["vocab"], eos_id=geometry["vocab"] - 3)
    (folder / DONE).touch()
    return folder


def llama_config(geometry: Mapping[str, Any]) -> dict[str, Any]:
    """config.json of these sizes."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": geometry["hidden"],
        "num_hidden_layers": geometry["layers"],
        "num_attention_heads": geometry["query_heads"],
        "num_key_value_heads": geometry["kv_heads"],
        "head_dim": geometry["head_dim"],
        "intermediate_size": geometry["ffn"],
        "vocab_size": geometry["vocab"],
        "rope_theta": geometry["rope_base"],
        "rms_norm_eps": geometry["norm_eps"],
        "tie_word_embeddings": geometry["tied"],
        "max_position_embeddings": geometry["context"],
        "bos_token_id": None,
        "eos_token_id": geometry["vocab"] - 3,
        "torch_dtype": "bfloat16",
    }


def drawn(geometry: Mapping[str, Any], seed: int) -> dict[str, Tensor]:
    """Weights under their stored names; rows keep their size from layer to layer."""
    generator = torch.Generator().manual_seed(seed)
    hidden, ffn, dim = geometry["hidden"], geometry["ffn"], geometry["head_dim"]
    queries, keys = geometry["query_heads"] * dim, geometry["kv_heads"] * dim

    def matrix(rows: int, columns: int) -> Tensor:
        return (torch.randn(rows, columns, generator=generator) / columns**0.5).bfloat16()

    ones = torch.ones(hidden, dtype=torch.bfloat16)
    tensors = {"model.embed_tokens.weight": matrix(geometry["vocab"], hidden), "model.norm.weight": ones.clone()}
    for layer in range(geometry["layers"]):
        name = f"model.layers.{layer}"
        tensors |= {
            f"{name}.input_layernorm.weight": ones.clone(),
            f"{name}.post_attention_layernorm.weight": ones.clone(),
            f"{name}.self_attn.q_proj.weight": matrix(queries, hidden),
            f"{name}.self_attn.k_proj.weight": matrix(keys, hidden),
            f"{name}.self_attn.v_proj.weight": matrix(keys, hidden),
            f"{name}.self_attn.o_proj.weight": matrix(hidden, queries),
            f"{name}.mlp.gate_proj.weight": matrix(ffn, hidden),
            f"{name}.mlp.up_proj.weight": matrix(ffn, hidden),
            f"{name}.mlp.down_proj.weight": matrix(hidden, ffn),
        }
    if not geometry["tied"]:
        tensors["lm_head.weight"] = matrix(geometry["vocab"], hidden)
    return tensors
