// Keeps the page up to date: asks for its changing part every few seconds, and changes what differs.
// Without it the page reloads itself (see render.py).
(() => {
  "use strict";
  const SLOWEST = 30000, PATIENCE = 10000;
  const board = document.getElementById("board"), live = document.getElementById("live");
  const EVERY = Number(board.dataset.every);
  let tag = board.dataset.tag || "", failures = 0, timer = 0, asking = null;

  const say = (state, words) => {
    if (live.className !== `live ${state}`) live.className = `live ${state}`;
    if (live.textContent !== words) live.textContent = words;
  };

  // Makes the children of `now` those of `next`, and leaves alone whatever is the same: focus, selection and scrolling stay.
  const morph = (now, next) => {
    const known = new Map();
    for (const child of now.children) if (child.id) known.set(child.id, child);
    let at = now.firstChild;
    for (const wanted of [...next.childNodes]) {
      let found = wanted.id ? known.get(wanted.id) : undefined;
      if (!wanted.id && at && !at.id && at.nodeName === wanted.nodeName) found = at;
      if (!found) { now.insertBefore(document.importNode(wanted, true), at); continue; }
      if (found === at) at = at.nextSibling; else now.insertBefore(found, at);
      if (found.nodeType === Node.TEXT_NODE) {
        if (found.data !== wanted.data) found.data = wanted.data;
      } else if (found.nodeType === Node.ELEMENT_NODE && !found.isEqualNode(wanted)) {
        for (const { name } of [...found.attributes]) if (!wanted.hasAttribute(name)) found.removeAttribute(name);
        for (const { name, value } of wanted.attributes) if (found.getAttribute(name) !== value) found.setAttribute(name, value);
        morph(found, wanted);
      }
    }
    while (at) { const after = at.nextSibling; at.remove(); at = after; }
  };

  const ask = async () => {
    clearTimeout(timer);
    if (asking) asking.abort();
    if (document.hidden) return;
    const mine = asking = new AbortController();
    const limit = setTimeout(() => mine.abort(), PATIENCE);
    try {
      const answer = await fetch("board" + location.search, {
        headers: tag ? { "If-None-Match": tag } : {}, signal: mine.signal, cache: "no-store", redirect: "error",
      });
      if (answer.status === 401) { location.reload(); return; }
      if (answer.status !== 304) {
        if (!answer.headers.has("X-Diflow-Board")) throw new Error(String(answer.status));
        const next = new DOMParser().parseFromString(await answer.text(), "text/html");
        if (mine !== asking) return;
        morph(board, next.body);
        tag = answer.headers.get("ETag") || "";
        document.body.classList.toggle("old", answer.status === 503);
      }
      failures = 0;
      const old = document.body.classList.contains("old");
      say(old ? "lost" : "on", old ? "out of date" : "live");
    } catch (error) {
      if (mine !== asking) return; // a newer one is under way
      failures += 1;
      document.body.classList.add("old");
      tag = "";
      say("lost", "connection lost, trying again");
    } finally {
      clearTimeout(limit);
      if (mine === asking) {
        asking = null;
        timer = setTimeout(ask, failures ? Math.min(SLOWEST, EVERY * 2 ** (failures - 1)) : EVERY);
      }
    }
  };

  // A filter works while it is typed; its address can be kept and given on.
  let typing = 0;
  const filter = () => {
    const form = document.getElementById("filter");
    const given = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
    for (const name of ["job", "nodes"]) {
      const kept = new URLSearchParams(location.search).get(name);
      if (kept) given.set(name, kept);
    }
    history.replaceState(null, "", String(given) ? `?${given}` : location.pathname);
    tag = "";
    ask();
  };
  board.addEventListener("input", (event) => {
    if (!event.target.closest("#filter")) return;
    clearTimeout(typing);
    typing = setTimeout(filter, 250);
  });
  board.addEventListener("submit", (event) => {
    if (event.target.id === "filter") { event.preventDefault(); clearTimeout(typing); filter(); }
  });
  document.addEventListener("visibilitychange", ask);
  addEventListener("online", ask);
  say(document.body.classList.contains("old") ? "lost" : "on", document.body.classList.contains("old") ? "out of date" : "live");
  timer = setTimeout(ask, EVERY);
})();
