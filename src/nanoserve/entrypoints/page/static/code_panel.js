// The request as the page would send it now, as a command or a program that can be copied.

import { apiUrl } from "./api.js";
import { wireCopyButton } from "./copying.js";
import { byId } from "./dom.js";
import { getKey } from "./keys.js";
import { FieldProblem } from "./parameter_form.js";
import { asCurl, asPython } from "./snippets.js";

export class CodePanel {
  /** @param {() => import("./requests.js").ApiRequest} request makes it; throws FieldProblem */
  constructor(request) {
    this.request = request;
    this.panel = byId("request-code");
    for (const id of ["code-curl", "code-python"]) byId(id).addEventListener("change", () => this.show());
    this.panel.addEventListener("toggle", () => this.show());
    wireCopyButton(byId("copy-request"), () => this.code());
  }

  show() {
    if (this.panel.open) byId("request-text").textContent = this.code();
  }

  /** Or what is wrong with a field. */
  code() {
    try {
      const request = this.request();
      const write = byId("code-curl").checked ? asCurl : asPython;
      return write(request, apiUrl(request.path), getKey() !== null);
    } catch (error) {
      if (error instanceof FieldProblem) return error.message;
      throw error;
    }
  }
}
