"""DICOM series in a folder or a zip: selection of T1-weighted 3D scans, their voxels and geometry.

pydicom parses headers and decodes pixels, from bytes in memory whose size was checked
before: it reads whatever sizes a file announces. No patient data of a header leaves this
folder, except whole headers, from which a DICOM segmentation of the same patient is made.
"""
