"""Worker process that extracts the text of pages: `python -P -m treadle.web.pages.worker`.

HTML and PDF are parsed by native code, which a page can make hang, exhaust memory, or worse. So this process loads the
parsers but parses no page itself. Each page is parsed by a forked child, which is restricted to computing (see
`core/untrusted/process_confinement.py`) and exits afterwards. A compromised child can reach nothing, and never sees
another page.

A request is two frames (`core/untrusted/worker_frames.py`), a JSON head and the body as sent. The reply is the child's
output (JSON, unless it was compromised), or its exit code. The process ends when its standard input closes, and so do
its children.
"""

from __future__ import annotations

import codecs
import contextlib
import gc
import os
import re
import select
import signal
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from typing import Any, BinaryIO, NoReturn

import orjson

from treadle.core.errors import SandboxError
from treadle.core.untrusted.process_confinement import confine, die_with_parent, drop_file_access, limit_memory
from treadle.core.untrusted.worker_frames import (
    DIED,
    MAX_REPLY_BYTES,
    REPLY,
    next_request,
    open_frames,
    send_frame,
)
from treadle.web.pages.passages import clean_beginning, clean_line
from treadle.web.types import (
    HTML_TYPES,
    MAX_PAGE_TITLE_CHARS,
    MAX_TEXT_CHARS,
    PDF_TYPE,
    TEXT_TYPES,
    PageText,
    Unfetchable,
)

READER_VERSION = 1
"""Version in the reader's name in entries; increment it if the same page gives another text."""
CPU_LIMIT_S = 5
"""CPU time limit of one page, in seconds."""
MEMORY_LIMIT_BYTES = 1024**3
"""Limit of the address space of this process and of each child."""

_PDF_S = 2.0
"""CPU seconds after which no further page of a PDF is started; the pages read by then are its text."""
_SNIFFED_BYTES = 1024

_SKIPPED_TAGS = [
    f":not(html):not(body){selector}"
    for selector in (
        "[hidden]",
        '[style*="display:none" i]',
        '[style*="display: none" i]',
        '[style*="visibility:hidden" i]',
        '[style*="visibility: hidden" i]',
    )
] + ["dialog:not([open])"]
"""Selectors of elements whose text is skipped, since the page hides them. `html` and `body` are excluded: some pages
hide them until a script has run."""

# Encodings of the WHATWG list (encoding.spec.whatwg.org) by their Python names. Loaded in advance, since a confined
# child can import no module.
_CODECS = (
    "utf-8 utf-8-sig utf-16 utf-16-le utf-16-be utf-32 ascii cp866 koi8-r koi8-u mac-roman cp874 gbk gb18030 big5 "
    "big5hkscs euc_jp iso2022_jp shift_jis cp932 euc_kr cp949 "
    + " ".join(f"iso8859-{part}" for part in (*range(1, 12), *range(13, 17)))
    + " "
    + " ".join(f"cp{page}" for page in range(1250, 1259))
).split()
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)

_PIPE = 3
"""File descriptor of the child's replies; its only one apart from two of /dev/null."""


def main() -> int:
    """Serve pages until standard input ends; return the exit code."""
    frames = open_frames()
    limit_memory(MEMORY_LIMIT_BYTES)
    try:
        readers = _load()
    except ImportError as error:
        send_frame(frames, REPLY, orjson.dumps({"failed": str(error)}))
        return 1
    drop_file_access()
    gc.freeze()  # Keeps memory pages shared that children only read.
    # A trial child reports what the kernel restricts, and that the parsers work when restricted.
    exit_code, reply = _in_child(_self_test)
    _send(frames, exit_code, reply)
    if exit_code:
        return 1
    problem = orjson.loads(reply)["problem"]
    while (head := next_request()) and (body := next_request()) is not None:
        _send(frames, *_in_child(partial(_answer, body, readers, known_problem=problem, **orjson.loads(head))))
    return 0


