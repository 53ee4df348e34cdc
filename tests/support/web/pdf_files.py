"""PDF files by hand (ISO 32000-1, 7.5), as small as readers take them."""

from __future__ import annotations

import zlib
from collections.abc import Sequence


def pdf_file(pages: Sequence[Sequence[str]], *, title: str = "") -> bytes:
    """Return a file with these lines of ASCII on its pages."""
    return _file([_lines(lines) for lines in pages], title)


def pdf_bomb(num_operators: int) -> bytes:
    """Return one page whose compressed content draws a letter this number of times."""
    return _file([b"BT /F1 1 Tf (a) Tj ET " * num_operators], "")


def _lines(lines: Sequence[str]) -> bytes:
    shown = " ".join(f"({_escaped(line)}) Tj T*" for line in lines)
    return f"BT /F1 12 Tf 14 TL 72 720 Td {shown} ET".encode("ascii")


def _escaped(text: str) -> str:
    return "".join(f"\\{char}" if char in "\\()" else char for char in text)


def _file(contents: Sequence[bytes], title: str) -> bytes:
    kids = " ".join(f"{5 + 2 * index} 0 R" for index in range(len(contents)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(contents)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        f"<< /Title ({_escaped(title)}) >>".encode(),
    ]
    for index, content in enumerate(contents):
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {6 + 2 * index} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>".encode()
        )
        packed = zlib.compress(content, 9)
        objects.append(b"<< /Filter /FlateDecode /Length %d >>\nstream\n" % len(packed) + packed + b"\nendstream")
    data, places = bytearray(b"%PDF-1.4\n"), []
    for number, body in enumerate(objects, 1):
        places.append(len(data))
        data += b"%d 0 obj\n" % number + body + b"\nendobj\n"
    table = len(data)
    data += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    data += b"".join(b"%010d 00000 n \n" % place for place in places)
    data += b"trailer << /Size %d /Root 1 0 R /Info 4 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, table)
    return bytes(data)
