// What a page does when there are scripts: live figures, a copy button, and the focus where it belongs.
"use strict";

(() => {
  const QUIET_MS = 3500; // figures come every second
  let stream = null;
  let heard = 0;
  let clock = null;

  const main = () => document.getElementById("main");

  function say(state, mark, text) {
    const line = document.getElementById("live-state");
    if (!line || line.dataset.state === text) return;
    line.dataset.state = text;
    line.className = `live ${state}`;
    line.querySelector(".mark").textContent = mark;
    line.querySelector(".text").textContent = text;
  }

  // ------------------------------------------------------------------------------------------------ live figures

  function take(update) {
    heard = Date.now();
    say("on", "\u25cf", "Live");
    charts.add(update.at, update.values);
    for (const [id, html] of Object.entries(update.pieces)) {
      const place = document.getElementById(id);
      if (!place || charts.pointed(place)) continue;
      const fresh = place.cloneNode(false);
      fresh.innerHTML = html;
      if (held(place) && links(place) !== links(fresh)) continue; // no link moves under somebody's hands
      settle(place, fresh);
    }
  }

  const held = (place) => place.matches(":hover") || place.contains(document.activeElement);
  const links = (place) => [...place.querySelectorAll("a")].map((link) => link.href).join("\n");

  // Make an element like a fresh one, leaving alone what is the same: focus and selection stay where they are.
  function settle(old, fresh) {
    if (old.nodeName !== fresh.nodeName) return old.replaceWith(fresh);
    if (old.nodeType === Node.TEXT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    if (old.nodeType !== Node.ELEMENT_NODE) return;
    for (const { name, value } of [...fresh.attributes]) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
    const there = [...old.childNodes], wanted = [...fresh.childNodes];
    wanted.forEach((child, i) => (there[i] ? settle(there[i], child) : old.append(child)));
    for (const child of there.slice(wanted.length)) child.remove();
  }

  function watch() {
    const { live, history } = main().dataset;
    if (!live || stream || document.hidden) return;
    heard = Date.now();
    stream = new EventSource(live);
    stream.onopen = () => catchUp(history); // again after each minute: nothing is missing in between
    stream.onmessage = (event) => take(JSON.parse(event.data));
    stream.onerror = () => {
      if (stream?.readyState !== EventSource.CLOSED) return;
      leave(); // it was refused: by a gateway that is going, or because the session is over
      catchUp(history);
      setTimeout(watch, 2000);
    };
    clock ??= setInterval(look, 500);
  }

  async function catchUp(address) {
    try {
      const answer = await fetch(address, { headers: { accept: "application/json" } });
      if (answer.status === 401) return location.reload(); // leads to the login, and back here
      if (answer.ok && main().dataset.history === address) charts.begin(await answer.json());
    } catch {
      look(); // the stream says what is wrong, and the lines that the server drew stay
    }
  }

  function look() {
    if (main().dataset.live && !document.hidden && Date.now() - heard > QUIET_MS) {
      say("stale", "\u25a0", `Stale since ${new Date(heard).toTimeString().slice(0, 8)}; trying again`);
    }
  }

  function leave() {
    stream?.close();
    stream = null;
  }

  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) return watch();
    leave();
    say("", "\u25cb", "Paused while hidden");
  });
  addEventListener("pagehide", leave);
  addEventListener("pageshow", (event) => event.persisted && watch());

  // ------------------------------------------------------------------------------------------------------- pages

  function room() {
    for (const link of document.querySelectorAll(".rail nav a")) {
      const here = link.pathname;
      const current = location.pathname === here || (here !== "/" && location.pathname.startsWith(here));
      current ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
    }
  }

  // The place that the address names: browsers do not look for it in what was put in later.
  function meant() {
    const place = location.hash && document.getElementById(location.hash.slice(1));
    if (!place) return;
    place.classList.add("meant");
    place.scrollIntoView({ block: "center" });
  }

  document.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.target !== main()) return;
    leave();
    charts.clear();
  });
  document.addEventListener("htmx:afterSettle", () => {
    room();
    watch();
    (main().querySelector("[autofocus]") || main()).focus({ preventScroll: true });
    meant();
  });
  document.addEventListener("htmx:sendError", () => {
    const told = document.createElement("p");
    told.className = "problem";
    told.setAttribute("role", "alert");
    told.textContent = "The gateway did not answer; nothing is known to have changed. Try again in a moment.";
    main().querySelector(".problem")?.remove();
    main().prepend(told);
  });

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const secret = document.getElementById(button.dataset.copy);
    const told = document.getElementById("copied");
    try {
      await navigator.clipboard.writeText(secret.textContent);
      told.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(secret);
      told.textContent = "Selected: copy it with your keyboard";
    }
  });

  meant();
  watch();
})();
