"""Encoders: every row of a sequence sees all of it, and the result is one vector, or one score for each label."""
