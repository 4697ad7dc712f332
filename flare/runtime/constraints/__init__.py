"""What the text of a request must follow: grammars as masks per row, forced tokens as drafts, markers."""

from flare.runtime.constraints.constraint import Constraint
from flare.runtime.constraints.grammar import Grammars
from flare.runtime.constraints.marker import AfterMarker
from flare.runtime.constraints.matcher import Matcher
from flare.runtime.constraints.wishes import grammar_text, schema_text, wished

__all__ = [
    "AfterMarker",
    "Constraint",
    "Grammars",
    "Matcher",
    "grammar_text",
    "schema_text",
    "wished",
]
