"""Reads one answer: thoughts first where the model has them, then content and calls between it.

What is decided here, and holds for every format:

- A marker inside thoughts is text of the thoughts; only the end of thinking counts there.
- Blanks around thoughts and calls are layout: they are left out. Content without either is told as it came.
- A call that turns out to be none is content, markers and all. If its arguments were being told already, they stay as
  far as they were told, and the whole of its text is content too: nothing is lost, and nothing is called by half.
- An answer that ends inside a call keeps the arguments told so far; if the call had not begun, its text is content.
- An answer that ends inside thoughts has nothing but thoughts.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field

from flare.contract.vocabulary import TextStream
from flare.server.parsing.answer_format import ContentPart, Part, ReasoningPart, ToolSpec
from flare.server.parsing.arrivals import Arrivals
from flare.server.parsing.calls import Calls, Identify, random_id
from flare.server.parsing.formats.tool_format import ToolFormat
from flare.server.parsing.stream import BLANKS, CutShortError, NoCallError, Steps, Stream

THINK, THINK_END = "<think>", "</think>"


@dataclass(frozen=True)
class Reading:
    """What to look for in an answer.

    Attributes:
        calls: how calls are written; None where there are none to be found.
        thinks: the answer may begin with thoughts; `thinking`: it begins inside them, for the prompt opened them.
        control: markers that are control tokens, which have no text of their own: id → marker.
    """

    calls: ToolFormat | None = None
    tools: tuple[ToolSpec, ...] = ()
    thinks: bool = False
    thinking: bool = False
    control: Mapping[int, str] = field(default_factory=dict)
    identify: Identify = random_id


class Reader:
    """The `AnswerParser` of one choice.

    Attributes:
        reasoning_tokens: from the first token to the one that ends the thinking, markers included.
    """

    def __init__(self, reading: Reading, decoder: TextStream | None = None) -> None:
        """Args: decoder: a fresh one for the same tokens, where markers are control tokens."""
        self.reasoning_tokens = 0
        self._tokens = 0
        self._reading = reading
        self._stream = Stream()
        self._thinking = reading.thinking
        self._arrivals = Arrivals(reading.control, decoder)
        self._steps = self._answer()

    def push(self, texts: Sequence[str], token_ids: Sequence[int]) -> list[Part]:
        parts: list[Part] = []
        for index, token in enumerate(token_ids):
            self._tokens += 1
            parts += self._advance(self._arrivals.push(texts[index] if index < len(texts) else "", token))
            if self._thinking:
                self.reasoning_tokens = self._tokens
        return parts + self._advance("".join(texts[len(token_ids) :]))

    def finish(self) -> list[Part]:
        self._stream.ended = True
        return self._advance("")

    def _advance(self, text: str) -> list[Part]:
        """Read as far as the text allows."""
        if not text and not self._stream.ended:
            return []
        self._stream.text += text
        parts: list[Part] = []
        for part in self._steps:
            if part is None:
                break
            parts.append(part)
        return parts

    def _answer(self) -> Steps[None]:
        stream, reading = self._stream, self._reading
        thought = reading.thinking
        if reading.thinks or thought:
            thought = (yield from stream.follows(THINK)) or thought
        if thought:
            self._thinking = True
            yield from thoughts(stream)
            self._thinking = False
            self.reasoning_tokens = self._tokens
        words = Words(ContentPart, begun=not thought)
        if reading.calls is None:
            yield from rest(stream, words)
        else:
            yield from content_and_calls(stream, words, reading.calls, Calls(reading.tools, reading.identify))


class Words:
    """Text of one kind, told without blanks around it.

    Args:
        begun: blanks before the first word count.
    """

    def __init__(self, part: type[ContentPart] | type[ReasoningPart], begun: bool = False) -> None:
        self._part = part
        self._begun = begun
        self._blanks = ""

    def push(self, text: str, hold: bool = True) -> Generator[Part]:
        """More text; blanks at its end are held until something follows, unless no marker can."""
        text = self._blanks + text if self._begun else text.lstrip(BLANKS)
        words = text.rstrip(BLANKS) if hold else text
        self._blanks = text[len(words) :]
        if words:
            self._begun = True
            yield self._part(words)

    def finish(self) -> Generator[Part]:
        """Nothing follows, not even a marker: blanks at the end count."""
        if self._blanks:
            yield self._part(self._blanks)


def thoughts(stream: Stream) -> Steps[None]:
    """Text up to the end of thinking, or of the answer."""
    words = Words(ReasoningPart)
    while True:
        text, marker = stream.before((THINK_END,))
        yield from words.push(text)
        if marker is not None:
            return
        if stream.ended:
            yield from words.finish()
            return
        yield None


def rest(stream: Stream, words: Words) -> Steps[None]:
    """Content up to the end."""
    while True:
        yield from words.push(stream.take(len(stream.text)), hold=False)
        if stream.ended:
            return
        yield None


def content_and_calls(stream: Stream, words: Words, format: ToolFormat, calls: Calls) -> Steps[None]:
    """Content with calls in it, up to the end."""
    markers = [marker for marker in (format.opening, format.begin) if marker]
    while True:
        if not markers:
            if not (yield from object_follows(stream)):
                yield from rest(stream, words)
                return
            marker = ""
        else:
            text, marker = stream.before(markers)
            yield from words.push(text)
            if marker is None:
                if stream.ended:
                    yield from words.finish()
                    return
                yield None
                continue
        stream.record(marker)
        called = yield from is_call(stream, format, calls, marker)
        read = stream.recorded()
        if called:
            words = Words(ContentPart)
            continue
        yield from words.push(read)
        if not markers:
            yield from rest(stream, words)
            return


def object_follows(stream: Stream) -> Steps[bool]:
    """Whether the next character that is no blank opens an object; nothing is read."""
    while not (text := stream.text.lstrip(BLANKS)):
        if stream.ended:
            return False
        yield None
    return text[0] == "{"


def is_call(stream: Stream, format: ToolFormat, calls: Calls, marker: str) -> Steps[bool]:
    """Read what the marker begins; whether it was a call, or the beginning of one at the end of the answer."""
    calls.begun = False
    try:
        if marker == format.opening and marker:
            yield from stream.expect(format.begin)
        yield from format.read(stream, calls)
    except NoCallError:
        return False
    except CutShortError:
        return calls.begun
    if format.closing:
        yield from stream.follows(format.closing)
    return True
