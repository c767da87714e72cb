// Searches the sections of the documentation: every word must begin a word of
// the section. Words of headings count more.
(() => {
  const form = document.querySelector("form.search"), input = form.q, list = form.querySelector("ol");
  let sections, chosen = -1;

  const words = (text) => text.toLowerCase().split(/[^\p{L}\p{N}_]+/u).filter(Boolean);

  async function load() {
    if (sections) return;
    const answer = await fetch(form.dataset.index);
    sections = (await answer.json()).map((s) => ({ ...s, head: words(s.page + " " + s.heading), body: words(s.text) }));
  }

  function score(s, wanted) {
    let sum = 0;
    for (const word of wanted) {
      const head = s.head.filter((w) => w.startsWith(word)).length;
      const body = s.body.filter((w) => w.startsWith(word)).length;
      if (!head && !body) return 0;
      sum += head * 20 + Math.min(body, 10);
    }
    return sum;
  }

  function show(found) {
    chosen = -1;
    list.replaceChildren(...found.map((s, i) => {
      const link = document.createElement("a"), item = document.createElement("li");
      link.href = s.url;
      const page = document.createElement("b");
      page.textContent = s.page === s.heading ? s.page : s.page + " › " + s.heading;
      const text = document.createElement("span");
      text.textContent = s.text.slice(0, 140);
      link.append(page, text);
      link.id = "found-" + i;
      item.append(link);
      return item;
    }));
    if (input.value.trim() && !found.length) {
      const none = document.createElement("li");
      none.textContent = "Nothing found";
      list.append(none);
    }
    list.hidden = !list.children.length;
    input.setAttribute("aria-expanded", String(!list.hidden));
  }

  async function search() {
    await load();
    const wanted = words(input.value);
    show(!wanted.length ? [] : sections.map((s) => [score(s, wanted), s]).filter(([n]) => n)
      .sort((a, b) => b[0] - a[0]).slice(0, 12).map(([, s]) => s));
  }

  input.addEventListener("focus", load, { once: true });
  input.addEventListener("input", search);
  form.addEventListener("submit", (e) => { e.preventDefault(); list.querySelectorAll("a")[Math.max(chosen, 0)]?.click(); });
  form.addEventListener("keydown", (e) => {
    const links = [...list.querySelectorAll("a")];
    if (e.key === "Escape") { input.value = ""; show([]); input.focus(); return; }
    if ((e.key !== "ArrowDown" && e.key !== "ArrowUp") || !links.length) return;
    e.preventDefault();
    chosen = Math.min(Math.max(chosen + (e.key === "ArrowDown" ? 1 : -1), 0), links.length - 1);
    links[chosen].focus();
  });
  document.addEventListener("keydown", (e) => {
    if (e.key === "/" && !/^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName)) { e.preventDefault(); input.focus(); }
  });
})();
