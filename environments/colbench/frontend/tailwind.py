"""Make the style sheet of a page from the names of its classes, in place of Tailwind's, which needs a network.

It has the classes that pages of WebSight use most, with Tailwind's documented values (https://v3.tailwindcss.com/docs):
layout, spacing, sizes, colours, text, borders and breakpoints. Others, and states such as `hover:`, have no effect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

_BASE = (
    "*,::before,::after{box-sizing:border-box;border:0 solid #e5e7eb}"
    "body{margin:0;line-height:1.5;font-family:ui-sans-serif,system-ui,sans-serif}"
    "h1,h2,h3,h4,h5,h6{font-size:inherit;font-weight:inherit;margin:0}"
    "p,ol,ul,dl,dd,figure,blockquote,pre,hr{margin:0;padding:0}ol,ul{list-style:none}"
    "a{color:inherit;text-decoration:inherit}img,svg,video{display:block;vertical-align:middle}"
    "img,video{max-width:100%;height:auto}table{border-collapse:collapse}"
    "button,input,select,textarea{font:inherit;color:inherit;margin:0;padding:0;background:transparent}"
)
_BREAKPOINTS = {"sm": 640, "md": 768, "lg": 1024, "xl": 1280, "2xl": 1536}
_SHADES = ("50", "100", "200", "300", "400", "500", "600", "700", "800", "900")
_HUES = {
    "slate": "f8fafc f1f5f9 e2e8f0 cbd5e1 94a3b8 64748b 475569 334155 1e293b 0f172a",
    "gray": "f9fafb f3f4f6 e5e7eb d1d5db 9ca3af 6b7280 4b5563 374151 1f2937 111827",
    "red": "fef2f2 fee2e2 fecaca fca5a5 f87171 ef4444 dc2626 b91c1c 991b1b 7f1d1d",
    "orange": "fff7ed ffedd5 fed7aa fdba74 fb923c f97316 ea580c c2410c 9a3412 7c2d12",
    "yellow": "fefce8 fef9c3 fef08a fde047 facc15 eab308 ca8a04 a16207 854d0e 713f12",
    "green": "f0fdf4 dcfce7 bbf7d0 86efac 4ade80 22c55e 16a34a 15803d 166534 14532d",
    "teal": "f0fdfa ccfbf1 99f6e4 5eead4 2dd4bf 14b8a6 0d9488 0f766e 115e59 134e4a",
    "blue": "eff6ff dbeafe bfdbfe 93c5fd 60a5fa 3b82f6 2563eb 1d4ed8 1e40af 1e3a8a",
    "indigo": "eef2ff e0e7ff c7d2fe a5b4fc 818cf8 6366f1 4f46e5 4338ca 3730a3 312e81",
    "purple": "faf5ff f3e8ff e9d5ff d8b4fe c084fc a855f7 9333ea 7e22ce 6b21a8 581c87",
    "pink": "fdf2f8 fce7f3 fbcfe8 f9a8d4 f472b6 ec4899 db2777 be185d 9d174d 831843",
}
_COLORS = {"white": "#fff", "black": "#000", "transparent": "transparent", "current": "currentColor"} | {
    f"{hue}-{shade}": f"#{color}"
    for hue, colors in _HUES.items()
    for shade, color in zip(_SHADES, colors.split(), strict=True)
}
_TEXT = {
    "xs": (0.75, 1), "sm": (0.875, 1.25), "base": (1, 1.5), "lg": (1.125, 1.75), "xl": (1.25, 1.75), "2xl": (1.5, 2),
    "3xl": (1.875, 2.25), "4xl": (2.25, 2.5), "5xl": (3, 3), "6xl": (3.75, 3.75), "7xl": (4.5, 4.5), "8xl": (6, 6),
}  # fmt: skip
_WEIGHTS = {"light": 300, "normal": 400, "medium": 500, "semibold": 600, "bold": 700, "extrabold": 800}
_RADII = {"": ".25rem", "sm": ".125rem", "md": ".375rem", "lg": ".5rem", "xl": ".75rem", "2xl": "1rem", "3xl": "1.5rem",
          "full": "9999px", "none": "0"}  # fmt: skip
_SHADOWS = {"": "0 1px 3px #0000001a", "sm": "0 1px 2px #0000000d", "md": "0 4px 6px #0000001a",
            "lg": "0 10px 15px #0000001a", "xl": "0 20px 25px #0000001a", "2xl": "0 25px 50px #00000040",
            "none": "none"}  # fmt: skip
_WIDTHS = {"xs": 20, "sm": 24, "md": 28, "lg": 32, "xl": 36, "2xl": 42, "3xl": 48, "4xl": 56, "5xl": 64, "6xl": 72,
           "7xl": 80}  # fmt: skip
_SIDES = {"": ("",), "t": ("-top",), "r": ("-right",), "b": ("-bottom",), "l": ("-left",),
          "x": ("-left", "-right"), "y": ("-top", "-bottom")}  # fmt: skip
_SINGLE = {
    "block": "display:block", "inline-block": "display:inline-block", "inline": "display:inline",
    "flex": "display:flex", "inline-flex": "display:inline-flex", "grid": "display:grid", "hidden": "display:none",
    "table": "display:table", "flex-row": "flex-direction:row", "flex-col": "flex-direction:column",
    "flex-row-reverse": "flex-direction:row-reverse", "flex-col-reverse": "flex-direction:column-reverse",
    "flex-wrap": "flex-wrap:wrap", "flex-nowrap": "flex-wrap:nowrap", "flex-1": "flex:1 1 0%",
    "flex-auto": "flex:1 1 auto", "flex-none": "flex:none", "flex-grow": "flex-grow:1", "grow": "flex-grow:1",
    "shrink-0": "flex-shrink:0", "flex-shrink-0": "flex-shrink:0", "static": "position:static",
    "relative": "position:relative", "absolute": "position:absolute", "fixed": "position:fixed",
    "sticky": "position:sticky", "overflow-hidden": "overflow:hidden", "overflow-auto": "overflow:auto",
    "container": "width:100%;max-width:1280px", "uppercase": "text-transform:uppercase",
    "lowercase": "text-transform:lowercase", "italic": "font-style:italic", "capitalize": "text-transform:capitalize",
    "underline": "text-decoration:underline", "no-underline": "text-decoration:none",
    "line-through": "text-decoration:line-through",
    "truncate": "overflow:hidden;text-overflow:ellipsis;white-space:nowrap", "list-disc": "list-style-type:disc",
    "list-decimal": "list-style-type:decimal", "list-inside": "list-style-position:inside",
    "object-cover": "object-fit:cover", "object-contain": "object-fit:contain", "bg-cover": "background-size:cover",
    "bg-center": "background-position:center", "bg-no-repeat": "background-repeat:no-repeat",
    "tracking-wide": "letter-spacing:.025em", "tracking-wider": "letter-spacing:.05em",
    "tracking-widest": "letter-spacing:.1em", "tracking-tight": "letter-spacing:-.025em",
    "font-sans": "font-family:ui-sans-serif,system-ui,sans-serif", "font-serif": "font-family:ui-serif,serif",
    "font-mono": "font-family:ui-monospace,monospace", "leading-none": "line-height:1",
    "leading-tight": "line-height:1.25", "leading-snug": "line-height:1.375", "leading-normal": "line-height:1.5",
    "leading-relaxed": "line-height:1.625", "leading-loose": "line-height:2", "self-center": "align-self:center",
    "self-start": "align-self:flex-start", "mx-auto": "margin-left:auto;margin-right:auto",
    "whitespace-nowrap": "white-space:nowrap",
}  # fmt: skip
_ALIGN = {"start": "flex-start", "end": "flex-end", "center": "center", "between": "space-between",
          "around": "space-around", "evenly": "space-evenly", "stretch": "stretch", "baseline": "baseline"}  # fmt: skip
_CLASS = re.compile(r"\bclass\s*=\s*(?:\"([^\"]*)\"|'([^']*)')", re.IGNORECASE)
_MAX_CLASSES = 5_000


def style_sheet(html: str) -> str:
    """Return the rules of a page's classes: unprefixed ones first, then those of breakpoints, narrow windows first."""
    names = dict.fromkeys(name for match in _CLASS.finditer(html) for name in (match[1] or match[2] or "").split())
    plain, wider = [_BASE], dict[int, list[str]]()
    for name in list(names)[:_MAX_CLASSES]:
        prefix, _, utility = name.rpartition(":")
        if prefix and prefix not in _BREAKPOINTS:
            continue
        declarations = _declarations(utility)
        if declarations:
            rule = f".{_escaped(name)}{_children(utility)}{{{declarations}}}"
            (wider.setdefault(_BREAKPOINTS[prefix], []) if prefix else plain).append(rule)
    media = [f"@media(min-width:{width}px){{{''.join(wider[width])}}}" for width in sorted(wider)]
    return "".join([*plain, *media])


