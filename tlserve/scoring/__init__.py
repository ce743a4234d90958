"""The APIs that score texts as data: rerank, score, classify."""
