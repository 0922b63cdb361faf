"""A researcher's tools around training: profiles, explanations, averages, suspect labels."""
