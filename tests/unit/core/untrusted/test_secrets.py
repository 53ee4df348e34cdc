"""Secrets in configurations: found by the names of environment variables, and by the form of well-known keys."""

from __future__ import annotations

import random
import string
from pathlib import Path

import pytest

from treadle.core.errors import ConfigError
from treadle.core.untrusted.secrets import form_of_secret, is_secret_name, redact, refuse_secrets

ROOT = Path(__file__).resolve().parents[4]
_SOME = random.Random(7)


def noise(length: int, alphabet: str = string.ascii_letters + string.digits) -> str:
    """Random characters, made here so that no scanner of repositories takes this file for a leak."""
    return "".join(_SOME.choices(alphabet, k=length - 2)) + "7a"


KEYS = {
    "OpenAI": "sk-" + noise(48),
    "OpenAI project": "sk-proj-" + noise(60),
    "Anthropic": "sk-ant-api03-" + noise(80),
    "OpenRouter": "sk-or-v1-" + noise(64, "0123456789abcdef"),
    "Hugging Face": "hf_" + noise(34),
    "GitHub": "ghp_" + noise(36),
    "GitHub fine-grained": "github_pat_" + noise(40),
    "GitLab": "glpat-" + noise(20),
    "AWS": "AKIA" + noise(16, string.ascii_uppercase)[:-2] + "AB",
    "Google": "AIza" + noise(35),
    "Slack": "xoxb-" + noise(24),
    "Groq": "gsk_" + noise(52),
    "NVIDIA": "nvapi-" + noise(64),
    "xAI": "xai-" + noise(80),
    "Tavily": "tvly-dev-" + noise(32),
    "Perplexity": "pplx-" + noise(48),
    "Replicate": "r8_" + noise(37),
    "Prefect": "pnu_" + noise(36),
    "JWT": f"eyJ{noise(20)}.eyJ{noise(40)}.{noise(40)}",
    "Azure": f"DefaultEndpointsProtocol=https;AccountName=some;AccountKey={noise(86)}==",
    "private key": "-----BEGIN OPENSSH " + "PRIVATE KEY-----",
    "database": f"postgresql://someone:{noise(9)}@db.example/treadle",
    "proxy": f"http://someone:{noise(9)}@proxy.example:8080",
}


@pytest.fixture(autouse=True)
def no_secrets_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if is_secret_name(name) or "://" in os.environ[name]:
            monkeypatch.delenv(name)


@pytest.mark.parametrize("service", KEYS)
@pytest.mark.parametrize("around", ["{}", 'key = "{}"', "# {} is the key", "https://x.example/?k={}", "Bearer {}"])
def test_keys_are_detected_by_their_format(service: str, around: str) -> None:
    with pytest.raises(ConfigError, match="looks like an? ") as caught:
        refuse_secrets(["model = 'x'", around.format(KEYS[service])])
    assert KEYS[service] not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "sk-learn and sk-image",
        "risk-adjusted-returns-of-the-portfolio-in-2024",
        "task-specific-finetuning-with-lora-2024-11",
        "hf_hub",
        "models/Qwen2.5-7B-Instruct",
        "d2f1a7c0" * 8,
        "http://localhost:8000/v1",
        "http://user@host/v1",
        "postgresql://USER:PASSWORD@HOST/NAME",
        "postgresql://user:${PASSWORD}@host/name",
        "ratio 3:4@5",
        "see https://example.org/a:b@c",
        "disk-sk-",
        "AKIAfoo",
        "eyJ is how a token begins",
    ],
)
def test_other_texts_are_not_keys(text: str) -> None:
    assert form_of_secret(text) is None


def test_shipped_configs_and_pages_contain_no_keys() -> None:
    pages = [*ROOT.glob("configs/**/*.toml"), *ROOT.glob("docs/**/*.md"), ROOT / "README.md"]
    assert len(pages) > 30
    assert {page.name: form_of_secret(page.read_text()) for page in pages if form_of_secret(page.read_text())} == {}


