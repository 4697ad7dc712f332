"""The engine on its own thread: what goes in, what comes out, and how both cross to asyncio."""

from flare.server.engine_thread.answers import AnswerLostError, Answers, Arrival, Ask
from flare.server.engine_thread.thread import EngineThread

__all__ = ["AnswerLostError", "Answers", "Arrival", "Ask", "EngineThread"]
