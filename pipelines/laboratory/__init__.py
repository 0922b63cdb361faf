"""Research tools around training: profiles, explanations, suspect labels."""
