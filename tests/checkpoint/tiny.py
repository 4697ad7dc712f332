"""A tiny random Llama with a byte-level tokenizer, written as a Hugging Face folder and as a GGUF file.

The GGUF writer interleaves rotary rows one by one, from the definition, not with the reader's reshape.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

GEOMETRY = SimpleNamespace(hidden=32, layers=2, query_heads=4, kv_heads=2, head_dim=8, ffn=64, vocab=262, tied=False)
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
MERGES = [("h", "e"), ("l", "l"), ("Ġ", "he")]


def tokens() -> list[str]:
    """Control tokens, the 256 stand-ins for bytes, merges."""
    return [*CONTROL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(left + right for left, right in MERGES)]


def tokenizer() -> Tokenizer:
    built = Tokenizer(models.BPE({token: id for id, token in enumerate(tokens())}, MERGES))
    built.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in CONTROL])
    return built


def weights(tied: bool = False, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random tensors under Hugging Face names, multiples of 1/8 so that every float format holds them exactly."""
    draw, g = torch.Generator().manual_seed(seed), GEOMETRY

    def random(*shape: int) -> torch.Tensor:
        return torch.randint(-64, 64, shape, generator=draw).float() / 8

    tensors = {"model.embed_tokens.weight": random(g.vocab, g.hidden), "model.norm.weight": random(g.hidden)}
    if not tied:
        tensors["lm_head.weight"] = random(g.vocab, g.hidden)
    for index in range(g.layers):
        p = f"model.layers.{index}."
        tensors[p + "input_layernorm.weight"] = random(g.hidden)
        tensors[p + "self_attn.q_proj.weight"] = random(g.query_heads * g.head_dim, g.hidden)
        tensors[p + "self_attn.k_proj.weight"] = random(g.kv_heads * g.head_dim, g.hidden)
        tensors[p + "self_attn.v_proj.weight"] = random(g.kv_heads * g.head_dim, g.hidden)
        tensors[p + "self_attn.o_proj.weight"] = random(g.hidden, g.query_heads * g.head_dim)
        tensors[p + "post_attention_layernorm.weight"] = random(g.hidden)
        tensors[p + "mlp.gate_proj.weight"] = random(g.ffn, g.hidden)
        tensors[p + "mlp.up_proj.weight"] = random(g.ffn, g.hidden)
        tensors[p + "mlp.down_proj.weight"] = random(g.hidden, g.ffn)
    return tensors


def config(tied: bool = False) -> dict:
    g = GEOMETRY
    return {
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": g.hidden,
        "num_hidden_layers": g.layers,
        "num_attention_heads": g.query_heads,
        "num_key_value_heads": g.kv_heads,
        "intermediate_size": g.ffn,
        "vocab_size": g.vocab,
        "rope_theta": 100000.0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": tied,
        "max_position_embeddings": 128,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def write_folder(path: Path, tensors: dict[str, torch.Tensor], shards: int = 1, **changes: object) -> Path:
    """A Hugging Face folder; `changes` go into config.json."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config("lm_head.weight" not in tensors) | changes))
    (path / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": TEMPLATE})
    )
    tokenizer().save(str(path / "tokenizer.json"))
    if shards == 1:
        save_file(tensors, path / "model.safetensors")
        return path
    places = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        names = sorted(tensors)[shard::shards]
        save_file({one: tensors[one] for one in names}, path / name)
        places |= dict.fromkeys(names, name)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return path


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Row by row: dimension j of a head goes to 2j, its partner j + D/2 to 2j + 1."""
    D, result = len(rows) // heads, np.empty_like(rows)
    for head in range(heads):
        for j in range(D // 2):
            result[head * D + 2 * j] = rows[head * D + j]
            result[head * D + 2 * j + 1] = rows[head * D + j + D // 2]
    return result


def write_gguf(path: Path, tensors: dict[str, torch.Tensor], quantised: str | None = None, **changes: object) -> Path:
    """A GGUF file; matrices in the `quantised` type if given; `changes` replace keys ("llama__expert_count")."""
    g, writer = GEOMETRY, gguf.GGUFWriter(path, "llama")
    writer.add_block_count(g.layers)
    writer.add_context_length(128)
    writer.add_embedding_length(g.hidden)
    writer.add_feed_forward_length(g.ffn)
    writer.add_head_count(g.query_heads)
    writer.add_head_count_kv(g.kv_heads)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens())
    writer.add_token_types(
        [gguf.TokenType.CONTROL if token in CONTROL else gguf.TokenType.NORMAL for token in tokens()]
    )
    writer.add_token_merges([f"{left} {right}" for left, right in MERGES])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for key, value in changes.items():
        if isinstance(value, str):
            writer.add_string(key.replace("__", "."), value)
        else:
            writer.add_uint32(key.replace("__", "."), int(value))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, g.layers)
    for name, tensor in tensors.items():
        heads = g.query_heads if "q_proj" in name else g.kv_heads if "k_proj" in name else 0
        values = interleaved(tensor.numpy(), heads) if heads else tensor.numpy()
        stored = names.get_name(name, try_suffixes=(".weight",)) or name
        if quantised and values.ndim == 2:
            kind = gguf.GGMLQuantizationType[quantised]
            writer.add_tensor(stored, gguf.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(stored, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
