// Keeps the page up to date: applies the changes that /events sends to the view, and shows it by the attributes that
// crates/page/src/html describes. Writes text and attributes only, never markup.
'use strict';

let view = {};

// ---- The view and its changes (crates/page/src/changes.rs) ----

function apply(old, change) {
  if (change === null || typeof change !== 'object') return change;
  if ('$set' in change) return change.$set;
  if ('$push' in change) return old.slice(change.$drop).concat(change.$push);
  if ('$at' in change) {
    const changed = old.slice();
    for (const [index, part] of Object.entries(change.$at)) changed[index] = apply(old[index], part);
    return changed;
  }
  const changed = { ...old };
  for (const [key, part] of Object.entries(change)) changed[key] = apply(old[key], part);
  return changed;
}

function at(item, path) {
  return path.split('.').reduce((value, key) => (value === undefined || value === null ? value : value[key]), item);
}

// ---- Showing it ----

function show(element, item) {
  if (element.dataset.text !== undefined) setText(element, String(at(item, element.dataset.text) ?? ''));
  if (element.dataset.set !== undefined) setAttributes(element, item);
  if (element.dataset.spark !== undefined) setPath(element, sparkPath(at(item, element.dataset.spark) ?? []));
  if (element.dataset.split !== undefined) showSplit(element, at(item, element.dataset.split) ?? []);
  if (element.dataset.chart !== undefined) showChart(element, item);
  if (element.dataset.list !== undefined) return showList(element, at(item, element.dataset.list) ?? []);
  for (const child of element.children) show(child, item);
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function setAttribute(element, name, value) {
  if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

function setAttributes(element, item) {
  for (const pair of element.dataset.set.split(';')) {
    const [name, path] = pair.split('=');
    const percent = path.endsWith('%');
    const value = at(item, percent ? path.slice(0, -1) : path);
    if (value !== undefined && value !== null) setAttribute(element, name, percent ? `${value}%` : value);
  }
}

const adopted = new WeakSet();

function showList(container, items) {
  // What the server drew does not say how to change it.
  if (!adopted.has(container)) container.replaceChildren();
  adopted.add(container);
  const shown = [...container.children];
  while (shown.length > items.length) shown.pop().remove();
  while (shown.length < items.length) {
    const template = document.getElementById(`new-${container.dataset.template}`);
    const item = template.content.querySelector('[data-item]').cloneNode(true);
    container.append(item);
    shown.push(item);
  }
  items.forEach((item, index) => show(shown[index], item));
}

function showSplit(bar, parts) {
  const [, ...rects] = bar.children;
  let start = 0;
  rects.forEach((rect, index) => {
    setAttribute(rect, 'x', `${start}%`);
    setAttribute(rect, 'width', `${parts[index] ?? 0}%`);
    start += parts[index] ?? 0;
  });
}

// ---- Curves ----

const tenths = (number) => Math.round(number * 10) / 10;

function across(scale, x) {
  return scale.right > scale.left ? ((x - scale.left) / (scale.right - scale.left)) * 100 : 50;
}

function down(scale, y) {
  const place = (value) => (scale.logarithmic ? Math.log(Math.max(value, Number.MIN_VALUE)) : value);
  const [bottom, top] = [place(scale.bottom), place(scale.top)];
  return top > bottom ? ((top - place(y)) / (top - bottom)) * 100 : 50;
}

function path(points) {
  let [commands, penDown] = ['', false];
  for (const [x, y] of points) {
    if (y !== null) commands += `${penDown ? 'L' : 'M'}${tenths(x)} ${tenths(y)}`;
    penDown = y !== null;
  }
  return commands;
}

function setPath(svg, commands) {
  setAttribute(svg.querySelector('path'), 'd', commands);
}

function sparkPath(values) {
  const [last, top] = [Math.max(values.length - 1, 1), view.speed_top];
  return path(values.map((value, index) => [(index / last) * 100, 100 - (Math.min(value, top) / top) * 100]));
}

const charts = new WeakMap();

function showChart(figure, chart) {
  if (!charts.has(figure)) listenToChart(figure);
  charts.set(figure, { chart, chosen: charts.get(figure)?.chosen ?? null });
  setPath(figure, path(chart.points.map(([x, y]) => [across(chart.scale, x), y === null ? null : down(chart.scale, y)])));
  // After the caption was set, which the chosen point replaces.
  queueMicrotask(() => showChosen(figure));
}

// The pointer or the arrow keys choose a point, and its step and value take the caption's place.
function listenToChart(figure) {
  const plot = figure.querySelector('.plot');
  const choose = (index) => {
    const known = charts.get(figure);
    const count = known.chart.points.length;
    known.chosen = index === null || count === 0 ? null : Math.min(Math.max(index, 0), count - 1);
    showChosen(figure);
  };
  plot.addEventListener('pointermove', (event) => {
    const { chart } = charts.get(figure);
    const box = plot.getBoundingClientRect();
    const percent = ((event.clientX - box.left) / box.width) * 100;
    const distance = ([x]) => Math.abs(across(chart.scale, x) - percent);
    choose(chart.points.reduce((best, point, index, all) => (distance(point) < distance(all[best]) ? index : best), 0));
  });
  plot.addEventListener('pointerleave', () => choose(null));
  plot.addEventListener('blur', () => choose(null));
  plot.addEventListener('keydown', (event) => {
    const { chart, chosen } = charts.get(figure);
    const now = chosen ?? chart.points.length - 1;
    const next = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: chart.points.length - 1, Escape: null }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    choose(next);
  });
}

function showChosen(figure) {
  const { chart, chosen } = charts.get(figure);
  const cursor = figure.querySelector('.cursor');
  const reading = figure.querySelector('.reading');
  const point = chosen === null ? undefined : chart.points[chosen];
  setAttribute(cursor, 'visibility', point ? 'visible' : 'hidden');
  if (!point) return setText(reading, chart.caption);
  const x = `${tenths(across(chart.scale, point[0]))}%`;
  setAttribute(cursor, 'x1', x);
  setAttribute(cursor, 'x2', x);
  const shown = (y) => (chart.fraction ? `${(100 * y).toFixed(2)}%` : Number(y.toPrecision(4)).toString());
  const value = point[1] === null ? 'not a number' : shown(point[1]);
  setText(reading, `step ${point[0].toLocaleString('en')}: ${value}`);
}

// ---- The connection ----

const link = document.getElementById('link');
let heard = Date.now();
// In seconds: something comes at least every 5 s, but later after much (crates/page/src/serve.rs).
let patience = 15;
let ended = false;

function tellLink() {
  const silent = Math.round((Date.now() - heard) / 1000);
  // A connection stays open although whoever is at its other end is suspended, or cut off.
  const lost = silent >= (source.readyState === EventSource.OPEN ? patience : 5);
  const text = ended ? 'this run has ended; the figures are final' : lost ? `✕ not live: lost contact ${silent} s ago` : '● live';
  setText(link, text);
  link.dataset.tone = lost && !ended ? 'bad' : 'idle';
}

function receive(event) {
  const before = view.badge?.word;
  view = apply(view, JSON.parse(event.data));
  heard = Date.now();
  patience = 15 + event.data.length / 8000;
  ended = ['over', 'stopped', 'failed'].includes(view.badge.word);
  document.title = `${view.badge.symbol} ${view.title}`;
  show(document.body, view);
  // Only a change of state is worth telling to whoever listens.
  if (before !== view.badge.word) setText(document.getElementById('announcement'), view.headline);
  tellLink();
}

let source;
function connect() {
  source = new EventSource('events');
  source.onmessage = receive;
  source.onopen = () => { heard = Date.now(); };
  // A browser gives up if it is refused, for example because there are too many viewers.
  source.onerror = () => { if (source.readyState === EventSource.CLOSED) setTimeout(connect, 5000); };
}
connect();
setInterval(tellLink, 1000);
