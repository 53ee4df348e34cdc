"""Rotate the API keys of a provider: a rate-limited key pauses, a refused key is dropped."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from treadle.core.errors import ConfigError, ToolError
from treadle.core.untrusted.sanitize import one_line

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Key:
    """API key; `name` is the environment variable that holds it. Both are empty if a provider needs no key."""

    name: str
    value: str = field(repr=False)


class KeyRing:
    """Rotation of keys. It never waits; `clock` returns the current time, in seconds."""

    def __init__(self, names: Sequence[str], environ: Mapping[str, str], *, clock: Callable[[], float]) -> None:
        """Read the keys from the variables `names` in `environ`; without names there is one empty key.

        Raises ConfigError naming a variable without a usable key.
        """
        self._keys = [Key(name, _value(name, environ)) for name in names] or [Key("", "")]
        self._names = tuple(names)
        self._paused_until: dict[Key, float] = {}
        self._clock = clock

    def __len__(self) -> int:
        """Return the number of keys that are not dropped."""
        return len(self._keys)

    def take(self) -> Key | None:
        """Return the next key that is not paused; None if all are paused until `ready_at`.

        Raises ToolError, which names the variables, if all keys are dropped.
        """
        self._check()
        now = self._clock()
        for place, key in enumerate(self._keys):
            if self._paused_until.get(key, now) <= now:
                self._keys.append(self._keys.pop(place))
                return key
        return None

    def pause(self, key: Key, seconds: float) -> None:
        """Pause a key for some seconds; of several pauses the longest counts."""
        self._paused_until[key] = max(self._clock() + seconds, self._paused_until.get(key, 0.0))

    def drop(self, key: Key, reason: str) -> None:
        """Drop a key for good."""
        if key not in self._keys:
            return
        self._keys.remove(key)
        if key.name:
            _log.warning("the key in %s was refused and is no longer used: %s", key.name, one_line(reason))

    def ready_at(self) -> float:
        """Return the time at which the first key may be used. Raises ToolError if all are dropped."""
        self._check()
        return min(self._paused_until.get(key, self._clock()) for key in self._keys)

    def _check(self) -> None:
        if self._keys:
            return
        if not self._names:
            raise ToolError(
                "the search provider refuses requests without a key. For SearXNG, list json in search.formats of its "
                "settings.yml, and have its limiter off for this machine; or name a key in api_key_envs"
            )
        raise ToolError(
            f"the search provider refuses all keys, those in {', '.join(self._names)}; put valid ones there and resume"
        )


def _value(name: str, environ: Mapping[str, str]) -> str:
    value = environ.get(name, "")
    if not value or not value.isprintable() or not value.isascii() or " " in value:
        raise ConfigError(
            f"the search provider needs a key, but environment variable {name} "
            + ("does not hold a usable one" if value else "is not set")
        )
    return value
