"""The forms in which calls are written, each with a reader, and the record of a form -> its readers."""
