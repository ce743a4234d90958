"""The v1 documents as data: requests parsed once, answers and errors rendered."""
