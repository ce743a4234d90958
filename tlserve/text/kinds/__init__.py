"""The kinds of vocabularies in GGUF metadata: a module builds the tokenizer of each."""
