"""Messages in the forms of providers, and back, without loss.

`from_x` keeps what only that provider knows (unknown keys, the order of keys, null or "" or no content at all) under
`provider_meta["x"]` of the message or part; `to_x` puts it back. So for any list `m` of the provider's own dicts
`to_x(from_x(m)) == m`, also after the messages were stored. Going to *another* provider, what that one cannot carry is
reported: see `Loss`.
"""

from redis_history.formats._loss import Loss, OnLoss
from redis_history.formats.anthropic import from_anthropic, to_anthropic, to_anthropic_system
from redis_history.formats.openai_chat import from_openai_chat, to_openai_chat

__all__ = [
    "Loss",
    "OnLoss",
    "from_anthropic",
    "from_openai_chat",
    "to_anthropic",
    "to_anthropic_system",
    "to_openai_chat",
]
