// Numbers in half precision (IEEE 754 binary16), in which Python holds probabilities: 16 bits each.
// Not every browser has Float16Array.

const LARGEST = 65504;
const SMALLEST_NORMAL = 2 ** -14;
const SUBNORMAL_STEP = 2 ** -24;

/** The number that each pattern of 16 bits stands for. */
export const NUMBERS = Float32Array.from(
  { length: 65536 },
  (_, bits) => fromBits(bits),
);

const single = new Float32Array(1);
const itsBits = new Uint32Array(single.buffer);

function fromBits(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  if (exponent === 0) return sign * fraction * SUBNORMAL_STEP;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

/**
 * The bits of the nearest half to a number from 0 to 65504; of two, the one with an even last bit.
 * @param {number} value
 */
export function toBits(value) {
  if (!(value > 0)) return 0;
  if (value >= LARGEST) return 0x7bff;
  if (value < SMALLEST_NORMAL) return toEven(value / SUBNORMAL_STEP);
  single[0] = value;
  // Thirteen bits of the fraction are rounded off; the exponent counts from 15, not 127.
  const bits = itsBits[0];
  const isOdd = (bits >>> 13) & 1;
  return ((bits + 0xfff + isOdd) >>> 13) - (112 << 10);
}

function toEven(value) {
  const low = Math.floor(value);
  const part = value - low;
  if (part === 0.5) return low + (low & 1);
  return Math.round(value);
}
