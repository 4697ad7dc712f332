"""The vocabulary of a Hugging Face folder: tokenizer.json with the facts of the files around it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from flare.checkpoint.gguf_vocabulary import ending_ids
from flare.contract.vocabulary import Vocabulary
from flare.errors import CheckpointError


def vocabulary_of(
    folder: Path, config: Mapping[str, Any], tokenizer_config: Mapping[str, Any], generation: Mapping[str, Any]
) -> Vocabulary:
    """Read tokenizer.json and decide what ends a response, what begins a prompt, and how chats look.

    Args:
        config, tokenizer_config, generation: config.json, tokenizer_config.json, generation_config.json.

    Raises:
        CheckpointError: tokenizer.json is missing or damaged.
    """
    tokenizer = read_tokenizer(folder / "tokenizer.json")
    bos, eos = (whole_token(tokenizer, tokenizer_config.get(key)) for key in ("bos_token", "eos_token"))
    bos_id = bos if bos is not None else config.get("bos_token_id")
    named = [*listed(generation.get("eos_token_id")), *listed(config.get("eos_token_id")), eos]
    control = {token.content: id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    return Vocabulary(
        tokenizer,
        eos_ids=ending_ids(named, control),
        bos_id=bos_id,
        add_bos=begins_with(tokenizer, bos_id, tokenizer_config.get("add_bos_token")),
        chat_template=chat_template(folder, tokenizer_config),
    )


def read_tokenizer(file: Path) -> Tokenizer:
    """The tokenizer without truncation or padding, which belong to training."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CheckpointError(f"{file.parent} has no {file.name}: download it, or correct checkpoint.path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"Cannot read {file}: {error}; download it again.") from error
    try:
        tokenizer = Tokenizer.from_str(text)
    # The tokenizers library raises bare Exception for a file it cannot parse; nothing else happens in this call.
    except Exception as error:
        raise CheckpointError(f"{file} is not a tokenizer ({error}): download it again.") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def whole_token(tokenizer: Tokenizer, token: Any) -> int | None:
    """Id of a token given as text or, as older files do, as an object with its content."""
    content = token.get("content") if isinstance(token, Mapping) else token
    return tokenizer.token_to_id(content) if isinstance(content, str) else None


def listed(ids: Any) -> list[int]:
    """Ids from a field that may hold none, one or several."""
    if ids is None:
        return []
    return list(ids) if isinstance(ids, list) else [ids]


def begins_with(tokenizer: Tokenizer, bos_id: int | None, stated: bool | None) -> bool:
    """Whether plain text gets a begin token: as stated, else as the tokenizer's own post-processor does."""
    if stated is not None:
        return stated
    return bos_id is not None and tokenizer.encode("", add_special_tokens=True).ids[:1] == [bos_id]


def chat_template(folder: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    """The template beside the tokenizer, else the one inside its configuration (the default of several)."""
    file = folder / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):
        return next((entry["template"] for entry in template if entry["name"] == "default"), None)
    return template
