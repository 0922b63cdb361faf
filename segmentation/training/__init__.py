"""Training one view: loop, schedule, state."""
