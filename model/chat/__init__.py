"""K3's chat format: `tokenizer` (text and ids), `xtml` (the markup), `render` (a conversation to
segments), `parse` (generated ids to reasoning, content and calls). Never imports torch."""
