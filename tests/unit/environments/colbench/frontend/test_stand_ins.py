"""Stand-ins for what pages load: pictures by size, and Tailwind's rules for the classes of a page."""

from __future__ import annotations

import pytest

from treadle.environments.colbench.frontend.stand_ins import stand_in, with_styles
from treadle.environments.colbench.frontend.tailwind import style_sheet

SCRIPT = "<script src='https://cdn.tailwindcss.com'></script>"


def rules(*names: str) -> str:
    return style_sheet(f'<p class="{" ".join(names)}">')


def test_pictures_have_the_size_of_their_address_and_other_addresses_get_nothing() -> None:
    picture = stand_in("https://picsum.photos/id/48/300/200?random=1")
    assert picture is not None and picture.media_type == "image/svg+xml"
    assert b'width="300" height="200"' in picture.data
    for address in ("https://pages.example/x.png", "file:///etc/passwd", "http://169.254.169.254/", "data:,x"):
        assert stand_in(address) is None


@pytest.mark.parametrize(
    ("address", "media_type"),
    [
        ("https://cdn.tailwindcss.com/", "text/javascript"),
        ("https://cdn.jsdelivr.net/npm/tailwindcss@2.2.19/dist/tailwind.min.css", "text/css"),
    ],
)
def test_tailwind_itself_is_an_empty_file(address: str, media_type: str) -> None:
    found = stand_in(address)
    assert found is not None and (found.data, found.media_type) == (b"", media_type)


def test_page_that_loads_tailwind_gets_its_rules_in_the_head() -> None:
    page = f"<html lang='en'><head>{SCRIPT}</head><body class='p-4'>x</body></html>"
    styled = with_styles(page)
    assert styled.startswith("<html lang='en'><head><style>") and ".p-4{padding:1rem}" in styled
    assert with_styles(page, "b{color:red}</style><script>") == page.replace(
        "<head>", "<head><style>b{color:red}<\\/style><script></style>"
    )
    bare = "<html><body class='p-4'>x</body></html>"
    assert with_styles(bare) == bare


def test_long_hostile_pages_get_their_rules_in_one_pass() -> None:
    page = "src=" * 60_000
    assert with_styles(page) == page
    page = SCRIPT + "<head " * 60_000
    assert with_styles(page, "b{}") == f"<style>b{{}}</style>{page}"


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("p-4", ".p-4{padding:1rem}"),
        ("-mt-2", ".-mt-2{margin-top:-0.5rem}"),
        ("mx-auto", ".mx-auto{margin-left:auto;margin-right:auto}"),
        ("w-1/2", ".w-1\\2f 2{width:50%}"),
        ("h-screen", ".h-screen{height:100vh}"),
        ("max-w-4xl", ".max-w-4xl{max-width:56rem}"),
        ("w-[300px]", ".w-\\5b 300px\\5d {width:300px}"),
        ("bg-blue-500", ".bg-blue-500{background-color:#3b82f6}"),
        ("bg-[#abc]", ".bg-\\5b \\23 abc\\5d {background-color:#abc}"),
        ("text-white", ".text-white{color:#fff}"),
        ("text-3xl", ".text-3xl{font-size:1.875rem;line-height:2.25rem}"),
        ("text-center", ".text-center{text-align:center}"),
        ("font-bold", ".font-bold{font-weight:700}"),
        ("border-b-2", ".border-b-2{border-bottom-width:2px;border-bottom-style:solid}"),
        ("border", ".border{border-width:1px;border-style:solid}"),
        ("rounded-t-lg", ".rounded-t-lg{border-top-left-radius:.5rem;border-top-right-radius:.5rem}"),
        ("shadow", ".shadow{box-shadow:0 1px 3px #0000001a}"),
        ("justify-between", ".justify-between{justify-content:space-between}"),
        ("grid-cols-3", ".grid-cols-3{grid-template-columns:repeat(3,minmax(0,1fr))}"),
        ("space-x-4", ".space-x-4>*+*{margin-left:1rem}"),
        ("md:flex", "@media(min-width:768px){.md\\3a flex{display:flex}}"),
    ],
)
def test_class_gets_the_documented_rule(name: str, rule: str) -> None:
    assert style_sheet("") + rule == rules(name)


def test_unknown_classes_states_and_hostile_names_have_no_rule() -> None:
    base = style_sheet("")
    hostile = ("hover:p-4", "p-x", "text-zzz", "w-1/0", "bg-[url(x)]", "w-[1px;color:red]", "}body{display:none")
    assert rules(*hostile) == base
    hostile = (f"w-1/{'1' * 5_000}", f"w-{'9' * 400}/1", f"p-{'9' * 400}", f"w-[{'9' * 400}px]")
    assert rules(*hostile) == base


def test_wider_windows_come_last() -> None:
    sheet = rules("lg:p-8", "md:p-6", "p-4")
    assert sheet.index(".p-4") < sheet.index("min-width:768px") < sheet.index("min-width:1024px")
