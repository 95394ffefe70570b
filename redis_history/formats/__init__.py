"""Messages in the forms of providers, and back, without loss.

`from_x` keeps what only that provider knows (unknown keys, the order of keys, null or "" or no content at all) under
`provider_meta["x"]` of the message or part; `to_x` puts it back. So for any list `m` of the provider's own dicts that
the provider's own types accept `to_x(from_x(m)) == m`, also after the messages were stored. What they do not accept is
put right, unless `shape="original"` asks for it as it came. Going to *another* provider, what that one cannot carry is
reported: see `Loss`.
"""

from redis_history.formats._loss import Loss, OnLoss
from redis_history.formats._pairs import paired
from redis_history.formats._shape import Shape
from redis_history.formats.anthropic import from_anthropic, to_anthropic, to_anthropic_system
from redis_history.formats.gemini import from_gemini, to_gemini, to_gemini_system
from redis_history.formats.langchain import from_langchain, to_langchain
from redis_history.formats.mistral import from_mistral, to_mistral
from redis_history.formats.openai_chat import from_openai_chat, to_openai_chat
from redis_history.formats.openai_responses import from_openai_responses, to_openai_responses

__all__ = [
    "Loss",
    "OnLoss",
    "Shape",
    "from_anthropic",
    "from_gemini",
    "from_langchain",
    "from_mistral",
    "from_openai_chat",
    "from_openai_responses",
    "paired",
    "to_anthropic",
    "to_anthropic_system",
    "to_gemini",
    "to_gemini_system",
    "to_langchain",
    "to_mistral",
    "to_openai_chat",
    "to_openai_responses",
]
