"use strict";
(() => {
  const EVERY = 2000;
  const status = document.getElementById("lost");
  const find = document.getElementById("find");
  const table = () => document.querySelectorAll("#runs tbody tr");

  function filter() {
    if (!find) return;
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of table()) {
      row.hidden = !words.every((word) => row.dataset.words.includes(word));
      shown += row.hidden ? 0 : 1;
    }
    document.getElementById("found").textContent = words.length ? `${shown} found` : "";
  }

  // What is replaced keeps the reader's place: the focus, and what was folded open.
  function replace(part, html) {
    const active = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    const open = new Set([...part.querySelectorAll("details[open]")].map((one) => one.dataset.key));
    part.innerHTML = html;
    for (const one of part.querySelectorAll("details")) one.open = one.open || open.has(one.dataset.key);
    if (active) {
      const again = [...part.querySelectorAll("a")].find((one) => one.getAttribute("href") === active);
      if (again) again.focus({ preventScroll: true });
    }
  }

  async function look() {
    const parts = [...document.querySelectorAll("[data-version]")];
    const seen = parts.map((part) => `${part.id}:${part.dataset.version}`).join(",");
    const address = `${document.body.querySelector("main").dataset.changes}&seen=${encodeURIComponent(seen)}`;
    try {
      const answer = await fetch(address, { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.statusText);
      const told = await answer.json();
      for (const [name, html] of Object.entries(told.parts)) {
        const part = document.getElementById(name);
        if (part) {
          replace(part, html);
          part.dataset.version = told.versions[name];
        }
      }
      // A part that was not there when the page was opened, or is gone, makes another page.
      const names = Object.keys(told.versions).sort().join();
      if (names !== parts.map((part) => part.id).sort().join()) location.reload();
      status.hidden = true;
      filter();
    } catch (error) {
      status.hidden = false;
    }
  }

  let waiting = null;
  async function go() {
    clearTimeout(waiting);
    if (document.hidden) return;
    await look();
    waiting = setTimeout(go, EVERY);
  }

  if (find) find.addEventListener("input", filter);
  document.addEventListener("visibilitychange", go);
  waiting = setTimeout(go, EVERY);
})();
