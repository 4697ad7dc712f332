"""A Hugging Face folder with the same float32 weights as a GGUF file, made without our reader.

Reads with the gguf package, names with its table, and finds each rotary row by its index.
"""

import json
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

from flare.checkpoint.gguf import GgufCheckpoint


def write_folder_copy(file: Path, folder: Path, layers: int | None = None) -> Path:
    """Write config.json, tokenizer files and model.safetensors (four bytes a value: 540 MB for all of SmolLM2-135M).

    Args:
        layers: how many to keep, from the first; all by default.
    """
    reader = gguf.GGUFReader(file)
    facts = {name: field.contents() for name, field in reader.fields.items() if name.startswith("llama.")}
    kept = layers or facts["llama.block_count"]
    heads = {"attn_q": facts["llama.attention.head_count"], "attn_k": facts["llama.attention.head_count_kv"]}
    tensors = {}
    for tensor in reader.tensors:
        parts = tensor.name.split(".")
        if parts[0] == "blk" and int(parts[1]) >= kept:
            continue
        values = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(tensor.shape[::-1]).astype(np.float32)
        if count := heads.get(parts[2] if len(parts) == 4 else ""):
            values = values[half_split_rows(len(values), count)]
        tensors[folder_name(parts)] = torch.from_numpy(np.array(values))
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config(facts, kept, "lm_head.weight" not in tensors)))
    vocabulary = GgufCheckpoint(file).vocabulary()
    vocabulary.tokenizer.save(str(folder / "tokenizer.json"))
    words = {"chat_template": vocabulary.chat_template, "bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(words))
    return folder


def half_split_rows(rows: int, heads: int) -> list[int]:
    """Which interleaved row each half-split row is."""
    D = rows // heads
    return [head * D + (2 * j if j < D // 2 else 2 * (j - D // 2) + 1) for head in range(heads) for j in range(D)]


def folder_name(parts: list[str]) -> str:
    """blk.3.attn_q.weight → model.layers.3.self_attn.q_proj.weight."""
    whole = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    layer = {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{layer[parts[2]]}.weight"
    return f"{whole[parts[0]]}.weight"


def config(facts: dict, layers: int, tied: bool) -> dict:
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": facts["llama.embedding_length"],
        "num_hidden_layers": layers,
        "num_attention_heads": facts["llama.attention.head_count"],
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "intermediate_size": facts["llama.feed_forward_length"],
        "vocab_size": facts["llama.vocab_size"],
        "rope_theta": facts["llama.rope.freq_base"],
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": tied,
        "max_position_embeddings": facts["llama.context_length"],
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
