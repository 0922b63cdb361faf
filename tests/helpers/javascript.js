// Calls one function of one module: what to call on stdin as JSON, its value on stdout.
const KINDS = {
  int8: Int8Array,
  uint8: Uint8Array,
  int16: Int16Array,
  uint16: Uint16Array,
  int32: Int32Array,
  uint32: Uint32Array,
  float32: Float32Array,
  float64: Float64Array,
};

function toBytes(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

function toText(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 8192) {
    text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  }
  return btoa(text);
}

function decoded(value) {
  if (Array.isArray(value)) return value.map(decoded);
  if (value === null || typeof value !== "object") return value;
  if ("$buffer" in value) return toBytes(value.$buffer).buffer;
  if ("$array" in value) return new KINDS[value.$array](toBytes(value.bytes).buffer);
  if ("$file" in value) return new File([decoded(value.$file)], value.name);
  if ("$map" in value) return new Map(Object.entries(decoded(value.$map)));
  const entries = Object.entries(value).map(([key, inner]) => [key, decoded(inner)]);
  return Object.fromEntries(entries);
}

function encoded(value) {
  if (value instanceof ArrayBuffer) return { $buffer: toText(new Uint8Array(value)) };
  if (ArrayBuffer.isView(value)) {
    const [kind] = Object.entries(KINDS).find(([, Kind]) => value instanceof Kind);
    const bytes = new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
    return { $array: kind, bytes: toText(bytes) };
  }
  if (value instanceof Map) return encoded(Object.fromEntries(value));
  if (Array.isArray(value)) return value.map(encoded);
  if (value === null || typeof value !== "object") return value;
  const entries = Object.entries(value).map(([key, inner]) => [key, encoded(inner)]);
  return Object.fromEntries(entries);
}

const asked = JSON.parse(await new Response(Deno.stdin.readable).text());
let answer;
try {
  const found = await import(asked.module);
  const value = await found[asked.function](...asked.arguments.map(decoded));
  answer = { value: encoded(value) };
} catch (error) {
  answer = { error: error.message };
}
console.log(JSON.stringify(answer));
