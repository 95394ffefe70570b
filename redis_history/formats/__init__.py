"""Convert messages between `Message` and the formats of providers, without loss.

`from_x` keeps provider-specific details (unknown keys, key order, whether content was null, "" or missing) in
`provider_meta["x"]` of the message or part. `to_x` puts them back: `to_x(from_x(m)) == m` for every list `m` of dicts
that the provider's own types accept, also after the messages were stored. Dicts that these types reject are corrected,
unless `shape="original"` asks for the original. Content that cannot be converted to *another* provider's format is
reported as a `Loss`. The guide "Message formats" lists such content for each provider.
"""

from redis_history.formats._losses import Loss, OnLoss
from redis_history.formats._notes import Shape
from redis_history.formats._pairing import paired
from redis_history.formats.anthropic import from_anthropic, to_anthropic, to_anthropic_system
from redis_history.formats.gemini import from_gemini, to_gemini, to_gemini_system
from redis_history.formats.langchain_dicts import from_langchain, to_langchain
from redis_history.formats.mistral import from_mistral, to_mistral
from redis_history.formats.openai_chat import from_openai_chat, to_openai_chat
from redis_history.formats.openai_responses import from_openai_responses, to_openai_responses
from redis_history.formats.vercel_ai import from_vercel_ai, to_vercel_ai

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
    "from_vercel_ai",
    "paired",
    "to_anthropic",
    "to_anthropic_system",
    "to_gemini",
    "to_gemini_system",
    "to_langchain",
    "to_mistral",
    "to_openai_chat",
    "to_openai_responses",
    "to_vercel_ai",
]
