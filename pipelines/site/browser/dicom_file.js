// One DICOM file: its header, without what could be a patient's name, and its pixels as stored.
// What segmentation/io/dicom/parsing.py has pydicom do, for files that are not compressed.
import { refuse } from "./checks.js";

/**
 * A data set: the elements that are used, by their keywords. Texts and numbers come as arrays,
 * sequences as arrays of data sets, pixels as where they are in the file.
 * @typedef {Record<string, any>} Dataset
 */

const MAGIC_AT = 128;
/** Number of bytes that say whether a file is DICOM. */
export const START_BYTES = MAGIC_AT + 4;
const IMPLICIT = "1.2.840.10008.1.2";
const EXPLICIT = "1.2.840.10008.1.2.1";
const UNDEFINED_LENGTH = 0xffffffff;
// Kinds of values whose length has four bytes in an explicit header.
const LONG_KINDS = [
  "OB",
  "OD",
  "OF",
  "OL",
  "OV",
  "OW",
  "SQ",
  "SV",
  "UC",
  "UN",
  "UR",
  "UT",
  "UV",
];
const ITEM = 0xfffee000;
const ITEM_END = 0xfffee00d;
const SEQUENCE_END = 0xfffee0dd;
const PIXELS = 0x7fe00010;
// An enhanced header of 1,500 frames has a few hundred thousand elements.
const MOST_ELEMENTS = 1_000_000;
const REMAKE = "export the series again";

// All that is read of a header: keyword, and how its values are written.
const ELEMENTS = {
  0x00020010: ["TransferSyntaxUID", "text"],
  0x00080008: ["ImageType", "text"],
  0x00080016: ["SOPClassUID", "text"],
  0x00080060: ["Modality", "text"],
  0x0008103e: ["SeriesDescription", "text"],
  0x00089209: ["AcquisitionContrast", "text"],
  0x00180020: ["ScanningSequence", "text"],
  0x00180023: ["MRAcquisitionType", "text"],
  0x00180025: ["AngioFlag", "text"],
  0x00180081: ["EchoTime", "decimal"],
  0x00181030: ["ProtocolName", "text"],
  0x00189018: ["EchoPlanarPulseSequence", "text"],
  0x00189082: ["EffectiveEchoTime", "double"],
  0x00189114: ["MREchoSequence", "sequence"],
  0x0020000e: ["SeriesInstanceUID", "text"],
  0x00200032: ["ImagePositionPatient", "decimal"],
  0x00200037: ["ImageOrientationPatient", "decimal"],
  0x00200052: ["FrameOfReferenceUID", "text"],
  0x00209113: ["PlanePositionSequence", "sequence"],
  0x00209116: ["PlaneOrientationSequence", "sequence"],
  0x00280002: ["SamplesPerPixel", "short"],
  0x00280004: ["PhotometricInterpretation", "text"],
  0x00280008: ["NumberOfFrames", "decimal"],
  0x00280010: ["Rows", "short"],
  0x00280011: ["Columns", "short"],
  0x00280030: ["PixelSpacing", "decimal"],
  0x00280100: ["BitsAllocated", "short"],
  0x00280101: ["BitsStored", "short"],
  0x00280102: ["HighBit", "short"],
  0x00280103: ["PixelRepresentation", "short"],
  0x00280120: ["PixelPaddingValue", "short"],
  0x00280121: ["PixelPaddingRangeLimit", "short"],
  0x00281052: ["RescaleIntercept", "decimal"],
  0x00281053: ["RescaleSlope", "decimal"],
  0x00283000: ["ModalityLUTSequence", "sequence"],
  0x00289110: ["PixelMeasuresSequence", "sequence"],
  0x00289145: ["PixelValueTransformationSequence", "sequence"],
  0x52009229: ["SharedFunctionalGroupsSequence", "sequence"],
  0x52009230: ["PerFrameFunctionalGroupsSequence", "sequence"],
};

/** Return true if a file begins like a DICOM file. */
export function isDicom(buffer) {
  if (buffer.byteLength < START_BYTES) return false;
  return String.fromCharCode(...new Uint8Array(buffer, MAGIC_AT, 4)) === "DICM";
}

/**
 * The header of a DICOM file, `Pixels` among it: where its pixels begin and end.
 * @param {ArrayBuffer} buffer
 * @returns {Dataset}
 */
