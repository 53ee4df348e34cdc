"""Keep secrets out of stored configuration.

A run keeps its configuration in plain files and sends it to Prefect. A secret is recognised in two ways: as the value
of an environment variable whose name or value marks it as secret, and by the key formats of well-known services.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from urllib.parse import unquote, urlsplit

from treadle.core.errors import ConfigError

# fmt: off
_SECRET_WORDS = frozenset({
    "KEY", "KEYS", "APIKEY", "TOKEN", "TOKENS", "SECRET", "SECRETS", "PASSWORD", "PASSWORDS", "PASSWD", "PASSPHRASE",
    "PASS", "PWD", "PW", "PAT", "AUTH", "BEARER", "CREDENTIAL", "CREDENTIALS", "CREDS", "COOKIE", "DSN", "WEBHOOK",
    "SIGNATURE", "JWT",
})
# fmt: on
_SECRET_WORD_ENDINGS = ("PASSWORD", "PASSWD", "TOKEN", "SECRET", "KEY")
"""Endings of words that are written without a separator, as in PGPASSWORD and OPENAIKEY."""
_OTHER_WORDS = frozenset({"MONKEY", "TURKEY", "DONKEY", "HOCKEY", "JOCKEY", "WHISKEY", "MICKEY", "HOTKEY", "PUBKEY"})
_COUNTS_OF_TOKENS = frozenset({"MAX", "MIN", "NUM", "TOTAL", "COUNT", "PER"})
_CONNECTION_STRING = re.compile(r"CONN(?:ECTION)?_?STR(?:ING)?(?![A-Z])")
_NOT_SECRET = frozenset({"PWD", "OLDPWD", "SSH_AUTH_SOCK", "TOKENS"})
_NOT_SECRET_ENDINGS = ("_FILE", "_PATH", "_DIR", "_SOCK", "PUBLIC_KEY")
_MIN_CHARS_ANYWHERE = 12
"""Minimum length of a value that is searched for anywhere in a text; a shorter one must be a separate word."""
_MIN_CHARS = 8

_KEY_FORMS = {
    "an OpenAI-style key": r"sk-(?:[A-Za-z]{2,8}-)*(?=[\w-]*\d)[\w-]{20,}",
    "a Hugging Face token": r"hf_[A-Za-z0-9]{30,}",
    "a GitHub token": r"gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{22,}",
    "a GitLab token": r"glpat-[\w-]{20,}",
    "an AWS key id": r"(?:AKIA|ASIA)[0-9A-Z]{16}",
    "a Google key": r"AIza[\w-]{35}|ya29\.[\w-]{20,}",
    "a Slack token": r"xox[abeprs]-[\w-]{10,}",
    "a Slack webhook": r"hooks\.slack\.com/services/T\w+/B\w+/\w+",
    "a Groq key": r"gsk_[A-Za-z0-9]{40,}",
    "an NVIDIA key": r"nvapi-[\w-]{40,}",
    "an xAI key": r"xai-[A-Za-z0-9]{40,}",
    "a Tavily key": r"tvly-(?:dev-|prod-)?[A-Za-z0-9]{20,}",
    "a Perplexity key": r"pplx-[A-Za-z0-9]{40,}",
    "a Replicate token": r"r8_[A-Za-z0-9]{35,}",
    "a Prefect key": r"pn[ub]_[A-Za-z0-9]{30,}",
    "a package registry's token": r"pypi-AgE[\w-]{40,}|npm_[A-Za-z0-9]{36}",
    "a JSON web token": r"eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}",
    "a key of an Azure account": r"(?i:AccountKey|SharedAccessKey)\s?=\s?[A-Za-z0-9+/]{40,}",
    "a private key": r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----",
}
_KEY_FORM = re.compile(
    r"(?<![A-Za-z0-9_])(?:" + "|".join(f"(?P<f{n}>{form})" for n, form in enumerate(_KEY_FORMS.values())) + ")"
)
_FORM_NAMES = tuple(_KEY_FORMS)
_PRIVATE_KEY = re.compile(r"-----BEGIN ((?:[A-Z]+ )*PRIVATE KEY)-----.*?(?:-----END \1-----|\Z)", re.DOTALL)
_URL_WITH_PASSWORD = re.compile(r"[a-z][a-z0-9+.-]{1,20}://[^\s/:@'\"]{0,100}:([^\s/'\"]{1,200})@", re.IGNORECASE)
"""Matches up to the last `@`, because passwords may contain `@`."""
_ACCOUNT_KEY = re.compile(r"(?:\A|;)\s*(?:AccountKey|SharedAccessKey|Password|Pwd)\s*=\s*([^;\s]{8,})", re.IGNORECASE)
_PLACEHOLDERS = frozenset({"password", "pass", "pw", "secret", "xxx", "***", "..."})

_REMEDY = (
    "a run keeps its configuration in plain files, so take it out, comments included, and name an environment variable "
    "where a key is needed"
)


def refuse_secrets(texts: Iterable[str], named: Collection[str] = ()) -> None:
    """Raise ConfigError if a text that is about to be stored contains a secret.

    `named` are environment variables that hold secrets whatever their names are. The error never shows the value.
    """
    kept = list(texts)
    for name, value in _secret_values(os.environ, named):
        if any(_holds(text, value) for text in kept):
            raise ConfigError(f"the configuration holds the value of environment variable {name}; {_REMEDY}")
    for text in kept:
        if (form := form_of_secret(text)) is not None:
            raise ConfigError(f"the configuration holds what looks like {form}; {_REMEDY}")


def redact(text: str, named: Collection[str] = ()) -> str:
    """Return a text with each secret that `refuse_secrets` would find replaced by a note of what it was."""
    text = _PRIVATE_KEY.sub("[a private key]", text)
    for name, value in _secret_values(os.environ, named):
        # In a diff, each line of a value has a mark before it.
        for part in dict.fromkeys([value, *value.splitlines()]):
            if part and _holds(text, part):
                text = text.replace(part, f"[{name}]")
    text = _KEY_FORM.sub(lambda match: f"[{form_of_secret(match[0])}]", text)
    return _URL_WITH_PASSWORD.sub(_without_password, text)


def _without_password(url: re.Match[str]) -> str:
    start, end = (place - url.start() for place in url.span(1))
    return url[0] if _is_placeholder(url[1]) else f"{url[0][:start]}[password]{url[0][end:]}"


def _is_placeholder(password: str) -> bool:
    """Return whether the password in a URL is only a placeholder: a common word or a variable, as in documentation."""
    return password.lower() in _PLACEHOLDERS or password.startswith(("$", "{", "<"))


def form_of_secret(text: str) -> str | None:
    """Return a description of the secret that a text contains, judging by its format alone; None if there is none."""
    if (match := _KEY_FORM.search(text)) is not None:
        return _FORM_NAMES[int(str(match.lastgroup)[1:])]
    for found in _URL_WITH_PASSWORD.finditer(text):
        if not _is_placeholder(found[1]):
            return "a URL with a password"
    return None


def is_secret_name(name: str) -> bool:
    """Return whether the name of an environment variable marks its value as secret."""
    upper = name.upper()
    if upper in _NOT_SECRET or upper.endswith(_NOT_SECRET_ENDINGS):
        return False
    words = set(re.split(r"[^A-Z]+", upper))
    if not words.isdisjoint(_COUNTS_OF_TOKENS):
        words.discard("TOKENS")
    is_word = not words.isdisjoint(_SECRET_WORDS)
    has_ending = any(word.endswith(_SECRET_WORD_ENDINGS) for word in words - _OTHER_WORDS)
    return is_word or has_ending or _CONNECTION_STRING.search(upper) is not None


def _secret_values(environ: Mapping[str, str], named: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield names and secret values of variables; for a URL or connection string, also the password in it."""
    for name, value in environ.items():
        password = _password_of(value)
        if name in named or password or is_secret_name(name):
            yield name, value
        if password:
            yield name, password


def _password_of(url: str) -> str:
    if (found := _ACCOUNT_KEY.search(url)) is not None:
        return found[1]
    if "://" not in url or "@" not in url:
        return ""
    try:
        return unquote(urlsplit(url).password or "")
    except ValueError:
        return ""


def _holds(text: str, value: str) -> bool:
    if len(value) >= _MIN_CHARS_ANYWHERE:
        return value in text
    # A short value counts only if it mixes letters and digits, as no plain word does.
    is_mixed = any(one.isdigit() for one in value) and any(one.isalpha() for one in value)
    if len(value) < _MIN_CHARS or not is_mixed:
        return False
    return re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text) is not None
