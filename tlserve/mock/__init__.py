"""Answers from scripts: a stand-in for a model in the tests of an application, without a model and without numpy."""
