// Shows the cell and the customer that a reader chooses: in every picture, in the table, and in words.
"use strict";
(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const choice = document.getElementById("choice");
  const picked = document.getElementById("customer");
  const PARTS = ["waiting", "reading", "writing"];
  const STAMPS = [
    ["intended", "meant to ask", "client"], ["sent", "sent", "client"], ["received", "came to the queue", "router"],
    ["admitted", "let in", "router"], ["started", "reading began", "worker"], ["first_token", "first token", "worker"],
    ["last_token", "last token", "worker"], ["first_received", "first word received", "client"],
    ["last_received", "last word received", "client"], ["ended", "ended", "router"],
  ];
  const HEIGHT = 560, THIN = 6, THICK = 24;  // pixels: of all bars, of each at least and at most
  const views = {};
  let cell = null;

  // --- words ---

  const known = (value) => value !== null && value !== undefined;
  const number = (value) => (known(value) ? value.toLocaleString("en") : "n/a");
  const lasted = (span) => (known(span) ? span[1] - span[0] : null);

  function seconds(value) {
    if (!known(value)) return "n/a";
    if (Math.abs(value) < 0.0995) return `${(1000 * value).toFixed(1)} ms`;
    return `${value.toFixed(value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2)} s`;
  }

  function whole(customer) {
    const { intended, last_received: last } = customer.stamps;
    return customer.end === "completed" && known(intended) && known(last) ? last - intended : null;
  }

  function inWords(customer) {
    const parts = ["waited", "read in", "wrote for"].map((verb, i) => `${verb} ${seconds(lasted(customer[PARTS[i]]))}`);
    return `customer ${customer.id}: ${parts.join(", ")}${customer.end === "completed" ? "" : `; ${customer.end}`}`;
  }

  function element(tag, text, attributes = {}) {
    const made = document.createElement(tag);
    if (known(text)) made.textContent = text;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }

  // --- rows for the pictures ---

  function barsOf(customer) {
    const kinds = PARTS.filter((part) => customer[part]);
    return kinds.map((kind, i) => {
      const [begin, end] = customer[kind];
      const cut = customer.end !== "completed" && i === kinds.length - 1 ? end : null;
      return { id: customer.id, kind, begin, end, first: i === 0, cut, words: inWords(customer) };
    });
  }

  const levels = (of, kind, place = 0) => of.t.map((t, i) => ({ t, n: of.n[kind][i], kind, place }));

  function curveOf(each, metric) {
    return each[metric].s.map((s, i) => ({ s, share: each[metric].share[i], server: each.line }));
  }

  function marksOf(each, metric) {
    const spread = each[metric].spread;
    return [["p50", 0.5], ["p95", 0.95]].filter(([name]) => spread[name]).map(([name, share]) => {
      const [low, high] = spread[`${name}_interval`] || [null, null];
      const sure = known(low) ? `, 95 % interval ${seconds(low)} to ${seconds(high)}` : ", n too small for an interval";
      return { s: spread[name], share, low, high, server: each.line,
               words: `${each.line}: ${name} ${seconds(spread[name])}${sure}` };
    });
  }

  function draw(picture, rows, signals = {}) {
    const view = views[picture];
    if (!view) return;
    for (const [name, values] of Object.entries(rows)) view.data(name, values);
    for (const [name, value] of Object.entries(signals)) view.signal(name, value);
    view.runAsync();
  }

  // --- what is chosen ---

  const fits = (wanted, names) => (each) => names.every((name) => each.choice[name] === wanted[name]);

  function chosenCell(changed) {
    const wanted = Object.fromEntries(new FormData(choice));
    const names = Object.keys(wanted);
    return page.cells.find(fits(wanted, names)) || page.cells.find(fits(wanted, [changed])) || page.cells[0];
  }

  // Cells that differ from this one in nothing but the server: they share a clock, and stand side by side.
  function besides(cell) {
    const names = Object.keys(cell.choice).filter((name) => name !== "server" && name !== "cell");
    return page.cells.filter(fits(cell.choice, names));
  }

  function showCell(changed) {
    cell = chosenCell(changed);
    for (const [name, value] of Object.entries(cell.choice)) choice.elements[name].value = value;
    const alike = besides(cell);
    const until = "cell" in cell.choice ? cell.until : Math.max(...alike.map((each) => each.until));
    const [since, till] = windowOf("cell" in cell.choice ? [cell] : alike) || [0, until];
    const count = cell.customers.length;
    views.customers.height(count * Math.max(THIN, Math.min(THICK, HEIGHT / Math.max(1, count))));
    draw("customers", { customers: cell.customers.flatMap(barsOf) }, { since, until: till, chosen: null });
    draw("seats", {
      seats: [...levels(cell.seats, "decoding"), ...levels(cell.seats, "reading", 1)],
      queue: levels(cell.queue, "waiting"),
      departures: cell.departures.map(([t, n]) => ({ t, words: cell.departures.length > 30 ? "" : String(n) })),
      stay: [],
    }, { until });
    for (const metric of ["ttft", "reply"]) {
      draw(`${metric}-distribution`, {
        [`${metric}-curve`]: alike.flatMap((each) => curveOf(each, metric)),
        [`${metric}-marks`]: alike.flatMap((each) => marksOf(each, metric)),
      });
    }
    sayWhatIsDrawn();
    sayWhichAreCompared();
    fillTable();
    fillPicked();
    document.getElementById("one").replaceChildren(element("p", "Choose a customer: click a bar, or use the list above."));
  }

  // The time in which the drawn customers of these cells were there; null where they stand for all of them.
  function windowOf(cells) {
    const spans = cells.map((each) => each.window).filter(known);
    return spans.length ? [Math.min(...spans.map(([begin]) => begin)), Math.max(...spans.map(([, end]) => end))] : null;
  }

  function sayWhatIsDrawn() {
    const { customers, requests, seats, queue, window: inARow } = cell;
    const nobody = requests === 0 ? "No request of this cell was recorded." : "";
    const few = customers.length < requests ? `Drawn: ${number(customers.length)} of ${number(requests)} customers, ${known(inARow) ? "in a row, from the middle of the crowd" : "evenly spread"}. ` : "";
    const drawn = seats.t.length + queue.t.length;
    const thin = drawn < seats.of + queue.of ? `Drawn: ${number(drawn)} of ${number(seats.of + queue.of)} changes, every peak among them. ` : "";
    for (const [id, words] of [["customers", few], ["seats", thin]]) {
      document.getElementById(`${id}-drawn`).textContent = nobody || (words && `${words}All figures are of all.`);
    }
  }

  function sayWhichAreCompared() {
    const of = Object.entries(cell.choice).filter(([name]) => name !== "server").map(([name, value]) => `${name} ${value}`);
    for (const metric of ["ttft", "reply"]) document.getElementById(`${metric}-distribution-drawn`).textContent = `Shown: ${of.join(", ")}.`;
  }

  function fillTable() {
    document.getElementById("customers-caption").textContent = `Customers: ${cell.label}`;
    document.getElementById("customers-rows").replaceChildren(...cell.customers.map((customer) => {
      const row = element("tr");
      const head = element("th", null, { scope: "row" });
      const button = element("button", String(customer.id), { type: "button", "aria-label": `Show customer ${customer.id}` });
      button.addEventListener("click", () => showCustomer(customer.id));
      head.append(button);
      const spans = PARTS.map((part) => lasted(customer[part]));
      const texts = [customer.stamps.intended, ...spans, whole(customer)].map(seconds);
      row.append(head, ...[...texts, number(customer.tokens), customer.end].map((text) => element("td", text)));
      return row;
    }));
  }

  function fillPicked() {
    const options = cell.customers.map((customer) => element("option", `customer ${customer.id}`, { value: customer.id }));
    picked.replaceChildren(element("option", "nobody yet", { value: "" }), ...options);
  }

  // --- one customer ---

  function showCustomer(id) {
    const place = cell.customers.findIndex((customer) => customer.id === id);
    if (place < 0) return;
    const customer = cell.customers[place];
    picked.value = String(id);
    const spans = PARTS.map((part) => customer[part]).filter(known);
    draw("customers", {}, { chosen: id });
    draw("seats", { stay: spans.length ? [{ begin: spans[0][0], end: spans[spans.length - 1][1] }] : [] });
    document.getElementById("one").replaceChildren(
      element("h3", `Customer ${id}${customer.user ? `, ${customer.user}` : ""}: ${outcome(customer)}`),
      story(customer), stampTable(customer), ...textsOf(place),
    );
  }

  function outcome(customer) {
    if (customer.end === "completed") return `whole reply in ${seconds(whole(customer))}`;
    return customer.detail ? `${customer.end} (${customer.detail})` : customer.end;
  }

  function story(customer) {
    const list = element("ul", null, { class: "story" });
    const ahead = known(customer.ahead) ? `, ${number(customer.ahead)} waiting before it when it came` : "";
    const reused = customer.reused ? ` (${number(customer.reused)} of them from the cache)` : "";
    const [few, many] = customer.seats || [];
    list.append(
      element("li", `Waiting: ${seconds(lasted(customer.waiting))}${ahead}.`, { class: "waiting" }),
      element("li", `Reading: ${seconds(lasted(customer.reading))}, ${number(customer.prompt_tokens)} prompt tokens${reused}.`, { class: "reading" }),
      element("li", `Writing: ${seconds(lasted(customer.writing))}, ${number(customer.tokens)} tokens.`, { class: "writing" }),
      element("li", known(few) ? `Seats in use meanwhile, its own among them: ${few === many ? few : `${few} to ${many}`}.` : "Seats in use meanwhile: n/a."),
    );
    if (cell.departures.length && known(customer.departure)) {
      const index = [...new Set(cell.customers.map((each) => each.departure).filter(known))].sort((a, b) => a - b).indexOf(customer.departure);
      list.append(element("li", `It left with batch ${index + 1}.`));
    }
    return list;
  }

  function stampTable(customer) {
    const table = element("table", null, { id: "stamps" });
    const head = element("tr");
    head.append(...["stamp", "clock of", "since the start"].map((text) => element("th", text, { scope: "col" })));
    table.append(element("caption", "Stamps, on the router's clock"), head);
    for (const [name, words, whose] of STAMPS) {
      const row = element("tr");
      const at = customer.stamps[name];
      row.append(element("th", words, { scope: "row" }), element("td", whose), element("td", known(at) ? `${at.toFixed(4)} s` : "n/a"));
      table.append(row);
    }
    return table;
  }

  function textsOf(place) {
    const words = page.texts.cells[cell.name];
    if (!words) return [];
    return [["Prompt", words.prompts[place]], ["Reply", words.replies[place]]].flatMap(([title, at]) => [
      element("h4", title), element("pre", known(at) ? page.texts.all[at] || "(nothing)" : "n/a", { tabindex: 0, "aria-label": title }),
    ]);
  }

  // --- begin ---

  async function begin() {
    // Pictures begin without rows, which would be worth a warning elsewhere: errors alone are told.
    const how = { mode: "vega-lite", renderer: "svg", actions: false, hover: true, logLevel: 1 };
    for (const [name, spec] of Object.entries(page.specs)) {
      const place = document.querySelector(`[data-picture="${name}"]`);
      views[name] = (await window.embed(place, spec, how)).view;
    }
    if (choice) {
      choice.addEventListener("input", (event) => showCell(event.target.name));
      choice.addEventListener("submit", (event) => event.preventDefault());
      picked.addEventListener("input", () => picked.value && showCustomer(Number(picked.value)));
      views.customers.addEventListener("click", (event, item) => known(item?.datum?.id) && showCustomer(item.datum.id));
      showCell();
    }
    document.documentElement.dataset.ready = "yes";
  }

  begin();
})();
