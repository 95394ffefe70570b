"""LLM conversation history in Redis: atomic appends, gapless live subscriptions."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redis_history._names import *  # noqa: F403
    from redis_history._names import __version__ as __version__

    __all__: list[str]
else:  # a type checker that sees a __getattr__ believes in every name

    def __getattr__(name: str) -> Any:
        """Import all public names at the first use of one. It takes half a second, which users of a part of the
        package, such as the help of the command line, need not wait."""
        public = name in ("__all__", "__version__") or not (name.startswith("_") or find_spec(f"{__name__}.{name}"))
        if not public:  # a submodule, which is imported next, or nothing
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from redis_history import _names

        names = globals()
        public_names = {each: value for each, value in vars(_names).items() if not each.startswith("_")}
        names |= {**public_names, "__version__": _names.__version__}
        names["__all__"] = sorted([*public_names, "__version__"])
        if name not in names:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return names[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
