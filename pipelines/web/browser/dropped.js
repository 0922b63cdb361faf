// The scans among files that were dropped or chosen: a list of files for each.
import { isImage } from "./read.js";

/**
 * Files that are scans by themselves, and all others together: a folder of DICOM files.
 * @param {File[]} files
 * @returns {File[][]}
 */
export function scansOf(files) {
  const scans = files.filter(({ name }) => isImage(name)).map((file) => [file]);
  const others = files.filter(({ name }) => !isImage(name));
  if (others.length) scans.push(others);
  return scans;
}

/**
 * The files that were dropped, those in folders among them.
 * @param {DataTransfer} transfer
 * @returns {Promise<File[]>}
 */
export async function filesIn(transfer) {
  // Entries are there only until the first pause.
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry());
  const found = [];
  for (const entry of entries) {
    if (entry) found.push(...await filesOfEntry(entry));
  }
  return found;
}

async function filesOfEntry(entry) {
  if (entry.isFile) {
    return [await new Promise((resolve, reject) => entry.file(resolve, reject))];
  }
  const reader = entry.createReader();
  const found = [];
  while (true) {
    // A reader gives a hundred entries at a time, and none at its end.
    const some = await new Promise((resolve, reject) =>
      reader.readEntries(resolve, reject)
    );
    if (!some.length) return found;
    for (const inner of some) found.push(...await filesOfEntry(inner));
  }
}
