// Keyboard shortcuts only: every page works without this script.
"use strict";
(() => {
  const all = (query) => [...document.querySelectorAll(query)];
  const one = (query) => document.querySelector(query);
  const dialog = one(".keys");
  const help = one("[data-help]");
  const masks = one("#masks");

  const remembered = (name) => { try { return sessionStorage.getItem(name); } catch { return null; } };
  const forget = (name) => { try { sessionStorage.removeItem(name); } catch { /* storage is blocked */ } };
  const remember = (name, value) => { try { sessionStorage.setItem(name, value); } catch { /* storage is blocked */ } };

  const go = (query) => { const link = one(query); if (link) link.click(); };

  // Move the focus between lines of a list, or segments of a trajectory.
  const move = (by) => {
    const stops = all(".lines .open, .segment").filter((stop) => stop.checkVisibility());
    if (!stops.length) return;
    const now = stops.indexOf(document.activeElement.closest(".open, .segment"));
    const next = stops[now < 0 ? (by > 0 ? 0 : stops.length - 1) : Math.min(Math.max(now + by, 0), stops.length - 1)];
    next.focus({ preventScroll: true });
    (next.closest("tr") ?? next).scrollIntoView({ block: "nearest" });
  };

  // Back on the list, focus the trajectory that was read last.
  const comeBack = () => {
    const read = remembered("read");
    forget("read");
    const link = all(".lines .open").find((open) => open.pathname === read);
    if (!link) return;
    link.focus({ preventScroll: true });
    link.closest("tr").scrollIntoView({ block: "nearest" });
  };

  const results = () => all(".segment > details");
  const unfold = (open) => { for (const result of results()) result.open = open; };
  const unfoldAll = () => {
    const open = results().some((result) => !result.open);
    unfold(open);
    remember("results", open ? "open" : "");
  };
  const toggleMasks = () => { if (masks) masks.click(); };

  const toggleHere = () => {
    const here = document.activeElement;
    const result = here.matches(".segment") ? here.querySelector("details") : null;
    if (result) result.open = !result.open;
    return Boolean(result);
  };

  const keys = {
    j: () => move(1),
    k: () => move(-1),
    n: () => go('a[rel="next"]'),
    p: () => go('a[rel="prev"]'),
    u: () => go('a[rel="up"]'),
    e: unfoldAll,
    m: toggleMasks,
    t: () => go('[data-key="t"]'),
    c: () => go('[data-key="c"]'),
    l: () => go('[data-key="l"]'),
    h: () => go('[data-key="h"]'),
    a: () => go('[data-key="a"]'),
    "?": () => dialog.showModal(),
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || dialog.open) return;
    const typing = event.target.closest("input:not([type=checkbox]), textarea, select");
    if (typing) {
      if (event.key === "Escape") typing.blur();
      return;
    }
    if (event.key === "/") {
      const field = one('input[type="search"]');
      if (field) { field.focus(); field.select(); event.preventDefault(); }
    } else if (event.key === "Enter") {
      if (toggleHere()) event.preventDefault();
    } else if (Object.hasOwn(keys, event.key)) {
      keys[event.key]();
      event.preventDefault();
    }
  });

  help.hidden = false;
  help.addEventListener("click", () => dialog.showModal());
  if (one(".overview")) comeBack();
  const here = one('[data-key="t"]');
  if (here) remember("read", here.pathname);
  if (remembered("results")) unfold(true);
  if (masks) {
    masks.checked = Boolean(remembered("masks"));
    masks.addEventListener("change", () => remember("masks", masks.checked ? "on" : ""));
  }
})();