def _escaped(name: str) -> str:
    escaped = re.sub(r"[^\w-]", lambda match: f"\\{ord(match[0]):x} ", name)
    return re.sub(r"^-?\d", lambda match: "".join(f"\\{ord(one):x} " for one in match[0]), escaped)


def _children(utility: str) -> str:
    return ">*+*" if re.match(r"-?(?:space|divide)-[xy]", utility) else ""


def _declarations(utility: str) -> str:
    """Return the declarations of a class without its prefix; empty for an unknown one."""
    if utility in _SINGLE:
        return _SINGLE[utility]
    for pattern, rule in _RULES.items():
        match = re.fullmatch(pattern, utility)
        if match is not None and (found := rule(*match.groups())):
            return found
    return ""


def _length(text: str) -> str:
    """Return a length of the spacing scale, a fraction, a name or a value in brackets; empty for another text."""
    names = {
        "px": "1px",
        "full": "100%",
        "auto": "auto",
        "min": "min-content",
        "max": "max-content",
        "fit": "fit-content",
    }
    if text in names:
        return names[text]
    if re.fullmatch(r"\d{1,4}(?:\.5)?", text):
        return f"{float(text) / 4:g}rem"
    if (fraction := re.fullmatch(r"(\d{1,4})/(\d{1,4})", text)) and int(fraction[2]):
        return f"{100 * int(fraction[1]) / int(fraction[2]):.6g}%"
    own = re.fullmatch(r"\[([0-9.]{1,9}(?:px|rem|em|%|vh|vw))\]", text)
    return own[1] if own else ""