def _load() -> dict[str, str]:
    """Load everything that parsing needs; return names and versions of the parsers. Raises ImportError."""
    import pypdfium2  # noqa: F401
    import resiliparse.extract.html2text
    import resiliparse.parse.encoding  # noqa: F401

    for name in _CODECS:
        codecs.lookup(name)
    _read_samples()
    libraries = {"text/html": "resiliparse", PDF_TYPE: "pypdfium2"}
    return {kind: f"{name} {version(name)}/{READER_VERSION}" for kind, name in libraries.items()}


def _read_samples() -> None:
    import pypdfium2

    _read_html(b"<title>a</title><p>b", "")
    with contextlib.suppress(pypdfium2.PdfiumError):
        _read_pdf(b"%PDF-1.4")


def _self_test(problem: str) -> dict[str, Any]:
    _read_samples()
    return {"ready": True, "problem": problem}


def _in_child(work: Callable[[str], dict[str, Any]]) -> tuple[int, bytes]:
    """Run `work` in a forked child and wait for its end; return the child's exit code and output.

    `work` is called with a text about restrictions that are missing (see `process_confinement.confine`).
    """
    ours, theirs = os.pipe()
    parent, child = os.getpid(), os.fork()
    if not child:
        _run_child(parent, theirs, work)
    os.close(theirs)
    reply = _read_reply(ours)
    os.close(ours)
    # A child that has exited is not affected by this signal, so its exit code stays.
    os.kill(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    exit_code = os.waitstatus_to_exitcode(status)
    if usage.ru_utime + usage.ru_stime >= CPU_LIMIT_S:
        exit_code = -signal.SIGXCPU  # also if it ignored SIGXCPU until the kernel killed it
    return (1 if len(reply) > MAX_REPLY_BYTES else exit_code), reply[:MAX_REPLY_BYTES]


def _run_child(parent: int, reply_to: int, work: Callable[[str], dict[str, Any]]) -> NoReturn:
    exit_code = 1
    try:
        die_with_parent(parent)
        # The child must not reach the pipes of requests and replies.
        os.dup2(reply_to, _PIPE)
        os.close(0)
        os.closerange(_PIPE + 1, 1024)
        problem = confine(CPU_LIMIT_S)
        left = memoryview(orjson.dumps(work(problem)))
        while left:
            left = left[os.write(_PIPE, left) :]
        exit_code = 0
    finally:
        os._exit(exit_code)


def _read_reply(child: int) -> bytes:
    """Return the output of a child, truncated beyond MAX_REPLY_BYTES; exit this process if its input closes."""
    reply = b""
    waiting = select.poll()
    waiting.register(child, select.POLLIN)
    waiting.register(0, 0)  # reports whether the other end was closed
    while len(reply) <= MAX_REPLY_BYTES:
        ready = [number for number, _ in waiting.poll()]
        if 0 in ready:
            os._exit(0)  # the child ends with this process
        if not (part := os.read(child, 1 << 16)):
            break
        reply += part
    return reply


def _send(frames: BinaryIO, exit_code: int, reply: bytes) -> None:
    send_frame(frames, DIED if exit_code else REPLY, str(exit_code).encode() if exit_code else reply)


def _answer(
    body: bytes,
    readers: dict[str, str],
    problem: str,
    *,
    known_problem: str,
    media_type: str,
    charset: str,
    encoding: str,
    max_bytes: int,
) -> dict[str, Any]:
    if problem != known_problem:
        raise SandboxError(problem)
    try:
        return asdict(read_page(decompressed(body, encoding, max_bytes), media_type, charset, readers))
    except Unfetchable as error:
        return {"failure": error.kind, "detail": error.detail}
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the parser's error, the page is unreadable
        return {"failure": "unreadable", "detail": f"it is damaged or locked ({type(error).__name__})"}


def decompressed(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """Return a body without its content encoding. Raises Unfetchable if it is too large, unsupported or damaged."""
    if encoding in ("", "identity"):
        if len(body) > max_bytes:
            raise Unfetchable("too_large", f"more than {max_bytes} bytes")
        return body
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise Unfetchable("encoding", "its content encoding is not supported")
    if encoding == "deflate":
        # About half of all servers send deflate without the zlib header that the standard requires.
        is_wrapped = len(body) > 1 and body[0] & 15 == 8 and int.from_bytes(body[:2]) % 31 == 0
        window_bits = zlib.MAX_WBITS if is_wrapped else -zlib.MAX_WBITS
    else:
        window_bits = 16 + zlib.MAX_WBITS
    unpacker = zlib.decompressobj(window_bits)
    try:
        data = unpacker.decompress(body, max_bytes + 1)
    except zlib.error:
        raise Unfetchable("encoding", f"it is not encoded as declared ({encoding})") from None
    if len(data) > max_bytes:
        raise Unfetchable("too_large", f"more than {max_bytes} bytes when decompressed")
    if not unpacker.eof:
        raise Unfetchable("encoding", f"its compressed body is truncated ({encoding})")
    return data


def read_page(body: bytes, media_type: str, charset: str, readers: dict[str, str]) -> PageText:
    """Return title and text of a page. Raises Unfetchable if its type is not supported or it has no text."""
    if body[:_SNIFFED_BYTES].lstrip().startswith(b"%PDF-") or media_type == PDF_TYPE:
        kind, (title, text) = PDF_TYPE, _read_pdf(body)
    elif media_type in HTML_TYPES or (not media_type and _is_markup(body)):
        kind, (title, text) = media_type or "text/html", _read_html(body, charset)
    elif media_type in TEXT_TYPES:
        kind, title, text = media_type, "", _decoded(body, charset, is_html=False)
    else:
        raise Unfetchable("type", "its type is not supported")
    text = clean_beginning(text, MAX_TEXT_CHARS)
    if not text:
        raise Unfetchable("unreadable", "it has no text")
    reader = readers.get("text/html" if kind in HTML_TYPES else kind, f"plain/{READER_VERSION}")
    return PageText(clean_line(title[:MAX_TEXT_CHARS])[:MAX_PAGE_TITLE_CHARS].rstrip(), text, kind, reader)


def _is_markup(body: bytes) -> bool:
    return body[:_SNIFFED_BYTES].removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"<")


def _read_html(body: bytes, charset: str) -> tuple[str, str]:
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLTree

    tree = HTMLTree.parse(_decoded(body, charset, is_html=True))
    text = extract_plain_text(
        tree,
        preserve_formatting=True,
        main_content=False,
        alt_texts=False,
        links=False,
        form_fields=False,
        noscript=False,
        skip_elements=_SKIPPED_TAGS,
    )
    return tree.title or "", text


def _decoded(body: bytes, charset: str, *, is_html: bool) -> str:
    """Decode by byte order mark, else by the server's charset, else by the page's own declaration, else by a guess."""
    from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

    for mark, name in _BOMS:
        if body.startswith(mark):
            return body[len(mark) :].decode(name, "replace")
    declared = map_encoding_to_html5(charset, fallback_utf8=False) if charset else None
    try:
        return body.decode(declared or detect_encoding(body, from_html_meta=is_html) or "utf-8", "replace")
    except (LookupError, OSError):  # a codec that was not loaded in advance
        return body.decode("utf-8", "replace")


def _read_pdf(body: bytes) -> tuple[str, str]:
    import pypdfium2

    document = pypdfium2.PdfDocument(body)
    title: str = document.get_metadata_value("Title")
    pages: list[str] = []
    end = time.process_time() + _PDF_S
    for index in range(len(document)):
        if sum(map(len, pages)) > MAX_TEXT_CHARS or time.process_time() > end:
            break
        try:
            page = document[index]
            pages.append(_flowing(page.get_textpage().get_text_bounded()))
            page.close()
        except pypdfium2.PdfiumError:
            continue  # a damaged page; others may be intact
    return title, "\n\n".join(pages)


def _flowing(text: str) -> str:
    """Join the lines of a PDF page into one paragraph; hyphenation marks inside words are removed."""
    return " ".join(re.sub(r"[\x02\ufffe]\s*", "", text).split())


if __name__ == "__main__":
    sys.exit(main())
