// A scan of the files that were dropped, or one line that says why not.
import { checkValues, refuse } from "./checks.js";
import { readMgh } from "./mgh.js";
import { readNifti } from "./nifti.js";

/** @typedef {import("./grid.js").Volume} Volume */

const READERS = { ".nii": readNifti, ".mgh": readMgh };
const PACKED = { ".nii.gz": ".nii", ".mgz": ".mgh", ".mgh.gz": ".mgh" };
const GIVE = "give a T1-weighted scan as .nii, .nii.gz or .mgz";

/**
 * @param {string} name of the file: its ending says what it is
 * @param {Blob} file
 * @returns {Promise<Volume>}
 */
export async function readScan(name, file) {
  const lower = name.toLowerCase();
  const endsWith = (ending) => lower.endsWith(ending);
  const packed = Object.keys(PACKED).find(endsWith);
  const ending = packed ? PACKED[packed] : Object.keys(READERS).find(endsWith);
  if (!ending) refuse("not a known kind of scan", GIVE);
  const bytes = packed ? await unpacked(file) : await file.arrayBuffer();
  const scan = READERS[ending](bytes);
  checkValues(scan.data);
  return scan;
}

// The checksum at the end of a gzip file is compared by the browser.
async function unpacked(file) {
  const stream = file.stream().pipeThrough(new DecompressionStream("gzip"));
  try {
    return await new Response(stream).arrayBuffer();
  } catch {
    return refuse("the file is damaged", "copy or download it again");
  }
}

/** @returns {Promise<Blob>} the same bytes as gzip */
export function packed(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new CompressionStream("gzip"));
  return new Response(stream).blob();
}