def _sized(properties: tuple[str, ...], text: str, sign: str = "") -> str:
    length = _length(text)
    return ";".join(f"{one}:{sign}{length}" for one in properties) if length else ""


def _box(sign: str, kind: str, side: str, text: str) -> str:
    name = "margin" if kind == "m" else "padding"
    return _sized(tuple(f"{name}{one}" for one in _SIDES[side or ""]), text, sign)


def _color(text: str) -> str:
    if text in _COLORS:
        return _COLORS[text]
    own = re.fullmatch(r"\[(#[0-9a-fA-F]{3,8})\]", text)
    return own[1] if own else ""


def _colored(name: str, text: str) -> str:
    color = _color(text)
    return f"{name}:{color}" if color else ""


def _size(side: str, text: str) -> str:
    name = "width" if side == "w" else "height"
    if text == "screen":
        return f"{name}:100v{side}"
    return _sized((name,), text)


def _most_width(text: str) -> str:
    if text in _WIDTHS:
        return f"max-width:{_WIDTHS[text]}rem"
    screen = text.removeprefix("screen-")
    return f"max-width:{_BREAKPOINTS[screen]}px" if screen in _BREAKPOINTS else _sized(("max-width",), text)


def _text(text: str) -> str:
    if text in _TEXT:
        size, height = _TEXT[text]
        return f"font-size:{size}rem;line-height:{height}rem"
    if text in ("left", "center", "right", "justify"):
        return f"text-align:{text}"
    return _colored("color", text)


def _border(side: str, text: str) -> str:
    names = _SIDES[side or ""]
    if re.fullmatch(r"\d?", text):
        return ";".join(f"border{one}-width:{text or 1}px;border{one}-style:solid" for one in names)
    return _colored("border-color", text)


def _rounded(side: str, text: str) -> str:
    if text not in _RADII:
        return ""
    corners = {"": ("",), "t": ("-top-left", "-top-right"), "b": ("-bottom-left", "-bottom-right"),
               "l": ("-top-left", "-bottom-left"), "r": ("-top-right", "-bottom-right")}[side or ""]  # fmt: skip
    return ";".join(f"border{one}-radius:{_RADII[text]}" for one in corners)


def _between(sign: str, axis: str, text: str) -> str:
    return _sized((f"margin-{'left' if axis == 'x' else 'top'}",), text, sign)


_Rule = Callable[..., str]
_RULES: Mapping[str, _Rule] = {
    r"(-?)([mp])([trblxy])?-(.+)": _box,
    r"(-?)space-([xy])-(.+)": _between,
    r"([wh])-(.+)": _size,
    r"max-w-(.+)": _most_width,
    r"(min|max)-([wh])-(screen|full)": lambda which, side, text: (
        f"{which}-{'width' if side == 'w' else 'height'}:{f'100v{side}' if text == 'screen' else '100%'}"
    ),
    r"text-(.+)": _text,
    r"bg-(.+)": lambda text: _colored("background-color", text),
    r"font-(.+)": lambda text: f"font-weight:{_WEIGHTS[text]}" if text in _WEIGHTS else "",
    r"border(?:-([trblxy]))?(?:-(.+))?": lambda side, text: _border(side, text or ""),
    r"rounded(?:-([tblr]))?(?:-(.+))?": lambda side, text: _rounded(side, text or ""),
    r"shadow(?:-(.+))?": lambda text: f"box-shadow:{_SHADOWS[text or '']}" if (text or "") in _SHADOWS else "",
    r"items-(.+)": lambda text: f"align-items:{_ALIGN[text]}" if text in _ALIGN else "",
    r"justify-(.+)": lambda text: f"justify-content:{_ALIGN[text]}" if text in _ALIGN else "",
    r"gap-(.+)": lambda text: _sized(("gap",), text),
    r"grid-cols-(\d{1,2})": lambda text: f"grid-template-columns:repeat({text},minmax(0,1fr))",
    r"col-span-(\d{1,2})": lambda text: f"grid-column:span {text}/span {text}",
    r"(top|right|bottom|left)-(.+)": lambda side, text: _sized((side,), text),
    r"inset-0": lambda: "inset:0",
    r"z-(\d{1,3})": lambda text: f"z-index:{text}",
    r"opacity-(\d{1,3})": lambda text: f"opacity:{int(text) / 100:g}",
    r"leading-(\d{1,2})": lambda text: f"line-height:{int(text) / 4:g}rem",
}
"""Pattern of a class -> function of the pattern's groups that returns declarations, empty for unknown values."""
