"""Makes the golden data of SmolLM2-135M-Instruct: logits and token ids from implementations that are not ours.

    python -m pip install transformers accelerate xllamacpp
    python tests/golden/smollm2/make.py path/to/SmolLM2-135M-Instruct.Q4_1.gguf

logits.safetensors   per prompt NAME: NAME.ids int64 [T], NAME.positions int64 [3], NAME.logits float32 [3, V], by
                     transformers' own GGUF loader in float32, eager attention, one forward over the whole prompt.
tokens.json          token ids of difficult strings by llama.cpp (special tokens parsed), and chats rendered
                     and tokenised by transformers' apply_chat_template.

Two implementations must agree before anything is written: transformers' converted tokenizer and llama.cpp give the
same ids. transformers 5 ignores `tokenizer.ggml.pre`, so for "smollm" it does not split digits from what precedes
them; DIGITS puts that step back ("a  12" begins "a", two spaces as one token, "1"). Nothing else of it is changed.
"""

import argparse
import hashlib
import json
import platform
import urllib.request
from pathlib import Path

import torch
import transformers
import xllamacpp
from safetensors.torch import save_file
from tokenizers import pre_tokenizers

HERE = Path(__file__).parent
DIGITS = pre_tokenizers.Sequence(
    [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
)
SENTENCE = "The lighthouse keeper counted 17 ships before dawn, then climbed down to make a pot of coffee."
MIXED = (
    "def area(r):\n    return 3.14159 * r**2  # πr²\n\nprint(area(2))\n"
    "今日は天気がいいですね。🌊🏄\u200d♀️ 한국어 텍스트 and naïve café\n"
)
QUESTION = [{"role": "user", "content": "What is the capital of France, and why is it famous?"}]
STRINGS = [
    "",
    "Hello, world!",
    " leading and trailing ",
    "a  12  345   6789",
    "two\n\nlines\r\nand\ttabs\t\t.",
    "     five spaces     ",
    "3.14159e-10 + 1,000,000 = ½ of ² and ٣٤",
    "don't you'll we've I'M",
    "naïve café Ångström e\u0301",
    "今日は天気がいいですね。",
    "한국어 텍스트, 中文字符。",
    "🌊🏄\u200d♀️👨\u200d👩\u200d👧\u200d👦 flags 🇫🇷🇯🇵",
    "for (int i = 0; i < 10; ++i) { x[i] <<= 2; }",
    "def f(x):\n    if x:\n        return {'a': [1, 2]}\n",
    "<|im_start|>user\nhi<|im_end|>\n",
    "text<|endoftext|>more <file_sep> <repo_name>x",
    "<|im_start|",
    "https://example.org/a?b=1&c=%20#d",
    "\u00a0non\u2003breaking\u3000spaces",
    "Привет, мир! Γειά σου Κόσμε. שלום",
    "ﬁ ligature, \ufeff mark, \u200bzero width",
    "x" * 40,
    "(((((([[[[{{{{",
    "private \U000f0000 and last \U0010ffff",
]
CHATS = [
    QUESTION,
    [
        {"role": "system", "content": "Answer in one word."},
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "Four."},
        {"role": "user", "content": "And 🌊 in English?"},
    ],
]


def forward(folder: Path, file: str, prompts: dict[str, list[int]]) -> dict[str, torch.Tensor]:
    """Logits of the first, a middle and the last position of every prompt."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=file, dtype=torch.float32, attn_implementation="eager"
    )
    tensors = {}
    for name, ids in prompts.items():
        positions = torch.tensor([0, len(ids) // 2, len(ids) - 1])
        with torch.inference_mode():
            logits = model(torch.tensor([ids])).logits[0]
        assert logits.dtype == torch.float32
        tensors |= {
            f"{name}.ids": torch.tensor(ids),
            f"{name}.positions": positions,
            f"{name}.logits": logits[positions],
        }
    return tensors


def llama_cpp_ids(path: Path, texts: list[str]) -> list[list[int]]:
    """Token ids by llama.cpp's server, special tokens parsed, nothing added."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(path)
    parameters.n_ctx = 256
    server = xllamacpp.Server(parameters)
    found = []
    for text in texts:
        body = json.dumps({"content": text, "add_special": False, "parse_special": True}).encode()
        request = urllib.request.Request(
            f"{server.listening_address}/tokenize", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            found.append(json.load(answer)["tokens"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=Path)
    path = parser.parse_args().gguf
    torch.set_num_threads(2)

    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    tokenizer.backend_tokenizer.pre_tokenizer = DIGITS
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in STRINGS]
    differing = [
        text for text, ours, theirs in zip(STRINGS, ids, llama_cpp_ids(path, STRINGS), strict=True) if ours != theirs
    ]
    if differing:
        raise SystemExit(f"transformers and llama.cpp disagree about {differing}")

    chats = []
    for messages in CHATS:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        chats.append({"messages": messages, "text": text, "ids": tokenizer.encode(text, add_special_tokens=False)})
    origin = {
        "command": f"python tests/golden/smollm2/make.py {path.name}",
        "gguf_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "xllamacpp": xllamacpp.__version__,
        "machine": platform.machine(),
    }
    prompts = {"sentence": tokenizer.encode(SENTENCE), "chat": chats[0]["ids"], "mixed": tokenizer.encode(MIXED)}
    texts = {"text.sentence": SENTENCE, "text.chat": chats[0]["text"], "text.mixed": MIXED}
    save_file(forward(path.parent, path.name, prompts), HERE / "logits.safetensors", metadata=origin | texts)
    strings = [{"text": text, "ids": found} for text, found in zip(STRINGS, ids, strict=True)]
    document = {"origin": origin, "strings": strings, "chats": chats}
    (HERE / "tokens.json").write_text(json.dumps(document, indent=1, ensure_ascii=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