@pytest.mark.parametrize(
    "name",
    ["GITHUB_PAT", "HF_TOKEN_READ", "OPENAI_API_KEY_2", "DB_PWD", "OPENAI_KEY", "AWS_SECRET_ACCESS_KEY", "APIKEY",
     "SERPER_KEYS", "my_password", "REDIS_AUTH", "SENTRY_DSN", "SLACK_WEBHOOK_URL", "KEY2", "CI_JOB_JWT",
     "PGPASSWORD", "HFTOKEN", "MYTOKEN", "OPENAIKEY", "hfToken", "DBPASSWD", "CLIENTSECRET2", "CONNECTION_STRING",
     "AZURE_STORAGE_CONNECTION_STRING", "SQLCONNSTR_MAIN", "GITHUB_TOKENS", "PGPASSWORD_PW", "GOOGLE_CREDENTIALS",
     "SSH_PASSPHRASE", "SERVICE.TOKEN"],
)  # fmt: skip
def test_value_is_detected_by_its_variable_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value = noise(16)
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"environment variable {name}") as caught:
        refuse_secrets([f"extra = {{ x = '{value}' }}"])
    assert value not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["PWD", "OLDPWD", "PATH", "HOME", "KEYBOARD", "MONKEY", "TOKENIZERS_PARALLELISM", "SSH_AUTH_SOCK",
             "PASSAGE", "MAX_TOKENS", "TOKENS", "TOKENIZER", "SSH_PUBLIC_KEY", "CONNECTION_STRENGTH",
     "GOOGLE_CREDENTIALS_FILE", "XAUTHORITY", "TURKEY_URL"],
)  # fmt: skip
def test_other_variables_are_not_secret(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize("name", ["DATABASE_URL", "HTTP_PROXY", "BROKER"])
def test_url_with_a_password_is_secret_under_any_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "postgresql://someone:correct%20horse%20battery@db.example/x")
    with pytest.raises(ConfigError, match=name):
        refuse_secrets(["note = 'correct horse battery'"])


def test_only_the_key_in_a_connection_string_is_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    key = noise(86) + "=="
    monkeypatch.setenv("STORAGE", f"AccountName=some;AccountKey={key};EndpointSuffix=core.windows.net")
    with pytest.raises(ConfigError, match="STORAGE"):
        refuse_secrets([f"note = '{key}'"])


def test_short_passwords_match_only_as_whole_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PWD", "hunter2go")
    with pytest.raises(ConfigError, match="DB_PWD"):
        refuse_secrets(["password = 'hunter2go'"])
    refuse_secrets(["a_hunter2gopher"])
    monkeypatch.setenv("DB_PWD", "disabled")
    refuse_secrets(["search = 'disabled'"])


def test_explicitly_named_variable_is_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARCH_ONE", "found-in-a-mail")
    refuse_secrets(["found-in-a-mail"])
    with pytest.raises(ConfigError, match="SEARCH_ONE"):
        refuse_secrets(["found-in-a-mail"], named={"SEARCH_ONE"})


def test_redacted_text_keeps_all_but_the_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "first-line-of-it\nsecond-line-of-it")
    body = "\n".join(f"+MIIEsecretbody{number}" for number in range(3))
    pem = "-----BEGIN RSA PRIVATE KEY-----\n{}\n+-----END RSA PRIVATE KEY-----"
    for text, expected in (
        (f"-old\n+{pem.format(body)}\n after", "-old\n+[a private key]\n after"),
        (f"{pem.format(body)[:60]}", "[a private key]"),
        ("+first-line-of-it\n+second-line-of-it", "+[MY_API_KEY]\n+[MY_API_KEY]"),
        ("http://u:p@h/p", "http://u:[password]@h/p"),
        ("redis://:p@ss0rd1@h/ and http://a:8080/b@c", "redis://:[password]@h/ and http://a:8080/b@c"),
        ("http://user:password@h http://user:$PW@h", "http://user:password@h http://user:$PW@h"),
    ):
        assert redact(text) == expected
