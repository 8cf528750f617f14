// Search in pages that are opened from a folder. A browser starts no Worker there, so an invisible frame runs
// the search instead. Pages from a server use the browser's Worker. No other file is loaded.
"use strict";

class FrameWorker extends EventTarget {
  constructor(url) {
    super();
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    document.body.appendChild(this.frame);
    const inner = this.frame.contentWindow;
    window.addEventListener("message", (event) => {
      if (event.source !== inner) return;
      const message = new MessageEvent("message", { data: event.data });
      this.dispatchEvent(message);
      if (this.onmessage) this.onmessage(message);
    });
    const page = inner.document;
    page.open();
    page.write("<!doctype html><html><body><script>" + FrameWorker.prepare + "<\/script></body></html>");
    page.close();
    this.ready = new Promise((resolve) => {
      const script = page.createElement("script");
      script.src = url;
      script.onload = resolve;
      page.body.appendChild(script);
    });
  }

  postMessage(data) {
    this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
  }

  terminate() {
    this.frame.remove();
  }
}

// What a Worker has and a frame has not.
FrameWorker.prepare = `
  self.postMessage = (data) => parent.dispatchEvent(new MessageEvent("message", { data, source: self }));
  self.importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((resolve) => {
    const script = document.createElement("script");
    script.src = url;
    script.onload = resolve;
    document.body.appendChild(script);
  })), Promise.resolve());
`;

if (location.protocol === "file:") window.Worker = FrameWorker;
