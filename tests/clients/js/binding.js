// `env.AI` as workerd makes it, outside of workerd: the wire form of the AI binding, spoken as its module speaks it.

/** An object with the binding's `run`, whose calls go to the server through `fetch`. */
export const binding = (base, fetch = globalThis.fetch) => ({
  async run(model, inputs, options = {}) {
    const { prefix, extraHeaders, sessionOptions, signal, returnRawResponse, ...sent } = options;
    const response = await fetch(`${base}/${sent.gateway?.id ? "ai-gateway/" : ""}run?version=3`, {
      method: "POST",
      signal,
      headers: {
        ...extraHeaders,
        "content-type": "application/json",
        "cf-consn-sdk-version": "2.0.0",
        "cf-consn-model-id": prefix ? `${prefix}:${model}` : model,
      },
      body: JSON.stringify({ inputs, options: sent }),
    });
    this.lastRequestId = response.headers.get("cf-ai-req-id");
    if (returnRawResponse) return response;
    if (!response.ok) {
      const body = await response.json();
      const error = new Error(body.internalCode ? `${body.internalCode}: ${body.description}` : `${body.errors[0].code}: ${body.errors[0].message}`);
      error.name = body.name ?? "InferenceUpstreamError";
      throw error;
    }
    // Exactly this type is a value; everything else is handed over as bytes.
    return response.headers.get("content-type") === "application/json" ? response.json() : response.body;
  },
});
