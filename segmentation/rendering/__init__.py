"""Pictures of slices and surfaces of structures."""
