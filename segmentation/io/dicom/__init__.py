"""Series of DICOM files, in a folder or a zip: which are T1-weighted 3D scans; their voxels, place.

pydicom parses headers and decodes pixels, from bytes in memory that were measured before: it reads
whatever sizes a file announces. Nothing of what a header says of the patient leaves this folder,
but for whole headers, which a DICOM segmentation of the same patient is made from.
"""
