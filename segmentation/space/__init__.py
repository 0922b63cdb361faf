"""Where voxels are: grids, views, and the way to the working grid and back."""
