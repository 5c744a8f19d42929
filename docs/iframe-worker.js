// The site's search where its pages are opened from a folder: browsers start no workers there, so
// the script of one runs in a hidden frame, which sends its answers to the page.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const { document: page } = (this.frame = frame.contentWindow);
      addEventListener("message", (event) => {
        if (event.source === this.frame) this.dispatchEvent(new MessageEvent("message", event));
      });
      this.ready = new Promise((done) => frame.contentWindow.begun = done);
      page.write(`<script>postMessage = (data) => parent.postMessage(data, "*");</script>
        <script src="${url}"></script><script>begun();</script>`);
      page.close();
    }

    postMessage(data) {
      this.ready.then(() => this.frame.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
