// Keeps the overview current, and sends a form once. Every page works without
// this script.
'use strict';

(function () {
  // A button that was used cannot be used again: the server would ignore it.
  document.addEventListener('submit', function (event) {
    if (event.target.method !== 'post') return;
    if (event.target.dataset.sent) {
      event.preventDefault();
      return;
    }
    event.target.dataset.sent = '1';
  });
  window.addEventListener('pageshow', function (event) {
    if (event.persisted) location.reload(); // the forms of a page from the cache were sent
  });

  // "/" moves to the search, as in other tools.
  document.addEventListener('keydown', function (event) {
    if (event.key !== '/' || event.ctrlKey || event.metaKey || event.altKey) return;
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) return;
    event.preventDefault();
    document.getElementById('find').focus();
  });

  var first = document.querySelector('[data-live]');
  if (!first || !window.EventSource) return;
  var stale = document.getElementById('stale');
  var source = null;

  // A button that is replaced between the press and the release of the mouse
  // would not be clicked.
  var pressed = false;
  document.addEventListener('pointerdown', function () { pressed = true; });
  ['pointerup', 'pointercancel'].forEach(function (end) {
    document.addEventListener(end, function () {
      setTimeout(function () { pressed = false; }); // the click comes after it
    });
  });

  // used reports whether a change would take something away from the reader.
  function used(part) {
    return pressed || part.contains(document.activeElement) || part.querySelector('details[open]') !== null;
  }

  function open() {
    if (source || document.hidden) return;
    source = new EventSource(first.dataset.live);
    source.onmessage = function (event) {
      var parts = JSON.parse(event.data);
      stale.hidden = !parts.problem;
      Object.keys(parts).forEach(function (id) {
        var part = document.getElementById(id);
        if (part && !used(part)) part.innerHTML = parts[id]; // rendered and escaped by the server
      });
    };
  }

  function close() {
    if (source) source.close();
    source = null;
  }

  document.addEventListener('visibilitychange', function () {
    if (document.hidden) close(); else open();
  });
  window.addEventListener('pagehide', close);
  open();
})();
