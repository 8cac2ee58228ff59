// SPDX-License-Identifier: Apache-2.0
// Runs an exported model: fields for its features, and the probabilities of its classes.
import * as ort from "onnxruntime-web";

const WASM = "ort-wasm-simd-threaded.wasm";
const WASM_DIGEST =
  "sha384-vjBJ1z7qrhkTyYsNqKeF6c7N+nOJSU94czEo+tvZcu8G75JparGq9kB+kTnEUNVM";

const form = document.querySelector("#person");
const answer = document.querySelector("#answer");

// Fetch a file; the browser refuses one that has another digest.
async function fetched(url, integrity = "") {
  const response = await fetch(url, { integrity });
  if (!response.ok) throw new Error(`${url}: ${response.status} ${response.statusText}`);
  return response;
}

async function load() {
  const manifest = await (await fetched("model/manifest.json")).json();
  const file = async (name) => {
    const bytes = manifest.files[name].sha256.match(/../g).map((hex) => parseInt(hex, 16));
    return fetched(`model/${name}`, `sha256-${btoa(String.fromCharCode(...bytes))}`);
  };
  const fields = await (await file("assets/fields.json")).json();
  const wasm = new URL(WASM, import.meta.resolve("onnxruntime-web"));
  ort.env.wasm.numThreads = 1;
  ort.env.wasm.wasmBinary = await (await fetched(wasm, WASM_DIGEST)).arrayBuffer();
  const graph = new Uint8Array(await (await file("model.onnx")).arrayBuffer());
  return { manifest, fields, session: await ort.InferenceSession.create(graph) };
}

// Make an element; what is undefined is left out.
function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// Return the field of a feature: its type is the model's, its hints are from fields.json.
function field(name, { dtype, missing }, { choices, value = "", min, max } = {}) {
  const common = { name, required: missing === undefined ? "" : undefined };
  let input;
  if (choices) {
    const options = ["", ...choices].map((choice) =>
      element("option", { value: choice }, choice || "(missing)"),
    );
    input = element("select", common, ...options);
  } else if (dtype === "string") {
    input = element("input", common);
  } else {
    const step = dtype === "int64" ? 1 : "any";
    input = element("input", { ...common, type: "number", step, min, max });
  }
  input.value = value;
  return element("label", {}, name.replaceAll("_", " "), input);
}

// Return what is typed as the tensor of a feature, of shape (1, 1).
function tensor(name, { dtype, missing }) {
  const text = form.elements[name].value;
  const value = text === "" ? missing : text;
  const data = {
    string: () => [value],
    int64: () => BigInt64Array.of(BigInt(value)),
    float32: () => Float32Array.of(Number(value)),
    float64: () => Float64Array.of(Number(value)),
  };
  return new ort.Tensor(dtype, data[dtype](), [1, 1]);
}

async function predict({ manifest, session }) {
  if (!form.checkValidity()) {
    return "Fill in or correct the marked fields.";
  }
  const { inputs, outputs } = manifest.signatures.serving_default;
  const feeds = Object.fromEntries(
    Object.values(inputs).map(({ tensor: name }) => [
      name,
      tensor(name, manifest.features[name]),
    ]),
  );
  const found = await session.run(feeds);
  const scores = found[outputs.scores.tensor].data;
  return Array.from(found[outputs.classes.tensor].data, (name, i) =>
    element(
      "div",
      { class: "class" },
      element("span", {}, name),
      element("meter", { value: scores[i] }),
      element("data", { value: scores[i] }, `${(100 * scores[i]).toFixed(1)} %`),
    ),
  );
}

try {
  const model = await load();
  for (const [name, feature] of Object.entries(model.manifest.features)) {
    form.append(field(name, feature, model.fields[name]));
  }
  let last = Promise.resolve(); // one run at a time, in the order of what is typed
  const show = () => {
    last = last.then(async () => answer.replaceChildren(...[await predict(model)].flat()));
  };
  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  show();
} catch (error) {
  answer.textContent = `The model does not run here: ${error.message}`;
}
