"""What the text of a request must follow: grammars as masks per row, forced tokens as drafts, tool calls, markers."""

from flare.runtime.constraints.constraint import Constraint
from flare.runtime.constraints.grammar import Grammars
from flare.runtime.constraints.marker import AfterMarker
from flare.runtime.constraints.matcher import Matcher
from flare.runtime.constraints.tools import Named, Tool, ToolChoice, ToolMarkers, tool_grammar
from flare.runtime.constraints.wishes import grammar_text

__all__ = [
    "AfterMarker",
    "Constraint",
    "Grammars",
    "Matcher",
    "Named",
    "Tool",
    "ToolChoice",
    "ToolMarkers",
    "grammar_text",
    "tool_grammar",
]
