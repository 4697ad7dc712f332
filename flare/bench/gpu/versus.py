"""Against transformers in the same visit: its `generate`, eager and with prompt lookup, on the same weights."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from flare.bench.arms import Arm
from flare.bench.gpu.engines import ARMS, recorded
from flare.bench.gpu.visit import Visit, replaced
from flare.bench.gpu.weights import llama_config
from flare.bench.versus import LOOKUP_TOKENS
from flare.build import Core, plan_parts
from flare.checkpoint.source import Source, locate

RUNS = 3


def measure(visit: Visit) -> dict[str, Any]:
    """Milliseconds per token of each side at one stream."""
    if find_spec("transformers") is None:
        return {"skipped": "transformers is not installed"}
    core = visit.core("smollm2")
    model = llama_of(core, visit.device)
    prompt = visit.prompts(1)[0]
    tokens = visit.sizes.decode_tokens
    found: dict[str, Any] = {"prompt_tokens": len(prompt), "tokens": tokens}
    found["transformers generate"] = generate_ms(model, prompt, tokens)
    found[f"transformers prompt_lookup_num_tokens={LOOKUP_TOKENS}"] = generate_ms(
        model, prompt, tokens, prompt_lookup_num_tokens=LOOKUP_TOKENS
    )
    found["transformers forward, eager"] = forward_ms(model, len(prompt))
    for name, changes in ARMS.items():
        arm = Arm(name, name, "both", replaced(core.config, changes))
        taken = []
        for _ in range(RUNS + 1):
            _, (answer, *_) = recorded(core, arm, [prompt], tokens)
            taken.append(1e3 * answer.timing.decode_s / max(len(answer.token_ids) - 1, 1))
        found[f"flare {name}"] = median(taken[1:])
    return found


def llama_of(core: Core, device: str) -> Any:
    """transformers' own model with the weights that the core's checkpoint holds."""
    transformers = import_module("transformers")
    transformers.utils.logging.set_verbosity_error()
    stored, target = core.config.checkpoint, core.config.recipe.target
    geometry = target.settings.geometry.model_dump()
    read = plan_parts(core.config).target.stored(locate(Source(stored.source, stored.path, stored.id, stored.revision)))
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**llama_config(geometry)))
    model.load_state_dict(llama_state(read, geometry), strict=False)
    model.tie_weights()
    return model.to(device=device, dtype=torch.bfloat16).eval()


def llama_state(read: Callable[[str], Tensor], geometry: dict[str, Any]) -> dict[str, Tensor]:
    """Hugging Face names from the target's declared ones."""
    keys, queries = geometry["kv_heads"] * geometry["head_dim"], geometry["query_heads"] * geometry["head_dim"]
    state = {"model.embed_tokens.weight": read("embed"), "model.norm.weight": read("norm")}
    if not geometry["tied"]:
        state["lm_head.weight"] = read("head")
    for index in range(geometry["layers"]):
        ours, theirs = f"layers.{index}", f"model.layers.{index}"
        q, k, v = read(f"{ours}.qkv").split((queries, keys, keys))
        gate, up = read(f"{ours}.gate_up").chunk(2)
        state |= {
            f"{theirs}.input_layernorm.weight": read(f"{ours}.attention_norm"),
            f"{theirs}.post_attention_layernorm.weight": read(f"{ours}.mlp_norm"),
            f"{theirs}.self_attn.q_proj.weight": q,
            f"{theirs}.self_attn.k_proj.weight": k,
            f"{theirs}.self_attn.v_proj.weight": v,
            f"{theirs}.self_attn.o_proj.weight": read(f"{ours}.output"),
            f"{theirs}.mlp.gate_proj.weight": gate,
            f"{theirs}.mlp.up_proj.weight": up,
            f"{theirs}.mlp.down_proj.weight": read(f"{ours}.down"),
        }
    return {name: tensor.contiguous() for name, tensor in state.items()}


def generate_ms(model: Any, prompt: list[int], tokens: int, **options: Any) -> dict[str, Any]:
    """Milliseconds per token, prompt apart: a run of one token is taken off."""
    ids = torch.tensor([prompt], device=model.device)
    asked: dict[str, Any] = {"attention_mask": torch.ones_like(ids), "pad_token_id": 0, "do_sample": False, **options}
    taken, first = [], []
    for _ in range(RUNS + 1):
        first.append(_seconds(lambda: model.generate(ids, max_new_tokens=1, min_new_tokens=1, **asked)))
        taken.append(_seconds(lambda: model.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, **asked)))
    decode = median(taken[1:]) - median(first[1:])
    return {"ms_per_token": 1e3 * decode / max(tokens - 1, 1), "first_token_ms": 1e3 * median(first[1:])}


def forward_ms(model: Any, context: int) -> float:
    """Milliseconds of one forward over one token after a cached prompt."""
    with torch.inference_mode():
        cache = model(torch.ones(1, context, dtype=torch.int64, device=model.device), use_cache=True).past_key_values
        one = torch.ones(1, 1, dtype=torch.int64, device=model.device)
        taken = []
        for _ in range(2 * RUNS):
            taken.append(_seconds(lambda: model(one, past_key_values=cache, use_cache=True).logits[0, -1, 0].item()))
    return 1e3 * median(taken[RUNS:])


def _seconds(work: Callable[[], object]) -> float:
    since = perf_counter()
    answer = work()
    if isinstance(answer, Tensor):
        answer.flatten()[0].item()  # the host waits for the device
    return perf_counter() - since
