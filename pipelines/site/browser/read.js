// A scan of the files that were dropped, or one line that says why not.
import { checkValues, refuse } from "./checks.js";
import { readDicom } from "./dicom.js";
import { isDicom, START_BYTES } from "./dicom_file.js";
import { readMgh } from "./mgh.js";
import { readNifti } from "./nifti.js";

/** @typedef {import("./grid.js").Volume} Volume */

const READERS = { ".nii": readNifti, ".mgh": readMgh };
const PACKED = { ".nii.gz": ".nii", ".mgz": ".mgh", ".mgh.gz": ".mgh" };
// The first bytes of a zip: PK\3\4.
const ZIP = 0x504b0304;
// The first bytes of a gzip file.
const GZIP = 0x1f8b;
const GIVE = "give a scan as .nii, .nii.gz, .mgz or a folder of DICOM files";

/**
 * Divide files into scans: each image is one, and all DICOM files together are one. Beside images,
 * files of other kinds are left out, such as the sidecars of BIDS. Hidden files, such as those that
 * macOS writes beside others (._scan.nii.gz), are left out too.
 * @param {File[]} files
 * @returns {Promise<File[][]>}
 */
export async function scansOf(files) {
  let shown = files.filter(({ name }) => !name.startsWith("."));
  // Hidden files alone are refused later, in a sentence.
  if (!shown.length) shown = files;
  const images = shown.filter(({ name }) => isImage(name));
  const others = [];
  for (const file of shown) {
    if (isImage(file.name)) continue;
    const start = await file.slice(0, START_BYTES).arrayBuffer();
    if (!images.length || isDicom(start)) others.push(file);
  }
  const scans = images.map((file) => [file]);
  if (others.length) scans.push(others);
  return scans;
}

/**
 * @param {File[]} files one scan's: a file whose ending says what it is, or DICOM files
 * @param {boolean} anyContrast whether a DICOM series may have another contrast than T1
 * @returns {Promise<Volume>}
 */
export async function readScan(files, anyContrast = false) {
  const scan = isImage(files[0].name)
    ? await readImage(files[0])
    : await readFolder(files, anyContrast);
  checkValues(scan.data);
  return scan;
}

/** Return true if the ending of a file is that of a scan in a single file. */
function isImage(name) {
  return endingOf(name, PACKED) !== "" || endingOf(name, READERS) !== "";
}

/** Return the name of a scan in tables: its file name without the ending. */
export function caseOf(files) {
  if (files.length > 1) return "dicom";
  const [{ name }] = files;
  const ending = endingOf(name, PACKED) || endingOf(name, READERS);
  return name.slice(0, name.length - ending.length);
}

function endingOf(name, known) {
  const lower = name.toLowerCase();
  return Object.keys(known).find((ending) => lower.endsWith(ending)) ?? "";
}

async function readImage(file) {
  const packing = endingOf(file.name, PACKED);
  const isPacked = isGzip(await file.slice(0, 2).arrayBuffer());
  if (packing && !isPacked) {
    refuse(
      "not gzip, though its name says so",
      "fetch it again, or rename it if it is not compressed",
    );
  }
  if (isPacked && !packing) {
    refuse(
      "gzip inside, though its name does not say so",
      "add .gz to its name (.mgh becomes .mgz)",
    );
  }
  const bytes = packing ? await unpacked(file) : await file.arrayBuffer();
  return READERS[PACKED[packing] ?? endingOf(file.name, READERS)](bytes);
}

async function readFolder(files, anyContrast) {
  const buffers = [];
  for (const file of files) buffers.push(await file.arrayBuffer());
  if (files.length === 1 && !isDicom(buffers[0])) {
    if (isZip(buffers[0])) refuse("a zip", "unpack it, and drop the folder");
    refuse("not a known kind of scan", GIVE);
  }
  return readDicom(buffers, anyContrast);
}

const isGzip = (buffer) =>
  buffer.byteLength === 2 && new DataView(buffer).getUint16(0) === GZIP;

const isZip = (buffer) =>
  buffer.byteLength > 4 && new DataView(buffer).getUint32(0) === ZIP;

// The checksum at the end of a gzip file is compared by the browser.
async function unpacked(file) {
  const stream = file.stream().pipeThrough(new DecompressionStream("gzip"));
  try {
    return await new Response(stream).arrayBuffer();
  } catch {
    return refuse(
      "the file is damaged, or compressed in parts",
      "compress it again, or use trinat predict",
    );
  }
}

/** @returns {Promise<Blob>} the same bytes as gzip */
export function packed(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new CompressionStream("gzip"));
  return new Response(stream).blob();
}
