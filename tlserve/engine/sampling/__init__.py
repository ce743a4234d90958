"""From logits to the next token: edits, masks, and the draw."""
