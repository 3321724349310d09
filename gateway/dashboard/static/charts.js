// Charts of the last 15 minutes: the lines that the server drew become ones with a cursor, shared by all of a page.
"use strict";

const charts = (() => {
  const SECONDS = 900;
  const SYNC = "page";
  let drawn = [];
  let told = null; // {until, series}: as the server last told it, moved on by each update

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function times() {
    const found = new Array(SECONDS);
    for (let i = 0; i < SECONDS; i++) found[i] = told.until - SECONDS + 1 + i;
    return found;
  }

  // Means of five seconds for the small ones: single seconds would be noise at that size.
  function values(name, small) {
    const all = told.series[name] || new Array(SECONDS).fill(null);
    if (!small) return all;
    return all.map((value, i) => {
      if (value === null) return null;
      let sum = 0, count = 0;
      for (let j = Math.max(0, i - 4); j <= i; j++) if (all[j] !== null) { sum += all[j]; count++; }
      return sum / count;
    });
  }

  function data(place) {
    const rows = [times(), ...place.names.map((name) => values(name, place.small))];
    if (place.limit) rows.push(new Array(SECONDS).fill(place.limit));
    return rows;
  }

  const write = (name, value) => {
    if (value === null || value === undefined) return "\u2013";
    if (name.startsWith("ttft")) return value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(1)} s`;
    return value.toFixed(value < 100 && value % 1 ? 1 : 0);
  };

  function series(place) {
    const lines = place.names.map((name, i) => ({
      stroke: () => colour(`--series-${i}`),
      width: 1.5,
      dash: i ? [3, 3] : undefined,
      points: { show: false },
      spanGaps: false,
    }));
    if (place.limit) lines.push({ stroke: () => colour("--series-1"), width: 1.5, dash: [4, 3], points: { show: false } });
    return [{}, ...lines];
  }

  function axes(place) {
    if (place.small) return [{ show: false }, { show: false }];
    const common = {
      stroke: () => colour("--muted"),
      grid: { stroke: () => colour("--line"), width: 1 },
      ticks: { show: false },
      font: "12px system-ui, sans-serif",
    };
    const clock = (u, splits) => splits.map((at) => new Date(at * 1000).toTimeString().slice(0, 5));
    return [{ ...common, values: clock, space: 80, size: 28 }, { ...common, size: 48, space: 32 }];
  }

  // What the cursor points at is written where the note of a figure is, or after the title of a chart.
  function cursor(place) {
    return (u) => {
      const at = u.cursor.idx;
      if (at === null || at === undefined) {
        place.note.textContent = place.said ?? place.note.textContent;
        place.said = null;
        return;
      }
      place.said ??= place.note.textContent;
      const clock = new Date(u.data[0][at] * 1000).toTimeString().slice(0, 8);
      const shown = place.names.map((name, i) => write(name, u.data[i + 1][at])).join(", ");
      place.note.textContent = `${clock}: ${shown} ${place.unit}`;
    };
  }

  function draw(box) {
    const small = box.dataset.chart === "spark";
    const figure = box.closest("figure");
    const place = {
      box, small,
      names: box.dataset.series.trim().split(/\s+/),
      unit: box.dataset.unit || "",
      limit: Number(box.dataset.limit || 0),
      // The note within the box belongs to the lines of the server, and goes with them.
      note: [...figure.querySelectorAll(".note")].find((one) => !box.contains(one)) || figure.querySelector("figcaption"),
      said: null,
    };
    const options = {
      width: box.clientWidth,
      height: small ? 40 : 180,
      pxAlign: false,
      padding: small ? [2, 0, 1, 0] : [8, 8, 0, 0],
      legend: { show: false },
      cursor: { sync: { key: SYNC }, y: false, points: { show: !small, size: 5 }, drag: { x: false, y: false } },
      scales: { x: { time: true }, y: { range: (u, low, high) => [0, high > 0 ? high * 1.05 : 1] } },
      series: series(place),
      axes: axes(place),
      hooks: { setCursor: [cursor(place)] },
    };
    box.replaceChildren();
    place.plot = new uPlot(options, data(place), box);
    return place;
  }

  function fit() {
    for (const place of drawn) place.plot.setSize({ width: place.box.clientWidth, height: place.small ? 40 : 180 });
  }

  function clear() {
    for (const place of drawn) place.plot.destroy();
    drawn = [];
    told = null;
  }

  function begin(history) {
    told = history;
    if (drawn.length && drawn.every((place) => place.box.isConnected)) {
      for (const place of drawn) place.plot.setData(data(place));
      return;
    }
    clear();
    told = history;
    drawn = [...document.querySelectorAll("[data-chart]")].map(draw);
  }

  // One more second; those between it and the last one are gaps.
  function add(at, latest) {
    if (!told || at <= told.until) return;
    const skipped = Math.min(at - told.until - 1, SECONDS);
    for (const name of new Set([...Object.keys(told.series), ...Object.keys(latest)])) {
      const kept = told.series[name] || new Array(SECONDS).fill(null);
      told.series[name] = [...kept, ...new Array(skipped).fill(null), latest[name] ?? null].slice(-SECONDS);
    }
    told.until = at;
    for (const place of drawn) place.plot.setData(data(place));
  }

  addEventListener("resize", fit);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const place of drawn) place.plot.redraw(false, true);
  });
  return { begin, add, clear, pointed: (note) => drawn.some((place) => place.note === note && place.said !== null) };
})();
