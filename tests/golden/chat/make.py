"""Renders the chat templates of this folder with transformers and writes rendered.json; needs transformers.

python tests/golden/chat/make.py
"""

import json
from pathlib import Path
from typing import Any

import transformers
from transformers.utils.chat_template_utils import render_jinja_template

FOLDER = Path(__file__).parent
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Tomorrow's weather <in> °C",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
ASK = {"role": "user", "content": "How warm is it in Zürich & Genève?"}
SYSTEM = {"role": "system", "content": "Be brief."}


def called(id: str, name: str, arguments: dict[str, Any], as_text: bool) -> dict[str, Any]:
    written = json.dumps(arguments, ensure_ascii=False) if as_text else arguments
    return {"id": id, "type": "function", "function": {"name": name, "arguments": written}}


def conversations(as_text: bool) -> list[list[dict[str, Any]]]:
    calls = [
        called("call_0", "get_weather", {"city": "Zürich", "days": 2}, as_text),
        called("call_1", "now", {}, as_text),
    ]
    history = [
        {"role": "assistant", "content": None, "reasoning_content": "Two calls.", "tool_calls": calls},
        {"role": "tool", "content": '{"celsius": 3}', "tool_call_id": "call_0"},
        {"role": "tool", "content": "12:00", "tool_call_id": "call_1"},
    ]
    return [
        [ASK],
        [SYSTEM, ASK],
        [SYSTEM, ASK, *history],
        [ASK, *history, {"role": "assistant", "content": "3 °C."}, {"role": "user", "content": "Thanks"}],
    ]


def main() -> None:
    cases = []
    for name in ("hermes", "parameters", "glm", "deepseek"):
        template = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
        for messages in conversations(as_text=name == "deepseek"):
            for tools in (TOOLS, None):
                rendered, _ = render_jinja_template(
                    [messages], tools=tools, chat_template=template, add_generation_prompt=True, bos_token="<s>"
                )
                cases.append({"template": name, "messages": messages, "tools": tools, "text": rendered[0]})
    origin = {"command": "python tests/golden/chat/make.py", "transformers": transformers.__version__}
    written = json.dumps({"origin": origin, "cases": cases}, ensure_ascii=False, indent=1)
    (FOLDER / "rendered.json").write_text(written + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
