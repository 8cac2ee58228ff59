// SPDX-License-Identifier: Apache-2.0
// Runs exported models in an engine of JavaScript.
//
//   node run.mjs onnxruntime-web|onnxruntime-node CASES.json
//
// CASES.json is a list of {model: path, feeds: {name: tensor}}; what the models give is
// written to standard output as a list of {name: tensor}. A tensor is
// {type, dims, data}; numbers in it may be texts, such as "NaN" and large integers.
import { readFile } from "node:fs/promises";
import { argv, stdout } from "node:process";

const [engine, path] = argv.slice(2);
const ort = await import(engine);
ort.env.logLevel = "error";
if (engine === "onnxruntime-web") ort.env.wasm.numThreads = 1;

const ARRAYS = {
  string: (data) => data,
  int32: (data) => Int32Array.from(data, Number),
  int64: (data) => BigInt64Array.from(data, BigInt),
  float32: (data) => Float32Array.from(data, Number),
  float64: (data) => Float64Array.from(data, Number),
};

const read = ({ type, dims, data }) => new ort.Tensor(type, ARRAYS[type](data), dims);
const write = ({ type, dims, data }) => ({
  type,
  dims,
  data: Array.from(data, String),
});
const each = (object, turn) =>
  Object.fromEntries(Object.entries(object).map(([name, value]) => [name, turn(value)]));

async function run({ model, feeds }) {
  const session = await ort.InferenceSession.create(await readFile(model), {
    executionProviders: [engine === "onnxruntime-web" ? "wasm" : "cpu"],
  });
  const found = each(await session.run(each(feeds, read)), write);
  await session.release();
  return found;
}

const answers = [];
for (const one of JSON.parse(await readFile(path, "utf8"))) answers.push(await run(one));
stdout.write(JSON.stringify(answers));
