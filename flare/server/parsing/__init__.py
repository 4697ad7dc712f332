"""How models are spoken to, and how their answers are read."""

from flare.config.config import Config
from flare.contract.vocabulary import Vocabulary
from flare.server.parsing.answer_format import AnswerFormat
from flare.server.parsing.formats import FORMATS, chosen
from flare.server.parsing.model_format import ModelFormat
from flare.server.parsing.reader import THINK_END

__all__ = ["AnswerFormat", "answer_format"]


def answer_format(config: Config, vocabulary: Vocabulary) -> AnswerFormat:
    """The format of the configured model: as `serving` says, or as its chat template shows."""
    template = vocabulary.chat_template or ""
    wished, thinks = config.serving.tool_format, config.serving.reasoning_format
    calls = chosen(template) if wished == "auto" else FORMATS.get(wished)
    return ModelFormat(vocabulary, calls, THINK_END in template if thinks == "auto" else thinks == "think")
