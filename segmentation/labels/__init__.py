"""Label schemes, and how FreeSurfer numbers fold into them."""
