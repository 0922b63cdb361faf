"""A researcher's tools around training: profiles, explanations, suspect labels."""