export function parseDicom(buffer) {
  const reader = new Reader(buffer);
  try {
    return reader.file();
  } catch (error) {
    // Beyond the end of the file.
    if (error instanceof RangeError) refuse("damaged DICOM file", REMAKE);
    throw error;
  }
}

/** Return true if the pixels of a file can be read as they are. */
export function isPlain({ TransferSyntaxUID }) {
  return [IMPLICIT, EXPLICIT].includes(TransferSyntaxUID?.[0]);
}

class Reader {
  constructor(buffer) {
    this.view = new DataView(buffer);
    this.at = START_BYTES;
    this.isExplicit = true;
    this.elements = 0;
  }

  file() {
    /** @type {Dataset} */
    const found = {};
    // The first group is explicit always, and says how the others are written.
    while (this.at < this.view.byteLength && this.view.getUint16(this.at, true) === 2) {
      this.element(found);
    }
    this.isExplicit = found.TransferSyntaxUID?.[0] !== IMPLICIT;
    // As in Python, nothing behind the pixels is read: some files end with zeros.
    while (this.at < this.view.byteLength && !found.Pixels) this.element(found);
    return found;
  }

  // Elements up to a place, or to the end of an item whose length is not known.
  dataset(found, end) {
    while (this.at < end) {
      if (this.element(found)) return;
    }
  }

  // Reads one element; whether it was the end of the item.
  element(found) {
    this.elements += 1;
    if (this.elements > MOST_ELEMENTS) refuse("its header is too large", REMAKE);
    const tag = this.tag();
    if (tag === ITEM_END) {
      this.at += 4;
      return true;
    }
    const { kind, length } = this.kindAndLength();
    const [keyword, form] = ELEMENTS[tag] ?? [];
    if (tag === PIXELS) {
      // Compressed pixels have no length.
      if (length !== UNDEFINED_LENGTH) {
        found.Pixels = { start: this.at, end: this.at + length };
      }
      this.at += length;
    } else if (kind === "SQ" || form === "sequence" || length === UNDEFINED_LENGTH) {
      const { isExplicit } = this;
      // The standard demands that items of an unknown kind are implicit.
      if (kind === "UN") this.isExplicit = false;
      const items = this.items(length);
      this.isExplicit = isExplicit;
      if (keyword) found[keyword] = items;
    } else {
      if (keyword) found[keyword] = this.values(form, length);
      this.at += length;
    }
    return false;
  }

  tag() {
    const group = this.view.getUint16(this.at, true);
    const element = this.view.getUint16(this.at + 2, true);
    this.at += 4;
    return group * 0x10000 + element;
  }

  kindAndLength() {
    if (!this.isExplicit) {
      this.at += 4;
      return { kind: "", length: this.view.getUint32(this.at - 4, true) };
    }
    const kind = this.text(2);
    this.at += 2;
    if (LONG_KINDS.includes(kind)) {
      this.at += 6;
      return { kind, length: this.view.getUint32(this.at - 4, true) };
    }
    this.at += 2;
    return { kind, length: this.view.getUint16(this.at - 2, true) };
  }

  items(length) {
    const end = length === UNDEFINED_LENGTH ? Infinity : this.at + length;
    const found = [];
    while (this.at < end) {
      const tag = this.tag();
      const size = this.view.getUint32(this.at, true);
      this.at += 4;
      if (tag === SEQUENCE_END) break;
      if (tag !== ITEM) refuse("damaged DICOM file", REMAKE);
      const item = {};
      this.dataset(item, size === UNDEFINED_LENGTH ? Infinity : this.at + size);
      found.push(item);
    }
    return found;
  }

  // The values of an element, which is not passed.
  values(form, length) {
    if (!length) return [];
    if (form === "short") return [this.view.getUint16(this.at, true)];
    if (form === "double") return [this.view.getFloat64(this.at, true)];
    const words = this.text(length).split("\\").map((word) =>
      word.replaceAll("\0", "").trim()
    );
    const given = words.filter((word) => word);
    if (form === "decimal") return given.map(Number);
    // The place of a word counts, as in ImageType.
    return given.length ? words : [];
  }

  text(length) {
    // Beyond the end this throws, as the view does.
    const bytes = new Uint8Array(this.view.buffer, this.at, length);
    return new TextDecoder("latin1").decode(bytes);
  }
}
