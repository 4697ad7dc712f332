"""A byte-level tokenizer of any size for synthetic checkpoints: every text encodes, every token id decodes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from flare.errors import CheckpointError

# Frequent pairs of English, so that prompts and answers are shorter than their bytes; Ġ stands for a space.
_PAIRS: Final = (
    "Ġt he in er an re on at en nd ti es or te of ed is it al ar st to nt ng se ha as ou io le ve co me de hi ri ro "
    "ic ne ea ra ce li ch ll be ma si om ur Ġa Ġs Ġw Ġi Ġo Ġb Ġc Ġm Ġf Ġh Ġd Ġp Ġl Ġn"
)
TEMPLATE: Final = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
CONTROL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
BYTES: Final = 256


def write_tokenizer(folder: Path, vocab: int, eos_id: int) -> None:
    """tokenizer.json and tokenizer_config.json with exactly `vocab` tokens.

    Bytes come first, then pairs, then reserved tokens; <|endoftext|> is `eos_id`, and the marks of chat turns follow.

    Raises:
        CheckpointError: the vocabulary is too small for bytes and control tokens.
    """
    if eos_id < BYTES or vocab < eos_id + len(CONTROL):
        raise CheckpointError(
            f"A synthetic checkpoint needs {BYTES} byte tokens below eos_id={eos_id} and {len(CONTROL) - 1} tokens "
            f"after it within vocab={vocab}: use eos_id={BYTES} or more and vocab=eos_id+{len(CONTROL)} or more."
        )
    control = {eos_id + index: token for index, token in enumerate(CONTROL)}
    pairs = _PAIRS.split()[: eos_id - BYTES]
    ordinary = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *pairs]
    tokens = [ordinary[id] if id < len(ordinary) else control.get(id, f"<|reserved_{id}|>") for id in range(vocab)]
    merges = [(pair[0], pair[1]) for pair in pairs]
    tokenizer = Tokenizer(models.BPE({token: id for id, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in CONTROL])
    tokenizer.save(str(folder / "tokenizer.json"))
    about: Mapping[str, object] = {
        "bos_token": None,
        "eos_token": CONTROL[2],
        "add_bos_token": False,
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
